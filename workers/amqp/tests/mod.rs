//! The kind against its contract: messages as they are rendered, and brokers that behave as badly as they can.

mod broker;
mod confirms;
mod connecting;
mod losses;
mod poison;
mod rendering;
mod settings;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    clock::Timestamp,
    downstream::{Attempt, Closed, Downstream, Gate, Served},
    effect::{Effect, EffectId},
    outcome::{Finding, Outcome, Phase},
};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use self::broker::Broker;
use crate::config::{ConfigError, Settings, Sources};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gate that says what it was made with, and counts who asked.
struct Fixed(Result<(), Closed>, AtomicUsize);

impl Gate for Fixed {
    fn may_begin(&self) -> Result<(), Closed> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0
    }
}

fn effect() -> Effect {
    Effect {
        payload: Some(r#"{"amount":1500}"#.to_owned()),
        ..Effect::new(
            EffectId::new(17),
            "orders",
            "order-17/placed",
            Timestamp::from_micros(1_700_000_000_999_999),
        )
    }
}

/// Settings with one downstream `orders`, whose table is `toml`.
fn settings(toml: &str) -> Result<Settings, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.orders]\nkind = \"amqp\"\n{toml}"
    );
    std::fs::write(&file, text).unwrap();
    let env = vec![
        ("WHOLE".to_owned(), "amqp://shop:sekret-password@127.0.0.1:1/%2f".to_owned()),
        ("PASSWORD".to_owned(), "sekret-password".to_owned()),
    ];
    Settings::load(&Sources { file: Some(file), env, ..Sources::default() })
}

fn served(toml: &str) -> Served {
    let settings = settings(toml).unwrap_or_else(|error| panic!("the test's configuration: {error}"));
    settings.serve(None).unwrap().remove(0)
}

/// A downstream at a scripted broker, with `more` in its table. Its exchange is `orders`.
fn at(broker: &Broker, more: &str) -> Arc<dyn Downstream> {
    served(&format!("url = \"amqp://{}\"\nexchange = \"orders\"\n{more}", broker.place)).downstream
}

fn attempt(key: &str, timeout: Duration) -> Attempt {
    gated(key, timeout, Ok(()))
}

fn gated(key: &str, timeout: Duration, gate: Result<(), Closed>) -> Attempt {
    let gate = Arc::new(Fixed(gate, AtomicUsize::new(0)));
    Attempt { effect: Arc::new(effect()), key: key.to_owned(), number: 1, timeout, gate }
}

/// Starts an attempt of its own.
fn begin(downstream: &Arc<dyn Downstream>, key: impl Into<String>) -> JoinHandle<Outcome> {
    begin_within(downstream, key, PATIENCE)
}

fn begin_within(
    downstream: &Arc<dyn Downstream>,
    key: impl Into<String>,
    timeout: Duration,
) -> JoinHandle<Outcome> {
    let (downstream, key) = (downstream.clone(), key.into());
    TaskTracker::new().spawn(async move { downstream.deliver(&attempt(&key, timeout)).await })
}

async fn deliver(downstream: &Arc<dyn Downstream>, key: &str) -> Outcome {
    within(begin(downstream, key)).await.unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(2 * PATIENCE, future).await.expect("this did not end: look for what never resolves")
}

#[track_caller]
fn shows(outcome: &Outcome, finding: Finding, phase: Phase) {
    assert_eq!((outcome.finding, outcome.phase), (finding, phase), "{}", outcome.reason);
}
