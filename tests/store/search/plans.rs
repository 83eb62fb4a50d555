//! Defends: no list reads more than its page (and what it says that it searched) of tables of any size: no table is read through.

use std::time::Duration;

use aftercommit::{
    EffectId,
    state::State,
    store::{AuditFilter, Database, Filter, Resolution, SEARCH_WINDOW},
};

use super::page;
use crate::{
    store::stage::Stage,
    support::{TestDatabase, eventually, on_postgres},
};

on_postgres! { no_list_reads_more_than_its_page }

const N: i64 = 30_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Three downstreams; of thirty effects in a row twenty-six have succeeded, one failed, one is in doubt, one ready and one scheduled.
async fn filled(db: &TestDatabase) {
    for downstream in ["crm", "mail", "pay"] {
        Stage::by_key(db, downstream).await;
    }
    db.sql
        .execute(&format!(
            "INSERT INTO aftercommit.effects (downstream, idempotency_key, operation, metadata, payload, due_at)
               SELECT (ARRAY['crm', 'mail', 'pay'])[1 + n % 3], 'k' || n, 'op' || n % 7,
                 jsonb_build_object('order', 'A-' || n, 'country', 'de'), '{{\"n\": 1}}',
                 clock_timestamp() + CASE WHEN n % 30 = 3 THEN interval '1 hour' ELSE '0' END
               FROM generate_series(1, {N}) AS n;
             UPDATE aftercommit.queue SET lane = 'd', uncertain = true, note = 'no answer' WHERE id % 30 = 1;
             DELETE FROM aftercommit.queue WHERE id % 30 NOT IN (1, 2, 3);
             INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, state, downstream, note)
               SELECT id, id, created_at, 1, CASE WHEN id % 30 = 0 THEN 'failed' ELSE 'succeeded' END, downstream,
                 CASE WHEN id % 30 = 0 THEN 'declined' END
               FROM aftercommit.effects WHERE id % 30 NOT IN (1, 2, 3);
             INSERT INTO aftercommit.attempts (effect_id, token, number, started_at, ended_at, phase, outcome)
               SELECT id, id, 1, clock_timestamp(), clock_timestamp(), 'done', 'applied' FROM aftercommit.effects;
             INSERT INTO aftercommit.audit (who, verb, effect_id, downstream)
               SELECT 'who' || id % 100, 'retry', id, downstream FROM aftercommit.effects;"
        ))
        .await;
    db.sql.execute("VACUUM ANALYZE").await;
}

/// (times that a table was read through, rows that were read)
async fn read_so_far(db: &TestDatabase) -> (i64, i64) {
    let of = |what: &str| {
        format!(
            "SELECT coalesce(sum({what}), 0) FROM pg_stat_user_tables
             WHERE schemaname = 'aftercommit' AND relname IN ('effects', 'outcomes', 'queue', 'attempts', 'audit')"
        )
    };
    let rows = "coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)";
    (db.sql.number(&of("seq_scan")).await, db.sql.number(&of(rows)).await)
}

async fn sessions(db: &TestDatabase) -> i64 {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'aftercommit-test'";
    db.sql.number(others).await
}

/// Rows that `look` reads, by the server's own counters. A session's are added up when it ends.
async fn reads(db: &TestDatabase, look: impl AsyncFnOnce(&dyn Database)) -> (i64, i64) {
    let there = sessions(db).await;
    let before = read_so_far(db).await;
    let store = db.another_store().await;
    look(store.as_ref()).await;
    drop(store);
    let gone = async || (sessions(db).await <= there).then_some(());
    eventually(PATIENCE, "the sessions end", gone).await;
    let after = read_so_far(db).await;
    (after.0 - before.0, after.1 - before.1)
}

async fn no_list_reads_more_than_its_page(db: &TestDatabase) {
    filled(db).await;
    let limit = 50;
    let all = || Filter { limit, ..Filter::default() };
    let text = |text: &str| Some(text.to_owned());
    let mut filters = vec![
        all(),
        Filter { before: Some(EffectId::new(N / 2)), ..all() },
        Filter { downstream: text("pay"), ..all() },
        Filter { key: text("k777"), ..all() },
        Filter { key: text("k777"), downstream: text("pay"), ..all() },
        Filter { metadata: text("{\"order\":\"A-777\"}"), ..all() },
        Filter { ids: Some(vec![EffectId::new(5), EffectId::new(9)]), ..all() },
        Filter { states: vec![State::Failed, State::InDoubt], ..all() },
        Filter { states: vec![State::Waiting, State::Scheduled, State::Ready, State::Retrying], ..all() },
    ];
    for state in State::ALL {
        let of = Filter { states: vec![state], ..all() };
        filters.push(Filter { downstream: text("pay"), ..of.clone() });
        filters.push(Filter { before: Some(EffectId::new(N / 2)), ..of.clone() });
        filters.push(of);
    }
    for filter in filters {
        let (through, rows) = reads(db, async |store| {
            let page = store.effects(&filter).await.expect("a page");
            assert!(page.searched.is_none(), "{filter:?}: {page:?}");
        })
        .await;
        // A page's rows are found and then read through ten joins; a lane with few effects is taken whole.
        assert!(through == 0 && rows < 4_000, "{rows} rows and {through} tables were read for {filter:?}");
    }
    let looked = i64::from(SEARCH_WINDOW);
    for filter in [
        Filter { operation: text("none"), ..all() },
        Filter { error: text("none"), downstream: text("pay"), ..all() },
        Filter { metadata: text("{\"country\":\"de\"}"), error: text("none"), ..all() },
    ] {
        let (through, rows) =
            reads(db, async |store| drop(store.effects(&filter).await.expect("a page"))).await;
        assert!(
            through == 0 && rows < looked * 10,
            "{rows} rows and {through} tables were read for {filter:?}"
        );
    }
    what_stands_beside_many_is_looked_up(db).await;
    let written = db.status(EffectId::new(N / 2)).await.created_at;
    let around =
        Filter { created_before: Some(written), created_after: Some(written.minus(PATIENCE)), ..all() };
    let (through, rows) = reads(db, async |store| drop(store.effects(&around).await.expect("a page"))).await;
    assert!(through == 0 && rows < 4_000, "{rows} rows were read between two times");
    for filter in [
        AuditFilter { limit, ..AuditFilter::default() },
        AuditFilter { limit, who: text("who7"), before: Some(N), ..AuditFilter::default() },
        AuditFilter { limit, downstream: text("mail"), ..AuditFilter::default() },
        AuditFilter { limit, effect: Some(EffectId::new(7)), ..AuditFilter::default() },
    ] {
        let (through, rows) = reads(db, async |store| drop(store.audit(&filter).await.expect("rows"))).await;
        assert!(through == 0 && rows < 200, "{rows} audit rows were read for {filter:?}");
    }
    let (through, rows) = reads(db, async |store| {
        assert_eq!(store.causes(State::Failed, None).await.expect("readable").rows.len(), 1_000);
        store.traffic(db.now().await.minus(PATIENCE), Resolution::Minute).await.expect("readable");
    })
    .await;
    assert!(through == 0 && rows < 8_000, "{rows} rows were read for causes");
    assert_eq!(page(db, &all()).await.effects.len(), 50, "there is something to be read");
}

async fn what_stands_beside_many_is_looked_up(db: &TestDatabase) {
    let many: Vec<EffectId> = (N - 1_000..N).map(EffectId::new).collect();
    let (through, rows) = reads(db, async |store| drop(store.beside(&many).await.expect("readable"))).await;
    assert!(
        through == 0 && rows < 20_000,
        "{rows} rows and {through} tables were read for a thousand effects"
    );
}
