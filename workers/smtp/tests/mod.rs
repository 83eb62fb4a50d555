//! The kind against RFC 5321 and its own promises: messages, replies, and servers that behave as badly as they can.

mod configuration;
mod faults;
mod hostile;
mod messages;
mod pool;
mod replies;
mod server;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::Timestamp,
    downstream::{Attempt, Closed, Gate, Served},
    effect::{Effect, EffectId},
    outcome::{Finding, Outcome},
};

use self::server::Server;
use crate::config::{ConfigError, Settings, Sources};

/// A gate that says what it was made with.
struct Fixed(Result<(), Closed>);

impl Gate for Fixed {
    fn may_begin(&self) -> Result<(), Closed> {
        self.0
    }
}

const MAIL: &str = r#"{"from":"Shop <shop@shop.test>","to":"ann@shop.test","subject":"Your order","text":"It is on its way.\n"}"#;

fn effect(payload: &str) -> Effect {
    Effect {
        payload: Some(payload.to_owned()),
        ..Effect::new(
            EffectId::new(17),
            "mail",
            "order-17/mail",
            Timestamp::from_micros(1_790_000_000_000_000),
        )
    }
}

fn load(toml: &str) -> Result<Settings, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.mail]\nkind = \"smtp\"\n{toml}"
    );
    std::fs::write(&file, text).unwrap();
    let env = vec![
        ("PASSWORD".to_owned(), "sekret-word-17".to_owned()),
        ("MAIL_URL".to_owned(), "smtp://bob:sekret-word-17@127.0.0.1:2525".to_owned()),
    ];
    Settings::load(&Sources { file: Some(file), env, ..Sources::default() })
        .map_err(|problems| vec![format!("{problems:?}"), problems.to_string()])
}

fn settings(toml: &str) -> Settings {
    load(toml).unwrap_or_else(|error| panic!("the test's configuration: {error:?}"))
}

fn try_serve(toml: &str) -> Result<Served, ConfigError> {
    settings(toml).serve(None).map(|mut served| served.remove(0))
}

/// A downstream whose server listens at `port`, with short times and more of `toml`.
fn served_at(port: u16, toml: &str) -> Served {
    let times = if toml.contains("timeout") { "" } else { "timeout = \"3s\"\ndata_timeout = \"500ms\"\n" };
    try_serve(&format!("server = \"smtp://127.0.0.1:{port}\"\n{times}{toml}")).unwrap()
}

fn attempt(served: &Served, effect: Effect, gate: Result<(), Closed>) -> Attempt {
    let key = effect.key.clone();
    let timeout = served.terms.timeout;
    Attempt { effect: Arc::new(effect), key, number: 1, timeout, gate: Arc::new(Fixed(gate)) }
}

/// Delivers with the configured time, and fails the test when the attempt outlives it.
async fn deliver(served: &Served, effect: Effect) -> Outcome {
    let attempt = attempt(served, effect, Ok(()));
    tokio::time::timeout(attempt.timeout + Duration::from_millis(700), served.downstream.deliver(&attempt))
        .await
        .expect("the attempt outlived its deadline: look at `by` and `answer_by`")
}

async fn deliver_to(server: &Server, payload: &str) -> Outcome {
    deliver(&served_at(server.port, ""), effect(payload)).await
}

fn is_rejected(outcome: &Outcome) -> bool {
    matches!(outcome.finding, Finding::Rejected(_))
}
