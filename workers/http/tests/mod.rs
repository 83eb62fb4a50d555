//! The kind against its contract: rendering vectors, the table of answers, and servers that behave as badly as they can.

mod answers;
mod egress;
mod goaway;
mod hostile;
mod probes;
mod rendering;
pub(crate) mod server;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::Timestamp,
    downstream::{Attempt, Closed, Gate, Served},
    effect::{Effect, EffectId},
    outcome::Outcome,
};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::classify::Answer;
use crate::config::{Settings, Sources};

/// A whole answer.
pub(super) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    Answer { status, headers: map, body: body.as_bytes().to_vec(), truncated: false }
}

/// A gate that says what it was made with.
struct Fixed(Result<(), Closed>);

impl Gate for Fixed {
    fn may_begin(&self) -> Result<(), Closed> {
        self.0
    }
}

fn effect() -> Effect {
    Effect {
        payload: Some(r#"{"amount":1500}"#.to_owned()),
        ..Effect::new(EffectId::new(17), "shop", "order-17/charge", Timestamp::from_micros(0))
    }
}

/// Settings with one downstream `shop`, whose table is `toml`.
fn settings(toml: &str) -> Settings {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.shop]\nkind = \"http\"\n{toml}"
    );
    std::fs::write(&file, text).unwrap();
    let env = vec![("TOKEN".to_owned(), "sekret-token".to_owned())];
    Settings::load(&Sources { file: Some(file), env, ..Sources::default() })
        .unwrap_or_else(|error| panic!("the test's configuration: {error}"))
}

fn served(toml: &str) -> Served {
    settings(toml).serve(None).unwrap().remove(0)
}

fn attempt(effect: Effect, timeout: Duration, gate: Result<(), Closed>) -> Attempt {
    let key = effect.key.clone();
    Attempt { effect: Arc::new(effect), key, number: 1, timeout, gate: Arc::new(Fixed(gate)) }
}

/// Delivers `effect` with a deadline, and fails the test when the attempt outlives it.
async fn deliver(served: &Served, effect: Effect, timeout: Duration) -> Outcome {
    let attempt = attempt(effect, timeout, Ok(()));
    tokio::time::timeout(timeout + Duration::from_millis(700), served.downstream.deliver(&attempt))
        .await
        .expect("the attempt outlived its deadline: look at timeout_at in send.rs")
}
