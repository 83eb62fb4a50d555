//! `/healthz`, `/readyz` and `/metrics`, for whoever runs this process. A worker serves them, and so does the dashboard.
//!
//! They never say what an effect is about: no ids, no keys, no payloads. The database is asked at most once a second,
//! however many ask us. A dashboard tells its metrics to whom it lets in, and strangers whether it is ready in words that are fixed.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use aftercommit::{
    clock::{Boot, Clock as _, SystemClock},
    engine::{Engine, Stop},
    error::StoreError,
    guard::RequestCounts,
    store::Database,
};
use axum::{
    Json, Router,
    extract::{Request, State},
    http::{Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use crate::{
    access::Visitor,
    metrics::{self, Gauges},
    routes::{Right, Routes},
};

/// Where they are: asked for by address.
pub(crate) const PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// A worker that the database has not let work for this long is not ready; it reports several times as often.
const PULSE_MAX: Duration = Duration::from_secs(30);
/// A database that does not answer a probe within this is not ready.
const PROBE_MAX: Duration = Duration::from_secs(2);
/// The queries behind the gauges may take this long; they read the whole queue.
const GAUGES_MAX: Duration = Duration::from_secs(10);
/// What was asked is good for at least this long.
const FRESH_MIN: Duration = Duration::from_secs(1);
/// Of its time, the database spends at most one part in this many on us.
const SHARE: u32 = 10;

/// What the endpoints look at. It may be served before there is anything to look at: then the process is alive, and not
/// ready.
#[derive(Clone, Default)]
pub struct Operations(Arc<Inner>);

#[derive(Default)]
struct Inner {
    watched: OnceLock<Watched>,
    /// How the requests that this process guards ended, where it guards any.
    requests: OnceLock<Box<dyn Fn() -> RequestCounts + Send + Sync>>,
    /// Why nothing may be sent, if there is something.
    reached: Cached<Result<Option<String>, String>>,
    gauges: Cached<Result<Gauges, String>>,
    /// Calls of the database: none is dropped half-way.
    calls: TaskTracker,
}

struct Watched {
    database: Arc<dyn Database>,
    worker: Option<(Arc<Engine>, Stop)>,
}

impl Operations {
    /// From now on they look at this database and, in a worker, at this engine. The first call counts.
    pub fn watch(&self, database: Arc<dyn Database>, worker: Option<(Arc<Engine>, Stop)>) {
        self.0.watched.set(Watched { database, worker }).ok();
    }

    /// From now on `/metrics` also tells how guarded requests ended. The first call counts.
    pub fn count_requests(&self, counts: impl Fn() -> RequestCounts + Send + Sync + 'static) {
        self.0.requests.set(Box::new(counts)).ok();
    }

    /// How the requests that this process guards ended, where it guards any.
    pub(crate) fn requests(&self) -> Option<RequestCounts> {
        self.0.requests.get().map(|counts| counts())
    }

    /// The endpoints alone, for a process that serves nothing else.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .route("/metrics", get(exposition))
            .with_state(self.clone())
    }
}

/// The endpoints of a dashboard.
pub(crate) fn routes(routes: &mut Routes) {
    routes.add(Method::GET, "/healthz", Right::Public, healthz);
    routes.add_recognizing(Method::GET, "/readyz", readyz_to_anybody);
    routes.add(Method::GET, "/metrics", Right::View, exposition);
}

/// The process is alive; no dependency is asked.
async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(operations): State<Operations>) -> Response {
    told(readiness(&operations.0, Words::All).await)
}

/// A dashboard's: a probe has no credentials, and what the database or a person said is not for everybody.
async fn readyz_to_anybody(State(operations): State<Operations>, request: Request) -> Response {
    let known = request.extensions().get::<Visitor>().is_some();
    told(readiness(&operations.0, if known { Words::All } else { Words::Fixed }).await)
}

fn told((ready, report): (bool, Value)) -> Response {
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CACHE_CONTROL, "no-store")], Json(report)).into_response()
}

/// In which words something is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    /// As the database and people say it.
    All,
    /// In our own, which are the same for everybody.
    Fixed,
}

/// Whether this process does its work, and why not.
async fn readiness(inner: &Inner, words: Words) -> (bool, Value) {
    let Some(watched) = inner.watched.get() else {
        let reasons = ["starting: the database is not open yet"];
        return (false, json!({ "ready": false, "reasons": reasons }));
    };
    let mut reasons = Vec::new();
    let probe =
        || async {
            let database = Arc::clone(&watched.database);
            let hold = within(PROBE_MAX, &inner.calls, "the database did not answer", async move {
                database.hold().await
            });
            hold.await.map(|hold| hold.map(|hold| hold.reason))
        };
    let (reached, age) = inner.reached.get(probe).await;
    if let Err(why) = &*reached {
        reasons.push(match words {
            Words::All => why.clone(),
            Words::Fixed => "the database does not answer".to_owned(),
        });
    }
    let worker = watched.worker.as_ref().map(|(engine, stop)| {
        let pulse = engine.pulse();
        // Only whoever sends is kept from its work by it: the dashboard is needed most now.
        let hold = reached.as_ref().as_ref().ok().and_then(Option::as_ref);
        reasons.extend(hold.map(|reason| on_hold(reason, words)));
        reasons.extend(not_working(pulse.age(), stop.drain.is_cancelled()));
        json!({
            "draining": stop.drain.is_cancelled(),
            "since_claim_s": pulse.since_claim.map(seconds),
            "since_renewal_s": pulse.since_renewal.map(seconds),
        })
    });
    let listener = watched.database.listener_age().map(seconds);
    let report = json!({
        "ready": reasons.is_empty(),
        "reasons": reasons,
        "database": { "reached": reached.is_ok(), "asked_s_ago": seconds(age) },
        "worker": worker,
        // Its absence delays work to the next poll; it does not stop it.
        "listener": { "heard_s_ago": listener },
    });
    (reasons.is_empty(), report)
}

fn on_hold(reason: &str, words: Words) -> String {
    let until = "nothing is sent until somebody runs `aftercommit hold lift`";
    match words {
        Words::All => format!("HOLD: {reason}; {until}"),
        Words::Fixed => format!("HOLD: {until}"),
    }
}

/// What a database answers, if it does so in time. In a task of its own, which goes on to its end: a call that is dropped may leave its
/// connection in a transaction.
async fn within<T: Send + 'static>(
    limit: Duration,
    calls: &TaskTracker,
    late: &str,
    call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(limit, calls.spawn(call)).await {
        Ok(Ok(answer)) => answer.map_err(|problem| problem.to_string()),
        Ok(Err(_panicked)) => Err("the question itself failed".to_owned()),
        Err(_elapsed) => Err(format!("{late} within {} s", limit.as_secs())),
    }
}

/// Why a worker with this pulse does no work.
fn not_working(pulse: Option<Duration>, draining: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    if draining {
        reasons.push("draining: nothing more is claimed".to_owned());
    }
    match pulse {
        None => reasons.push("the worker is not registered with the database yet".to_owned()),
        Some(age) if age > PULSE_MAX => {
            reasons.push(format!("the database last let the worker claim or renew {} s ago", age.as_secs()))
        }
        Some(_) => {}
    }
    reasons
}

async fn exposition(State(operations): State<Operations>) -> Response {
    let inner = &operations.0;
    let watched = inner.watched.get();
    let gauges = match watched {
        None => None,
        Some(watched) => {
            let read = || {
                let database = Arc::clone(&watched.database);
                within(GAUGES_MAX, &inner.calls, "the counts did not come", async move {
                    Gauges::read(&*database).await
                })
            };
            let (read, _) = inner.gauges.get(read).await;
            if let Err(problem) = &*read {
                tracing::warn!(problem, "the metrics lack what only the database knows");
            }
            Some(read)
        }
    };
    let gauges = gauges.as_deref().and_then(|read| read.as_ref().ok());
    let engine = watched.and_then(|watched| watched.worker.as_ref()).map(|(engine, _)| engine.as_ref());
    let pool = watched.map(|watched| watched.database.connections());
    let requests = inner.requests.get().map(|counts| counts());
    match metrics::text(gauges, engine, pool, requests) {
        Ok(text) => {
            let form = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE), (header::CACHE_CONTROL, "no-store")];
            (form, text).into_response()
        }
        Err(problem) => (StatusCode::INTERNAL_SERVER_ERROR, problem.to_string()).into_response(),
    }
}

fn seconds(length: Duration) -> f64 {
    (length.as_secs_f64() * 1_000.0).round() / 1_000.0
}

/// A value that is asked for again once it is a second old, or ten times as old as the asking took. Who comes meanwhile waits
/// for the one that asks.
struct Cached<T>(Mutex<Option<Held<T>>>);

struct Held<T> {
    value: Arc<T>,
    asked: Boot,
    fresh: Duration,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Cached<T> {
    /// The value, and how long ago it was asked for.
    async fn get<F: Future<Output = T>>(&self, ask: impl FnOnce() -> F) -> (Arc<T>, Duration) {
        let mut held = self.0.lock().await;
        if let Some(held) = held.as_ref() {
            let age = SystemClock.boot() - held.asked;
            if age < held.fresh {
                return (held.value.clone(), age);
            }
        }
        let asked = SystemClock.boot();
        let value = Arc::new(ask().await);
        let took = SystemClock.boot() - asked;
        *held = Some(Held { value: value.clone(), asked, fresh: FRESH_MIN.max(took * SHARE) });
        (value, took)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn whoever_asks_within_a_second_gets_what_was_asked_already() {
        let (cached, asked) = (Cached::default(), AtomicU32::new(0));
        let ask = || async { asked.fetch_add(1, Ordering::SeqCst) };
        let answers = [cached.get(ask).await, cached.get(ask).await, cached.get(ask).await];
        assert_eq!(answers.map(|(value, _)| *value), [0, 0, 0]);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_worker_is_ready_when_the_database_lets_it_work() {
        assert!(not_working(Some(Duration::from_secs(5)), false).is_empty());
        assert!(not_working(None, false)[0].contains("not registered"));
        assert!(not_working(Some(Duration::from_secs(31)), false)[0].contains("31 s ago"));
        assert!(not_working(Some(Duration::ZERO), true)[0].contains("draining"));
    }

    #[tokio::test]
    async fn before_there_is_a_database_the_process_is_alive_and_not_ready() {
        let (ready, report) = readiness(&Inner::default(), Words::Fixed).await;
        assert!(!ready && report["reasons"][0].as_str().unwrap().contains("starting"), "{report}");
    }
    #[test]
    fn what_a_person_wrote_is_not_for_everybody() {
        let (all, fixed) = (on_hold("restored by Ann", Words::All), on_hold("restored by Ann", Words::Fixed));
        assert!(
            all.contains("restored by Ann") && !fixed.contains("Ann") && fixed.contains("hold lift"),
            "{fixed}"
        );
    }

    #[tokio::test]
    async fn a_call_that_takes_too_long_goes_on_to_its_end() {
        let (go_on, ended) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
        let (inner, done) = (Arc::clone(&go_on), Arc::clone(&ended));
        let call = async move {
            inner.notified().await;
            done.notify_one();
            Ok(())
        };
        let late = within(Duration::from_millis(10), &TaskTracker::new(), "nothing came", call).await;
        assert_eq!(late, Err("nothing came within 0 s".to_owned()));
        go_on.notify_one();
        tokio::time::timeout(Duration::from_secs(30), ended.notified()).await.expect("it goes on");
    }
}
