//! The `amqp` kind against a RabbitMQ: what is unroutable, who is let in, what is declared, and a whole worker.

mod connecting;
pub(crate) mod rabbit;
mod routing;
mod tls;
mod topology;
mod worker;

pub(crate) use worker::engine;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::Timestamp,
    downstream::{Attempt, Closed, Gate, Served},
    effect::{Effect, EffectId},
    outcome::{Finding, Outcome},
};
use aftercommit_workers::config::{Settings, Sources};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Open;

impl Gate for Open {
    fn may_begin(&self) -> Result<(), Closed> {
        Ok(())
    }
}

/// The downstream `orders`, whose table is `toml`, at `url`.
pub(crate) fn served(url: &str, toml: &str) -> Served {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.orders]\nkind = \"amqp\"\nurl = {{ env = \"AMQP_URL\" }}\n{toml}"
    );
    std::fs::write(&file, text).expect("the scratch folder is writable");
    let env = vec![("AMQP_URL".to_owned(), url.to_owned())];
    let settings = Settings::load(&Sources { file: Some(file), env, ..Sources::default() })
        .unwrap_or_else(|error| panic!("the test's configuration: {error}"));
    settings.serve(None).unwrap_or_else(|error| panic!("the test's configuration: {error}")).remove(0)
}

/// One attempt to send a message with this key to `target`.
async fn send(served: &Served, key: &str, target: &str) -> Outcome {
    send_by(served, None, key, target).await
}

async fn send_by(served: &Served, operation: Option<&str>, key: &str, target: &str) -> Outcome {
    let effect = Effect {
        operation: operation.map(str::to_owned),
        payload: Some("{}".to_owned()),
        target: Some(target.to_owned()),
        ..Effect::new(EffectId::new(1), "orders", key, Timestamp::from_micros(0))
    };
    let attempt = Attempt {
        effect: Arc::new(effect),
        key: key.to_owned(),
        number: 1,
        timeout: PATIENCE,
        gate: Arc::new(Open),
    };
    crate::support::within(2 * PATIENCE, "the attempt's end", served.downstream.deliver(&attempt)).await
}

#[track_caller]
fn shows(outcome: &Outcome, finding: Finding, words: &str) {
    assert!(outcome.finding == finding && outcome.reason.contains(words), "{outcome:?}");
}
