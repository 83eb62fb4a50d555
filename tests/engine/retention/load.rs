//! The load: effects of every fate at a gentle rate, workers that are restarted with another configuration, people who act,
//! and a count of every table, second by second.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::{
    contract::OnUnknown,
    downstream::Served,
    outcome::{About, Finding, Outcome, Phase},
    state::State,
    store::{Filter, Retention},
    verb::{Actor, Verb},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{Running, at_once, config, refused_connection, served, unknown},
    Shared,
    probe::{self, Probes},
};
use crate::support::{Chance, Engine, Script, Scripted, Sql, TestDatabase, answer, key_terms, none_terms};

/// How long, how much, what is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) lasts: Duration,
    pub(super) per_second: u32,
    pub(super) retention: Retention,
    /// Workers are restarted, each time with another configuration.
    pub(super) restart_every: Duration,
}

/// Rows by table, some time after the start.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Sample {
    pub(super) at_s: f64,
    pub(super) rows: BTreeMap<String, i64>,
}

/// What a run saw.
pub(super) struct Load {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) enqueued: u64,
    pub(super) restarts: u32,
    pub(super) samples: Vec<Sample>,
    pub(super) probes: Probes,
    /// Everything but what is still unfinished, once the load had ended and keys had passed.
    pub(super) left: BTreeMap<String, i64>,
    pub(super) in_doubt: i64,
}

impl Load {
    pub(super) async fn run(db: &TestDatabase, plan: Plan, mut chance: Chance) -> Self {
        let seed = chance.seed();
        let (stop, samples) = (CancellationToken::new(), Shared::<Vec<Sample>>::default());
        let (enqueued, probes) = (Shared::<u64>::default(), Shared::<Probes>::default());
        let sql = Arc::new(clone(&db.sql));
        let mut restarts = 0;
        let (writing, counting) = (chance.fork(), sql.clone());
        let mut deploying = chance.fork();
        let deploy = async {
            let end = Instant::now() + plan.lasts;
            while Instant::now() < end {
                let worker = start(db, plan, restarts, deploying.fork());
                tokio::time::sleep_until((Instant::now() + plan.restart_every).min(end)).await;
                restarts += 1;
                worker.drain().await;
            }
            stop.cancel();
        };
        tokio::join!(
            deploy,
            enqueue(sql.clone(), plan, writing, (stop.clone(), enqueued.clone())),
            sample(counting, plan, (stop.clone(), samples.clone())),
            people(db.another_store().await, plan, (stop.clone(), chance.fork())),
            probe::run(sql.clone(), plan, (stop.clone(), probes.clone())),
        );
        let left = settle_down(db, plan, restarts, chance).await;
        let in_doubt = db.sql.number("SELECT count(*) FROM aftercommit.queue").await;
        let enqueued = *enqueued.lock().unwrap();
        let samples = std::mem::take(&mut *samples.lock().unwrap());
        let probes = std::mem::take(&mut *probes.lock().unwrap());
        Self { plan, seed, enqueued, restarts, samples, probes, left, in_doubt }
    }

    /// Every table: in the second half it never has many more rows than it had in the first, once keys were first dropped;
    /// what there may be of effects follows from the rate.
    pub(super) fn check(&self) {
        let plan = &self.plan;
        assert!(
            self.restarts >= 3 && self.enqueued > plan.lasts.as_secs() * 5,
            "a load of {}",
            self.enqueued
        );
        let (first, second) = (self.most(self.warm(), self.half()), self.most(self.half(), f64::MAX));
        let per_second = f64::from(plan.per_second);
        for (table, most) in &second {
            let before = first.get(table).copied().unwrap_or(0);
            assert!(*most <= before * 3 / 2 + 60, "{table} grows: {before} rows, later {most}\n{second:?}");
        }
        let of =
            |table: &str| second.iter().find(|(name, _)| name.ends_with(table)).map_or(0, |(_, rows)| *rows);
        let seconds = plan.retention.keys.as_secs_f64() * 1.25 + 3.0;
        for table in ["effects", "outcomes", "audit", "attempts"] {
            #[expect(clippy::cast_possible_truncation, reason = "a few thousand rows")]
            let bound = (per_second * 1.2 * seconds) as i64 + i64::try_from(self.probes.keys).unwrap_or(0);
            assert!(of(table) <= bound, "{table}: {} rows, at most {bound} were expected", of(table));
        }
        assert_eq!(of("schema_version"), i64::from(aftercommit::store::SCHEMA_VERSION));
        // Traffic is kept for a day, by minute and hour: of two downstreams, each with four ways to end.
        let minutes = i64::try_from((plan.lasts + patience(plan)).as_secs() / 60).unwrap_or(0) + 2;
        let traffic = 2 * 4 * (minutes + 2);
        for (table, rows) in &self.left {
            let bound = match table.rsplit(['.', '_']).next() {
                // What is in doubt stays, with its log and what was done to it, and so do the terms it was sent under.
                Some("effects" | "queue") => self.in_doubt,
                Some("terms") => self.in_doubt + 30,
                Some("attempts" | "audit") => self.in_doubt * 20,
                Some("outcomes" | "claims" | "workers") => 0,
                Some("traffic") => traffic,
                _ => 30,
            };
            assert!(*rows <= bound, "{table}: {rows} rows are left, {} are in doubt", self.in_doubt);
        }
        self.probes.check();
    }

    fn warm(&self) -> f64 {
        (self.plan.retention.keys.as_secs_f64() * 1.3).min(self.plan.lasts.as_secs_f64() / 3.0)
    }

    fn half(&self) -> f64 {
        f64::midpoint(self.warm(), self.plan.lasts.as_secs_f64())
    }

    pub(super) fn most(&self, from: f64, to: f64) -> BTreeMap<String, i64> {
        let mut most = BTreeMap::<String, i64>::new();
        for sample in self.samples.iter().filter(|sample| sample.at_s >= from && sample.at_s < to) {
            for (table, rows) in &sample.rows {
                let most = most.entry(table.clone()).or_default();
                *most = (*most).max(*rows);
            }
        }
        assert!(!most.is_empty(), "no table was counted between {from} s and {to} s");
        most
    }
}

/// The same pool once more.
fn clone(sql: &Sql) -> Sql {
    match sql {
        Sql::Postgres(pool) => Sql::Postgres(pool.clone()),
        Sql::Sqlite(pool) => Sql::Sqlite(pool.clone()),
    }
}

/// A worker of the n-th deployment.
fn start(db: &TestDatabase, plan: Plan, deployment: u32, mut chance: Chance) -> Running {
    let fates = Scripted::by(move |_| match chance.below(100) {
        0..80 => Script::Answer(answer(200, r#"{"id": "ch_1", "amount": 1500}"#)),
        80..88 => Script::Answer(Outcome::new(
            Finding::Rejected(About::ThisAttempt),
            Phase::Done,
            "402: card declined",
        )),
        88..95 => Script::Answer(unknown()),
        _ => Script::Answer(refused_connection()),
    });
    let request = |mut of: Served| {
        of.terms.request_sha256 = [u8::try_from(deployment % 250).unwrap_or(0); 32];
        // What is in doubt may be resolved half a second after its deadline.
        of.terms.contract.margin = Duration::from_millis(500);
        // A worker sweeps, and folds counters, once a lease has passed since it started.
        (of.terms.timeout, of.lease) = (Duration::from_millis(500), Duration::from_millis(2500));
        of
    };
    let downstreams = vec![
        request(served("pay", &fates, at_once(key_terms()))),
        request(served("mail", &fates, at_once(none_terms(OnUnknown::Hold)))),
    ];
    let config = aftercommit::engine::Config {
        retention: Some(plan.retention),
        ..config(&format!("worker-{deployment}"))
    };
    let clock = Arc::new(aftercommit::clock::SystemClock);
    let engine = aftercommit::engine::Engine::new(db.store.clone(), downstreams, config, clock);
    Running::start(engine.expect("the settings fit"))
}

type Until<T> = (CancellationToken, Shared<T>);

/// Effects in one transaction.
const EACH: u32 = 4;

/// Writes effects as applications do, some of which are scheduled, expire, or are cancelled later.
async fn enqueue(sql: Arc<Sql>, plan: Plan, mut chance: Chance, (stop, enqueued): Until<u64>) {
    // A few in each transaction: one connection's commits are slower than the load that is wanted.
    let mut tick = tokio::time::interval(Duration::from_secs(EACH.into()) / plan.per_second);
    let begin = if sql.engine() == Engine::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
    while !stop.is_cancelled() {
        tick.tick().await;
        let inserts: Vec<String> = (0..EACH).map(|_| insert(sql.engine(), &mut chance)).collect();
        sql.execute(&format!("{begin}; {}; COMMIT", inserts.join("; "))).await;
        *enqueued.lock().unwrap() += u64::from(EACH);
    }
}

fn insert(engine: Engine, chance: &mut Chance) -> String {
    let soon = engine.after(engine.now(), chance.millis(1500));
    let (columns, values) = match chance.below(20) {
        0 => (", due_at", format!(", {soon}")),
        1 => (", due_at, expires_at", format!(", {soon}, {soon}")),
        _ => ("", String::new()),
    };
    let downstream = if chance.percent(90) { "pay" } else { "mail" };
    let filler = "x".repeat(usize::try_from(chance.below(600)).unwrap_or(0));
    let key = format!("load-{}", chance.next());
    format!(
        r#"INSERT INTO aftercommit.effects (downstream, idempotency_key, payload{columns}) VALUES ('{downstream}', '{key}', '{{"order": "{key}", "text": "{filler}"}}'{values})"#
    )
}

/// Counts every table that there is.
async fn count(sql: &Sql) -> BTreeMap<String, i64> {
    let names = match sql.engine() {
        Engine::Postgres => {
            "SELECT 'aftercommit.' || relname AS name FROM pg_class WHERE relnamespace = 'aftercommit'::regnamespace AND relkind = 'r'"
        }
        Engine::Sqlite => "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'aftercommit%'",
    };
    let mut rows = BTreeMap::new();
    for row in sql.rows(names).await {
        let name = row["name"].clone().expect("a name");
        rows.insert(name.clone(), sql.number(&format!("SELECT count(*) FROM {name}")).await);
    }
    rows
}

async fn sample(sql: Arc<Sql>, plan: Plan, (stop, samples): Until<Vec<Sample>>) {
    let began = Instant::now();
    let mut tick = tokio::time::interval((plan.lasts / 120).max(Duration::from_millis(250)));
    while !stop.is_cancelled() {
        tick.tick().await;
        let rows = count(&sql).await;
        samples.lock().unwrap().push(Sample { at_s: began.elapsed().as_secs_f64(), rows });
    }
}

/// People retry, redact, cancel and resolve what they find.
async fn people(
    store: Arc<dyn aftercommit::store::Database>,
    plan: Plan,
    (stop, mut chance): (CancellationToken, Chance),
) {
    let mika = Actor { who: "mika".to_owned(), reason: Some("looked at it".to_owned()), ..Actor::default() };
    let choices = [
        (State::Failed, Verb::Retry),
        (State::Failed, Verb::Redact),
        (State::Succeeded, Verb::Redact),
        (State::Scheduled, Verb::Cancel),
        (State::InDoubt, Verb::ResolveApplied { response: Some("{}".to_owned()) }),
        (State::InDoubt, Verb::ResolveNotApplied),
        (State::InDoubt, Verb::ResolveApplied { response: None }),
    ];
    let mut tick = tokio::time::interval(Duration::from_secs(4) / plan.per_second);
    while !stop.is_cancelled() {
        tick.tick().await;
        // Nothing else ends what is in doubt, and what has not ended stays.
        let doubtful = Filter { states: vec![State::InDoubt], limit: 20, ..Filter::default() };
        for effect in store.effects(&doubtful).await.expect("a page is readable").effects {
            let verb = if chance.percent(50) {
                Verb::ResolveNotApplied
            } else {
                Verb::ResolveApplied { response: None }
            };
            store.act(effect.id, &verb, &mika, None).await.expect("acting works");
        }
        let (state, verb) = &choices[usize::try_from(chance.below(7)).unwrap_or(0)];
        let filter = Filter { states: vec![*state], limit: 20, ..Filter::default() };
        let found = store.effects(&filter).await.expect("a page is readable").effects;
        let Some(effect) = found.get(usize::try_from(chance.below(20)).unwrap_or(0)) else { continue };
        // Refused or gone meanwhile: that is what people are told, too.
        store.act(effect.id, verb, &mika, None).await.expect("acting works");
    }
}

/// How long what has ended may take to go, after the load.
fn patience(plan: &Plan) -> Duration {
    plan.retention.keys * 3 + Duration::from_secs(30)
}

/// After the load: a worker goes on until the keys of everything that has ended are gone, but for what is in doubt.
async fn settle_down(
    db: &TestDatabase,
    plan: Plan,
    deployment: u32,
    chance: Chance,
) -> BTreeMap<String, i64> {
    let worker = start(db, plan, deployment, chance);
    let gone = async || (db.sql.number("SELECT count(*) FROM aftercommit.outcomes").await == 0).then_some(());
    crate::support::eventually(patience(&plan), "the keys of everything that has ended go", gone).await;
    worker.drain().await;
    db.store.maintain().await.expect("counters are folded");
    count(&db.sql).await
}
