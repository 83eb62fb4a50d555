//! Defends: whatever people list, filter, look up or count, no table of any size is read through, and nothing is sorted but a page,
//! or the window that the page says it looked through. PostgreSQL itself tells what it did: `auto_explain` writes the plan of every
//! statement that the store really ran, with the rows of each of its steps, to the log of a server of the test's own. Each is looked
//! at twice: planned for its arguments, and as the plan that is kept for all.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    state::State,
    store::{self, AuditFilter, Database, Filter, Look, Options, RequestFilter, Resolution, SEARCH_WINDOW},
};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::filled::fill;
use crate::e2e::servers::PostgresServer;

const ALL: i64 = 200_000;
/// A page of each state, and two lanes of the queue that hold few and are taken whole.
const PAGE: u64 = 4_600;
/// What a page may look through of each of the states where no index serves.
const WINDOW: u64 = 4 * SEARCH_WINDOW as u64;
/// Before the index of metadata is asked: the newest thousand of each state, and ten thousand of the queue.
const FIRST: u64 = 12_500;
const BIG: [&str; 5] = ["effects", "outcomes", "queue", "attempts", "audit"];
const SERVER: &[&str] =
    &["autovacuum=off", "fsync=off", "shared_buffers=512MB", "maintenance_work_mem=256MB"];

#[test]
fn no_statement_of_people_reads_a_table_through_or_sorts_more_than_a_page() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let folder =
            tempfile::Builder::new().prefix("aftercommit-test.").tempdir().expect("a scratch folder");
        let server = PostgresServer::start_with(folder.path(), SERVER).await;
        let url = server.url("postgres");
        store::migrate(&url, Some("test")).await.expect("migrate makes the schema");
        fill(&url, &connect(&url).await, ALL).await;
        let settings = [
            ("session_preload_libraries", "auto_explain"),
            ("auto_explain.log_min_duration", "0"),
            ("auto_explain.log_format", "json"),
            ("auto_explain.log_analyze", "on"),
            ("auto_explain.log_timing", "off"),
            ("auto_explain.log_nested_statements", "on"),
            ("plan_cache_mode", "force_custom_plan"),
        ];
        for (name, value) in settings {
            set(&url, name, value).await;
        }
        let mut complaints = looked_at(&server, connect(&url).await).await;
        set(&url, "plan_cache_mode", "force_generic_plan").await;
        complaints.extend(looked_at(&server, connect(&url).await).await);
        assert!(complaints.is_empty(), "{}", complaints.join("\n\n"));
    });
}

async fn connect(url: &str) -> Arc<dyn Database> {
    store::connect(url, &Options { max_connections: 2, ..Options::default() })
        .await
        .expect("the store connects")
}

async fn set(url: &str, name: &str, value: &str) {
    let mut connection = PgConnection::connect(url).await.expect("the server answers");
    let sql = AssertSqlSafe(format!("ALTER DATABASE postgres SET {name} = '{value}'"));
    sqlx::raw_sql(sql).execute(&mut connection).await.expect("a superuser may");
}

/// Every look, and what is wrong with its plans.
async fn looked_at(server: &PostgresServer, store: Arc<dyn Database>) -> Vec<String> {
    let store = store.as_ref();
    let mut complaints = Vec::new();
    let mut log = 0;
    server.logged_since(&mut log);
    for (filter, most) in filters(store).await {
        store.effects(&filter).await.expect("a page");
        complaints.extend(wrong(server, &mut log, &format!("{filter:?}"), most));
    }
    for state in [State::Failed, State::InDoubt] {
        for downstream in [None, Some("pay"), Some("tax")] {
            store.causes(state, downstream).await.expect("causes");
            // Each is read with its last attempt.
            complaints.extend(wrong(server, &mut log, &format!("causes {state} {downstream:?}"), WINDOW));
        }
    }
    for filter in audits() {
        store.audit(&filter).await.expect("rows");
        complaints.extend(wrong(server, &mut log, &format!("{filter:?}"), 200));
    }
    for id in [1, 7, 97, ALL / 2, ALL - 3].map(EffectId::new) {
        store.effect(id).await.expect("readable");
        store.attempts(id).await.expect("readable");
        store.intent(id, Look::Whole).await.expect("readable");
        complaints.extend(wrong(server, &mut log, &format!("effect {id}"), 20));
    }
    let page: Vec<EffectId> = (1..21).map(|n| EffectId::new(n * (ALL / 21))).collect();
    assert!(!store.intents(&page, Look::UpTo(1_000)).await.expect("readable").is_empty());
    complaints.extend(wrong(server, &mut log, "what a page of effects carries", 40));
    let since = store.now().await.expect("a clock").minus(Duration::from_secs(7 * 86_400));
    store.traffic(since, Resolution::Hour).await.expect("readable");
    for (bars, per) in [(168, Resolution::Hour), (60, Resolution::Minute)] {
        store.latencies(since, bars, per).await.expect("readable");
    }
    store.workers().await.expect("readable");
    store.bulks(50).await.expect("readable");
    store.hold().await.expect("readable");
    store.endpoints("pay").await.expect("readable");
    for expired in [None, Some(true), Some(false)] {
        let filter = RequestFilter { limit: 50, expired, ..RequestFilter::default() };
        store.requests(&filter).await.expect("readable");
    }
    complaints.extend(wrong(server, &mut log, "the rest", 20_000));
    store.examine().await.expect("readable");
    complaints.extend(wrong(server, &mut log, "a doctor", WINDOW));
    // These count what is pending. They read the queue, thin as it is, once each, and nothing else of any size; the dashboard
    // has one task run them for everybody.
    for counts in [true, false] {
        if counts {
            store.counts().await.expect("readable");
        } else {
            store.downstreams().await.expect("readable");
        }
        let found = wrong(server, &mut log, "counting", u64::MAX);
        assert!(found.len() == 1 && found[0].contains("queue"), "{found:#?}");
    }
    complaints
}

/// What is wrong with the plans that were logged since `log`: of every step at most so many rows.
fn wrong(server: &PostgresServer, log: &mut u64, look: &str, most: u64) -> Vec<String> {
    let text = server.logged_since(log);
    let plans = plans(&text);
    assert!(!plans.is_empty(), "{look} has run no statement that was explained: {text}");
    let mut complaints = Vec::new();
    for plan in &plans {
        let mut found = Vec::new();
        judge(&plan["Plan"], most, &mut found);
        if !found.is_empty() {
            complaints.push(format!("{look}:\n{}\nin {}", found.join("\n"), plan["Query Text"]));
        }
    }
    complaints
}

/// The plans in a piece of a log: each stands behind its line, in lines that begin with a tab.
fn plans(log: &str) -> Vec<Value> {
    let mut plans = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with("plan:") {
            continue;
        }
        let mut plan = String::new();
        while let Some(line) = lines.peek().and_then(|line| line.strip_prefix('\t')) {
            plan.push_str(line);
            lines.next();
        }
        plans.push(serde_json::from_str(&plan).unwrap_or_else(|problem| panic!("{problem}: {plan}")));
    }
    plans
}

/// A step of a plan and those below it.
fn judge(step: &Value, most: u64, found: &mut Vec<String>) {
    let number = |step: &Value, name: &str| step[name].as_u64().unwrap_or(0);
    let loops = number(step, "Actual Loops");
    let given = |step: &Value| number(step, "Actual Rows") * number(step, "Actual Loops");
    let below = step["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    let kind = step["Node Type"].as_str().unwrap_or_default();
    let table = step["Relation Name"].as_str().unwrap_or_default();
    if BIG.contains(&table) && loops > 0 {
        let passed = ["Rows Removed by Filter", "Rows Removed by Index Recheck"]
            .map(|name| number(step, name) * loops);
        let read = given(step) + passed.iter().sum::<u64>();
        if kind == "Seq Scan" {
            found.push(format!("{table} is read through: {read} rows"));
        } else if read > most {
            found.push(format!("{kind} of {table} reads {read} rows, more than {most}"));
        }
    }
    if kind.ends_with("Sort") {
        let sorted: u64 = below.iter().map(given).sum();
        if sorted > most {
            found.push(format!("{kind} by {} of {sorted} rows, more than {most}", step["Sort Key"]));
        }
    }
    below.iter().for_each(|step| judge(step, most, found));
}

/// Everything that the pages and the API let somebody ask for, and how many rows any step may see of a table.
async fn filters(store: &dyn Database) -> Vec<(Filter, u64)> {
    let all = || Filter { limit: 50, ..Filter::default() };
    let text = |text: &str| Some(text.to_owned());
    let middle = || Some(EffectId::new(ALL / 2));
    let written =
        store.effect(EffectId::new(ALL / 2)).await.expect("readable").expect("it is there").created_at;
    let hour = Duration::from_secs(3_600);
    let pending = vec![State::Ready, State::Scheduled, State::Retrying, State::Waiting];
    let mut states: Vec<Vec<State>> = State::ALL.iter().map(|state| vec![*state]).collect();
    states.extend([vec![], vec![State::Failed, State::InDoubt], pending, State::ALL.to_vec()]);
    let mut filters = Vec::new();
    for states in states {
        for downstream in [None, text("pay"), text("tax")] {
            let of = Filter { states: states.clone(), downstream, ..all() };
            let around = Filter {
                created_before: Some(written),
                created_after: Some(written.minus(hour)),
                ..of.clone()
            };
            let order = text("{\"order\":\"A-777\"}");
            filters.extend([
                (Filter { before: middle(), ..of.clone() }, PAGE),
                (around, PAGE),
                (Filter { key: text("order-777/charge"), ..of.clone() }, PAGE),
                (Filter { metadata: order, ..of.clone() }, FIRST),
                (Filter { ids: Some(vec![EffectId::new(5), EffectId::new(9)]), ..of.clone() }, PAGE),
                (of, PAGE),
            ]);
        }
        if matches!(
            states.as_slice(),
            [] | [State::Failed | State::InDoubt | State::Ready | State::Succeeded]
        ) {
            for downstream in [None, text("pay")] {
                let of = Filter { states: states.clone(), downstream, ..all() };
                let everywhere = text("{\"country\":\"de\"}");
                filters.extend([
                    (Filter { operation: text("refund"), ..of.clone() }, WINDOW),
                    (Filter { operation: text("nothing"), ..of.clone() }, WINDOW),
                    (Filter { error: text("never said"), ..of.clone() }, WINDOW),
                    (Filter { metadata: everywhere, error: text("never said"), ..of }, WINDOW),
                ]);
            }
        }
    }
    filters
}

fn audits() -> Vec<AuditFilter> {
    let all = AuditFilter { limit: 50, ..AuditFilter::default() };
    let text = |text: &str| Some(text.to_owned());
    vec![
        all.clone(),
        AuditFilter { before: Some(1_000), ..all.clone() },
        AuditFilter { who: text("who7"), ..all.clone() },
        AuditFilter { downstream: text("mail"), before: Some(1_000), ..all.clone() },
        AuditFilter { effect: Some(EffectId::new(7)), ..all },
    ]
}
