//! Defends: a look has an end, however much there is, and the next page begins where it ended.

use aftercommit::{
    error::StoreError,
    state::State,
    store::{CAUSES_WINDOW, Filter, Page, SEARCH_WINDOW},
};

use super::page;
use crate::{
    store::stage::Stage,
    support::{Engine, TestDatabase, on_every_database},
};

on_every_database! {
    a_search_says_how_far_it_looked,
    causes_are_counted_up_to_a_bound,
    a_long_queue_is_looked_through_in_parts,
    unselective_metadata_is_looked_for_among_the_newest,
    a_read_that_takes_too_long_is_stopped_in_words,
}

/// Writes `n` effects at once; `columns` and their values, in which `i` counts from 1.
async fn many(db: &TestDatabase, n: u32, columns: &str, values: &str) {
    let sql = format!(
        "INSERT INTO aftercommit.effects (downstream, idempotency_key{columns})
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {n})
         SELECT 'pay', '{n}-' || i{values} FROM n"
    );
    db.sql.execute(&sql).await;
}

/// They all have ended so; notes in which `e.id` counts.
async fn all_ended(db: &TestDatabase, state: State, note: &str) {
    db.sql
        .execute(&format!(
            "DELETE FROM aftercommit.queue;
             INSERT INTO aftercommit.outcomes (effect_id, token, finished_at, number, sent_before, state, downstream, note)
             SELECT e.id, e.id, {}, 1, false, '{state}', e.downstream, {note} FROM aftercommit.effects AS e",
            db.engine.now()
        ))
        .await;
}

fn ids(page: &Page) -> Vec<i64> {
    page.effects.iter().map(|status| status.id.get()).collect()
}

async fn a_search_says_how_far_it_looked(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let more = SEARCH_WINDOW + 50;
    many(db, more, ", operation", ", CASE WHEN i <= 3 THEN 'rare' ELSE 'often' END").await;
    let rare = Filter { operation: Some("rare".to_owned()), limit: 10, ..Filter::default() };
    let ready = Filter { states: vec![State::Ready], ..rare.clone() };
    for filter in [rare.clone(), ready] {
        let first = page(db, &filter).await;
        assert_eq!((first.effects.len(), first.searched), (0, Some(u64::from(SEARCH_WINDOW))), "{filter:?}");
        let next = first.next.expect("there is more to look at");
        assert_eq!(next.get(), 51);
        let second = page(db, &Filter { before: Some(next), ..filter.clone() }).await;
        assert_eq!((ids(&second), second.next, second.searched), (vec![3, 2, 1], None, Some(50)));
    }
    all_ended(db, State::Failed, "CASE WHEN e.id <= 3 THEN 'Rare' ELSE 'often' END").await;
    let failed = Filter {
        error: Some("rare".to_owned()),
        operation: None,
        states: vec![State::Failed],
        downstream: Some("pay".to_owned()),
        ..rare
    };
    let first = page(db, &failed).await;
    assert_eq!((first.effects.len(), first.searched), (0, Some(u64::from(SEARCH_WINDOW))));
    let second = page(db, &Filter { before: first.next, ..failed.clone() }).await;
    assert_eq!((ids(&second), second.next), (vec![3, 2, 1], None));
    let often = page(db, &Filter { error: Some("often".to_owned()), ..failed }).await;
    assert_eq!((often.effects.len(), often.searched), (10, Some(10)), "as far as it had to look");
    assert_eq!(often.next, often.effects.last().map(|status| status.id));
}

async fn causes_are_counted_up_to_a_bound(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    many(db, CAUSES_WINDOW + 5, "", "").await;
    all_ended(db, State::Failed, "'no'").await;
    let causes = db.store.causes(State::Failed, None).await.expect("readable");
    assert_eq!((causes.rows.len(), causes.whole), (CAUSES_WINDOW as usize, false));
    assert_eq!(causes.searched, u64::from(CAUSES_WINDOW));
    assert_eq!(causes.rows[0].id.get(), i64::from(CAUSES_WINDOW) + 5, "the newest");
}

/// Ready ones below more scheduled ones than one page looks through.
async fn a_long_queue_is_looked_through_in_parts(db: &TestDatabase) {
    const WINDOW: u32 = 10 * SEARCH_WINDOW;
    Stage::by_key(db, "pay").await;
    many(db, 3_000, "", "").await;
    let later = db.engine.after(db.engine.now(), crate::store::stage::HOUR);
    many(db, WINDOW + 50, ", due_at", &format!(", {later}")).await;
    let ready = Filter { states: vec![State::Ready], limit: 10, ..Filter::default() };
    let first = page(db, &ready).await;
    assert_eq!((first.effects.len(), first.searched), (0, Some(u64::from(WINDOW))));
    let next = first.next.expect("there is more to look at");
    assert_eq!(next.get(), 3_051);
    let second = page(db, &Filter { before: Some(next), ..ready.clone() }).await;
    assert_eq!(ids(&second), (2_991..=3_000).rev().collect::<Vec<_>>());
    assert_eq!((second.next.map(|id| id.get()), second.searched), (Some(2_991), None));
    let scheduled = page(db, &Filter { states: vec![State::Scheduled], ..ready.clone() }).await;
    assert_eq!((scheduled.effects.len(), scheduled.searched), (10, None));
    // What stands elsewhere must not be shown before what was not looked at yet.
    let stage = Stage::hold(db, "mail").await;
    let doubtful = stage.parked(db, "doubtful").await;
    let both = Filter { states: vec![State::Ready, State::InDoubt], ..ready };
    let first = page(db, &both).await;
    assert_eq!(ids(&first), [doubtful.get()]);
    let second = page(db, &Filter { before: first.next, ..both }).await;
    assert_eq!(second.effects.len(), 10);
}

async fn unselective_metadata_is_looked_for_among_the_newest(db: &TestDatabase) {
    Stage::by_key(db, "pay").await;
    let metadata = match db.engine {
        Engine::Postgres => {
            ", jsonb_build_object('country', 'de', 'kind', CASE WHEN i <= 2 THEN 'rare' ELSE 'often' END)"
        }
        Engine::Sqlite => {
            ", json_object('country', 'de', 'kind', CASE WHEN i <= 2 THEN 'rare' ELSE 'often' END)"
        }
    };
    many(db, SEARCH_WINDOW + 50, ", metadata", metadata).await;
    let of = |text: &str| Filter { metadata: Some(text.to_owned()), limit: 10, ..Filter::default() };
    let common = page(db, &of("{\"country\":\"de\"}")).await;
    assert_eq!((common.effects.len(), ids(&common)[0]), (10, i64::from(SEARCH_WINDOW) + 50));
    let rare = page(db, &of("{\"kind\":\"rare\"}")).await;
    assert_eq!((ids(&rare), rare.next, rare.searched), (vec![2, 1], None, None), "found by its index");
    let none = Filter { states: vec![State::Failed], ..of("{\"country\":\"de\"}") };
    let first = page(db, &none).await;
    assert!(first.effects.is_empty(), "{first:?}");
}

async fn a_read_that_takes_too_long_is_stopped_in_words(db: &TestDatabase) {
    db.insert("pay", "k").await;
    let holder = match db.engine {
        Engine::Postgres => {
            let mut holder = db.sql.begin().await;
            holder.execute("LOCK TABLE aftercommit.effects IN ACCESS EXCLUSIVE MODE").await;
            Some(holder)
        }
        Engine::Sqlite => {
            let view = "SELECT sql FROM sqlite_schema WHERE name = 'aftercommit_status'";
            let body = db.sql.scalar(view).await.expect("the view is there");
            let (_, body) = body.split_once(" AS\n").or_else(|| body.split_once(" AS ")).expect("a view");
            let endless =
                "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c";
            db.sql
                .execute_as_is(&format!(
                    "DROP VIEW aftercommit_status; CREATE VIEW aftercommit_status AS SELECT * FROM ({body}) WHERE ({endless}) > 0"
                ))
                .await;
            None
        }
    };
    let refused = db.store.effects(&Filter { limit: 5, ..Filter::default() }).await;
    let refused = refused.expect_err("it never ends");
    assert!(matches!(refused, StoreError::TooSlow { seconds: 5, .. }), "{refused:?}");
    let said = refused.to_string();
    assert!(said.contains("listing effects took longer than 5 s") && said.contains("narrow it"), "{said}");
    assert!(!refused.is_outage(), "nobody waits for it to get better");
    if let Some(holder) = holder {
        holder.rollback().await;
    }
    db.store.counts().await.expect("the connection is still of use");
}
