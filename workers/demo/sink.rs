//! Downstreams to play with: one that honours `Idempotency-Key` as payment processors do, one that cannot deduplicate.
//! Both fail on request: a payload with `"fail": "timeout" | "500" | "429" | "decline" | "reset"` fails the first call of
//! its key in that way.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future, io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aftercommit::clock::{Boot, Clock as _, SystemClock};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::fault::{FAIL_WORDS, Fault, fault_of};

/// Whether a sink recognises a key that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// One application per key; a repetition is answered with the stored answer.
    HonoursKeys,
    /// Every call is carried out.
    Forgetful,
}

/// A downstream, and its memory of what it was asked.
pub(super) struct Sink {
    memory: Memory,
    /// What objects are called in answers: `ch`, `msg`.
    prefix: &'static str,
    /// How long a call with `"fail": "timeout"` takes.
    slow: Duration,
    trap: Trap,
    /// Shared by the handlers of all connections.
    ledger: Mutex<Ledger>,
}

/// Holds back one answer after the effect was applied, and says so: the moment at which a worker is killed.
struct Trap {
    /// Applications left until it springs; 0 is disarmed.
    countdown: AtomicUsize,
    sprung: Notify,
}

#[derive(Default)]
struct Ledger {
    calls: u64,
    /// Applications by key, in the order of keys.
    applied: BTreeMap<String, u64>,
    keys: BTreeSet<String>,
    stored: HashMap<String, Stored>,
    /// Keys whose requested failure has happened.
    failed: BTreeSet<String>,
    serial: u64,
}

/// What is remembered under a key.
struct Stored {
    fingerprint: [u8; 32],
    /// In progress until then.
    ready_at: Boot,
    status: StatusCode,
    answer: Value,
}

/// What is to be done about a call.
enum Verdict {
    /// Answer at once.
    Answer(StatusCode, Value),
    /// Answer at once, with the stored answer.
    Replay(StatusCode, Value),
    /// It was applied; answer in this way.
    Applied(Fault, Value),
}

/// What a sink saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct Seen {
    /// Requests.
    pub(super) calls: u64,
    /// Times it did something.
    pub(super) applications: u64,
    /// Different keys.
    pub(super) keys: u64,
    /// The most often that it did something under one key.
    pub(super) most_per_key: u64,
}

impl Sink {
    /// A sink whose slow calls take `slow`.
    pub(super) fn new(memory: Memory, prefix: &'static str, slow: Duration) -> Arc<Self> {
        let trap = Trap { countdown: AtomicUsize::new(0), sprung: Notify::new() };
        Arc::new(Self { memory, prefix, slow, trap, ledger: Mutex::default() })
    }

    /// Its routes: POST anywhere, GET `/` for what it saw.
    pub(super) fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/", get(look).post(receive))
            .route("/{*path}", post(receive))
            .with_state(Arc::clone(self))
    }

    /// From now on, the answer to application number `nth` is held back for ever.
    pub(super) fn arm(&self, nth: usize) {
        self.trap.countdown.store(nth, Ordering::SeqCst);
    }

    /// Waits until an answer is held back.
    pub(super) async fn sprung(&self) {
        self.trap.sprung.notified().await;
    }

    /// What it saw so far.
    pub(super) fn seen(&self) -> Seen {
        let ledger = self.ledger();
        Seen {
            calls: ledger.calls,
            applications: ledger.applied.values().sum(),
            keys: u64::try_from(ledger.keys.len()).unwrap_or(u64::MAX),
            most_per_key: ledger.applied.values().copied().max().unwrap_or(0),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("nobody panics while holding the ledger")
    }

    fn judge(&self, key: Option<&str>, body: &[u8], now: Boot) -> Verdict {
        let mut ledger = self.ledger();
        ledger.calls += 1;
        let fault = match fault_of(body) {
            Ok(fault) => fault,
            Err(unknown) => {
                let message = format!("\"fail\" is {unknown:?} and may be {FAIL_WORDS}");
                let answer = error("invalid_request_error", "unknown_fail_word", &message);
                return Verdict::Answer(StatusCode::BAD_REQUEST, answer);
            }
        };
        let Some(key) = key else {
            if self.memory == Memory::HonoursKeys {
                return Verdict::Answer(
                    StatusCode::BAD_REQUEST,
                    error(
                        "invalid_request_error",
                        "parameter_missing",
                        "an Idempotency-Key is required here",
                    ),
                );
            }
            return self.apply(&mut ledger, "(no key)", (body, fault), now);
        };
        ledger.keys.insert(key.to_owned());
        if let Some(stored) = ledger.stored.get(key) {
            return stored.verdict(body, now);
        }
        self.apply(&mut ledger, key, (body, fault), now)
    }

    fn apply(&self, ledger: &mut Ledger, key: &str, (body, asked): (&[u8], Fault), now: Boot) -> Verdict {
        let fault = if ledger.failed.insert(key.to_owned()) { asked } else { Fault::None };
        match fault {
            Fault::TooMany => {
                return Verdict::Answer(
                    StatusCode::TOO_MANY_REQUESTS,
                    error("rate_limit_error", "rate_limit", "slow down, please"),
                );
            }
            Fault::ServerError => {
                return Verdict::Answer(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    error("api_error", "api_error", "something broke here before it began"),
                );
            }
            Fault::Decline => {
                let answer = error("card_error", "card_declined", "refused, and that is final");
                let status = StatusCode::PAYMENT_REQUIRED;
                self.remember(ledger, key, Stored::new(body, now, status, answer.clone()));
                return Verdict::Answer(status, answer);
            }
            Fault::None | Fault::Timeout | Fault::Reset => {}
        }
        ledger.serial += 1;
        *ledger.applied.entry(key.to_owned()).or_default() += 1;
        let answer = self.object(ledger.serial, body);
        let ready_at = if fault == Fault::Timeout { now.plus(self.slow) } else { now };
        self.remember(ledger, key, Stored::new(body, ready_at, StatusCode::OK, answer.clone()));
        Verdict::Applied(fault, answer)
    }

    fn remember(&self, ledger: &mut Ledger, key: &str, stored: Stored) {
        if self.memory == Memory::HonoursKeys {
            ledger.stored.insert(key.to_owned(), stored);
        }
    }

    fn object(&self, serial: u64, body: &[u8]) -> Value {
        let sent: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let mut object = json!({ "id": format!("{}_{serial}", self.prefix), "status": "succeeded" });
        for field in ["amount", "currency", "to"] {
            if let Some(value) = sent.get(field) {
                object[field] = value.clone();
            }
        }
        object
    }

    /// Whether this application's answer is the one to hold back.
    fn springs(&self) -> bool {
        let count =
            self.trap.countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        count == Ok(1)
    }
}

impl Stored {
    fn new(body: &[u8], ready_at: Boot, status: StatusCode, answer: Value) -> Self {
        Self { fingerprint: Sha256::digest(body).into(), ready_at, status, answer }
    }

    fn verdict(&self, body: &[u8], now: Boot) -> Verdict {
        let fingerprint: [u8; 32] = Sha256::digest(body).into();
        if fingerprint != self.fingerprint {
            return Verdict::Answer(
                StatusCode::BAD_REQUEST,
                error("idempotency_error", "idempotency_error", "this key was used with another request"),
            );
        }
        if now < self.ready_at {
            return Verdict::Answer(
                StatusCode::CONFLICT,
                error(
                    "invalid_request_error",
                    "idempotency_key_in_use",
                    "the first request is still running",
                ),
            );
        }
        Verdict::Replay(self.status, self.answer.clone())
    }
}

async fn receive(State(sink): State<Arc<Sink>>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok());
    match sink.judge(key, &body, SystemClock.boot()) {
        Verdict::Answer(StatusCode::TOO_MANY_REQUESTS, answer) => {
            (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], Json(answer)).into_response()
        }
        Verdict::Answer(status, answer) => (status, Json(answer)).into_response(),
        Verdict::Replay(status, answer) => {
            (status, [("idempotent-replayed", "true")], Json(answer)).into_response()
        }
        Verdict::Applied(fault, answer) => {
            if sink.springs() {
                sink.trap.sprung.notify_one();
                future::pending::<()>().await;
            }
            match fault {
                Fault::Timeout => tokio::time::sleep(sink.slow).await,
                Fault::Reset => return broken(),
                Fault::None | Fault::ServerError | Fault::TooMany | Fault::Decline => {}
            }
            Json(answer).into_response()
        }
    }
}

async fn look(State(sink): State<Arc<Sink>>) -> Response {
    let seen = sink.seen();
    let applied = sink.ledger().applied.clone();
    Json(json!({ "seen": seen, "applications_by_key": applied })).into_response()
}

/// An answer that ends before it began: the connection is torn down in the middle.
fn broken() -> Response {
    let reset = io::Error::from(io::ErrorKind::ConnectionReset);
    let body = Body::from_stream(futures_util::stream::once(future::ready(Err::<Bytes, _>(reset))));
    (StatusCode::OK, [(header::CONTENT_LENGTH, "64")], body).into_response()
}

fn error(kind: &str, code: &str, message: &str) -> Value {
    json!({ "error": { "type": kind, "code": code, "message": message } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(verdict: &Verdict) -> (u16, bool) {
        match verdict {
            Verdict::Answer(status, _) => (status.as_u16(), false),
            Verdict::Replay(status, _) => (status.as_u16(), true),
            Verdict::Applied(..) => (200, false),
        }
    }

    #[test]
    fn a_sink_that_honours_keys_applies_once_and_replays() {
        let sink = Sink::new(Memory::HonoursKeys, "ch", Duration::from_secs(5));
        let now = SystemClock.boot();
        assert_eq!(status(&sink.judge(Some("k"), b"{}", now)), (200, false));
        assert_eq!(status(&sink.judge(Some("k"), b"{}", now)), (200, true));
        assert_eq!(status(&sink.judge(Some("k"), b"{ }", now)), (400, false));
        assert_eq!(status(&sink.judge(None, b"{}", now)), (400, false));
        assert_eq!(sink.seen(), Seen { calls: 4, applications: 1, keys: 1, most_per_key: 1 });
    }

    #[test]
    fn a_slow_call_is_in_progress_until_it_is_done() {
        let sink = Sink::new(Memory::HonoursKeys, "ch", Duration::from_secs(5));
        let now = SystemClock.boot();
        let body = br#"{"fail":"timeout"}"#;
        assert_eq!(status(&sink.judge(Some("k"), body, now)), (200, false));
        assert_eq!(status(&sink.judge(Some("k"), body, now)), (409, false));
        assert_eq!(status(&sink.judge(Some("k"), body, now.plus(Duration::from_secs(6)))), (200, true));
        assert_eq!(sink.seen().applications, 1);
    }

    #[test]
    fn a_requested_failure_happens_once_per_key() {
        for (asked, first) in [("500", 500), ("429", 429)] {
            let sink = Sink::new(Memory::HonoursKeys, "ch", Duration::from_secs(5));
            let body = format!(r#"{{"fail":"{asked}"}}"#);
            let now = SystemClock.boot();
            assert_eq!(status(&sink.judge(Some("k"), body.as_bytes(), now)).0, first);
            assert_eq!(status(&sink.judge(Some("k"), body.as_bytes(), now)).0, 200);
        }
    }

    #[test]
    fn an_unknown_word_is_refused_with_the_list_and_applies_nothing() {
        for memory in [Memory::HonoursKeys, Memory::Forgetful] {
            let sink = Sink::new(memory, "x", Duration::from_secs(5));
            let verdict = sink.judge(Some("k"), br#"{"fail":"tiemout"}"#, SystemClock.boot());
            let Verdict::Answer(status, answer) = verdict else { panic!("it was applied") };
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(answer.to_string().contains("decline or reset"), "{answer}");
            assert_eq!(sink.seen().applications, 0);
        }
    }

    #[test]
    fn a_forgetful_sink_applies_every_call() {
        let sink = Sink::new(Memory::Forgetful, "msg", Duration::from_secs(5));
        let now = SystemClock.boot();
        for _ in 0..3 {
            assert_eq!(status(&sink.judge(Some("k"), b"{}", now)), (200, false));
        }
        assert_eq!(sink.seen(), Seen { calls: 3, applications: 3, keys: 1, most_per_key: 3 });
    }

    #[test]
    fn the_trap_springs_once_at_the_application_it_was_set_for() {
        let sink = Sink::new(Memory::Forgetful, "msg", Duration::from_secs(5));
        assert!(!sink.springs());
        sink.arm(2);
        assert!(!sink.springs() && sink.springs() && !sink.springs());
    }
}
