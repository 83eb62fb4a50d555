//! Defends: no list, filter, look-up or count of people reads through a table of any size. SQLite's own steps are counted, since what
//! `EXPLAIN QUERY PLAN` calls a SCAN may well end after a page. Inside of the library, because whoever is outside cannot watch
//! the connections that people read with.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use super::{chart, inspect, intent, list, migration_sql, outlook, received, record};
use crate::{
    clock::Timestamp,
    effect::EffectId,
    state::State,
    store::{AuditFilter, Filter, Look, RequestFilter, Resolution},
};

const ALL: i64 = 100_000;
/// To read the effects, or the outcomes, or those of a downstream through takes more; to take the few of a lane, 210,000.
const PAGE: u64 = 250_000;
/// A window of ten thousand, each read through the view, takes a third of it; all of them would take three times as many.
const WINDOW: u64 = 6_000_000;
const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// Of a hundred effects ten are pending, one has failed or is in doubt, and the rest has succeeded.
const FILLED: &str = "
CREATE TABLE numbers AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < @ALL@)
  SELECT i, CASE WHEN i > @OLD@ AND i % 100 THEN CASE WHEN i % 10 = 9 THEN 'retrying' WHEN i % 10 = 8 THEN 'scheduled' ELSE 'ready' END
    WHEN i % 450 = 7 THEN 'in_doubt' WHEN i % 90 = 7 THEN 'failed' WHEN i % 1000 = 500 THEN 'cancelled'
    WHEN i % 1000 = 600 THEN 'expired' ELSE 'succeeded' END AS kind,
    CASE WHEN i % 1000 = 7 THEN 'tax' WHEN i % 3 = 0 THEN 'crm' WHEN i % 3 = 1 THEN 'mail' ELSE 'pay' END AS downstream FROM n;
INSERT INTO aftercommit_effects (id, downstream, operation, idempotency_key, metadata, created_at)
  SELECT i, downstream, 'op' || i % 7, 'k' || i, json_object('order', 'A-' || i, 'country', 'de'), i * 1000000 FROM numbers;
INSERT INTO aftercommit_metadata (word, effect_id) SELECT '\"order\":\"A-' || i || '\"', i FROM numbers;
INSERT INTO aftercommit_metadata (word, effect_id) SELECT '\"country\":\"de\"', i FROM numbers;
INSERT INTO aftercommit_outcomes (effect_id, downstream, state, finished_at, token, number, sent_before, note)
  SELECT i, downstream, kind, i * 1000000, i, 1, 0, CASE kind WHEN 'failed' THEN 'card ' || i || ' declined' END
  FROM numbers WHERE kind IN ('succeeded', 'failed', 'cancelled', 'expired');
INSERT INTO aftercommit_queue (id, downstream, lane, due_at, token, tries, uncertain, note)
  SELECT i, downstream, CASE kind WHEN 'in_doubt' THEN 'd' WHEN 'ready' THEN 'r' ELSE 't' END,
    CASE kind WHEN 'in_doubt' THEN NULL WHEN 'ready' THEN i * 1000000 ELSE 1900000000000000 + i END, i, kind = 'retrying',
    kind = 'in_doubt', CASE kind WHEN 'in_doubt' THEN 'no answer' END
  FROM numbers WHERE kind IN ('ready', 'scheduled', 'retrying', 'in_doubt');
INSERT INTO aftercommit_attempts (effect_id, token, late, swept, number, started_at, ended_at, phase, outcome, replayed, error)
  SELECT i, i, 0, 0, 1, i * 1000000, i * 1000000, 'send', 'unknown', 0, 'no answer'
  FROM numbers WHERE kind IN ('failed', 'in_doubt', 'retrying');
INSERT INTO aftercommit_audit (at, who, verb, effect_id, downstream) SELECT i, 'who' || i % 50, 'retry', i, downstream FROM numbers;
INSERT INTO aftercommit_counters (downstream, state, n) SELECT downstream, state, count(*) FROM aftercommit_outcomes GROUP BY 1, 2;";

/// A database whose steps are counted.
struct Watched {
    conn: SqliteConnection,
    steps: Arc<AtomicU64>,
    complaints: Vec<String>,
}

impl Watched {
    async fn filled() -> Self {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(migration_sql())).execute(&mut conn).await.unwrap();
        let triggers =
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'aftercommit_effects'";
        let triggers: Vec<String> = sqlx::query_scalar(triggers).fetch_all(&mut conn).await.unwrap();
        for trigger in triggers {
            let drop = format!("DROP TRIGGER {trigger}");
            sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut conn).await.unwrap();
        }
        let filled = FILLED.replace("@ALL@", &ALL.to_string()).replace("@OLD@", &(ALL / 10 * 9).to_string());
        sqlx::raw_sql(AssertSqlSafe(filled)).execute(&mut conn).await.unwrap();
        let steps = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&steps);
        conn.lock_handle().await.unwrap().set_progress_handler(100, move || {
            counted.fetch_add(100, Ordering::SeqCst);
            true
        });
        Self { conn, steps, complaints: Vec::new() }
    }

    /// What was done since was `look`, and may have taken so many steps.
    fn took(&mut self, look: &str, most: u64) {
        let steps = self.steps.swap(0, Ordering::SeqCst);
        if steps > most {
            self.complaints.push(format!("{look} took {steps} steps, more than {most}"));
        }
    }
}

/// Everything that the pages and the API let somebody ask for.
fn filters() -> Vec<(Filter, u64)> {
    let text = |text: &str| Some(text.to_owned());
    let pending = vec![State::Ready, State::Scheduled, State::Retrying, State::Waiting];
    let mut states: Vec<Vec<State>> = State::ALL.iter().map(|state| vec![*state]).collect();
    states.extend([vec![], vec![State::Failed, State::InDoubt], pending, State::ALL.to_vec()]);
    let mut filters = Vec::new();
    for states in states {
        for downstream in [None, text("pay"), text("tax")] {
            // No index has the outcomes of a downstream: they are looked for within the window.
            let ended = states.is_empty() || states.iter().any(|state| state.is_terminal());
            let searches = downstream.is_some() && ended;
            let list = if searches { WINDOW } else { PAGE };
            let of = Filter { states: states.clone(), downstream, limit: 50, ..Filter::default() };
            let middle = Some(Timestamp::from_micros(ALL / 2 * 1_000_000));
            let before = Some(EffectId::new(ALL / 2));
            filters.extend([
                (of.clone(), list),
                (Filter { before, ..of.clone() }, list),
                (Filter { created_before: middle, ..of.clone() }, list),
                (Filter { key: text("k777"), ..of.clone() }, PAGE),
                (Filter { metadata: text("{\"order\":\"A-777\"}"), ..of.clone() }, PAGE),
                (Filter { ids: Some(vec![EffectId::new(5), EffectId::new(9)]), ..of.clone() }, PAGE),
                (Filter { operation: text("nothing"), ..of.clone() }, WINDOW),
                (Filter { error: text("never said"), ..of.clone() }, WINDOW),
                (Filter { metadata: text("{\"country\":\"de\"}"), error: text("never said"), ..of }, WINDOW),
            ]);
        }
    }
    filters
}

#[tokio::test]
async fn nothing_that_people_ask_for_reads_a_table_through() {
    let mut on = Watched::filled().await;
    for (filter, most) in filters() {
        list::effects(&mut on.conn, &filter, NOW).await.unwrap();
        on.took(&format!("{filter:?}"), most);
    }
    for state in [State::Failed, State::InDoubt] {
        chart::causes(&mut on.conn, (state, None), NOW).await.unwrap();
        on.took("causes", WINDOW);
    }
    let many: Vec<EffectId> = (ALL - 1_000..ALL).map(EffectId::new).collect();
    outlook::beside(&mut on.conn, &many).await.unwrap();
    outlook::refusals(&mut on.conn, 1).await.unwrap();
    on.took("what is told of a bulk", PAGE);
    let limit = 50;
    for filter in [
        AuditFilter { limit, ..AuditFilter::default() },
        AuditFilter { limit, who: Some("who7".to_owned()), before: Some(ALL / 2), ..AuditFilter::default() },
        AuditFilter { limit, downstream: Some("mail".to_owned()), ..AuditFilter::default() },
        AuditFilter { limit, effect: Some(EffectId::new(7)), ..AuditFilter::default() },
    ] {
        record::audit(&mut on.conn, &filter).await.unwrap();
        on.took(&format!("{filter:?}"), 5_000);
    }
    for id in [1, 7, 97, ALL - 1].map(EffectId::new) {
        inspect::effect(&mut on.conn, id).await.unwrap().unwrap();
        inspect::attempts(&mut on.conn, id).await.unwrap();
        intent::intents(&mut on.conn, &[id], Look::Whole).await.unwrap();
        on.took("an effect", 5_000);
    }
    let page: Vec<EffectId> = (1..21).map(|n| EffectId::new(n * (ALL / 21))).collect();
    assert!(!intent::intents(&mut on.conn, &page, Look::UpTo(1_000)).await.unwrap().is_empty());
    on.took("what a page of effects carries", 5_000);
    inspect::workers(&mut on.conn, NOW).await.unwrap();
    chart::traffic(&mut on.conn, Timestamp::from_micros(0), Resolution::Hour).await.unwrap();
    for expired in [None, Some(true), Some(false)] {
        let filter = RequestFilter { limit, expired, ..RequestFilter::default() };
        received::requests(&mut on.conn, &filter, NOW).await.unwrap();
    }
    on.took("the rest", 5_000);
    for per in [Resolution::Minute, Resolution::Hour] {
        chart::latencies(&mut on.conn, (Timestamp::from_micros(0), 168), per).await.unwrap();
        on.took("latencies", PAGE);
    }
    // These count what is pending, ten thousand here, and nothing that has ended.
    inspect::counts(&mut on.conn, NOW).await.unwrap();
    on.took("counts", 40 * u64::try_from(ALL / 10).unwrap());
    inspect::downstreams(&mut on.conn, NOW).await.unwrap();
    on.took("downstreams", 40 * u64::try_from(ALL / 10).unwrap());
    assert!(on.complaints.is_empty(), "{}", on.complaints.join("\n"));
}
