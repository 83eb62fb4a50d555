//! Mail to servers that nobody here wrote: what arrives is what was meant, and what they refuse is told apart.

mod exim;
mod mime;
mod receiver;
mod tls;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::Timestamp,
    downstream::{Attempt, Closed, Gate, Served},
    effect::{Effect, EffectId},
    outcome::Outcome,
};
use aftercommit_workers::config::{Settings, Sources};

/// A gate that is open.
struct Open;

impl Gate for Open {
    fn may_begin(&self) -> Result<(), Closed> {
        Ok(())
    }
}

/// A downstream `mail` with this table.
fn served(toml: &str) -> Served {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.mail]\nkind = \"smtp\"\ndata_timeout = \"10s\"\n{toml}"
    );
    std::fs::write(&file, text).expect("it can be written");
    let env = vec![("PASSWORD".to_owned(), "sekret-word-17".to_owned())];
    let settings = Settings::load(&Sources { file: Some(file), env, ..Sources::default() });
    settings.expect("the test's configuration").serve(None).expect("it can be served").remove(0)
}

/// Sends `payload` under `key`, once.
async fn send(served: &Served, key: &str, payload: &serde_json::Value, target: Option<&str>) -> Outcome {
    let effect = Effect {
        payload: Some(payload.to_string()),
        target: target.map(str::to_owned),
        ..Effect::new(
            EffectId::new(1),
            Arc::clone(&served.name),
            key,
            Timestamp::from_micros(1_790_000_000_000_000),
        )
    };
    let timeout = served.terms.timeout;
    let attempt =
        Attempt { effect: Arc::new(effect), key: key.to_owned(), number: 1, timeout, gate: Arc::new(Open) };
    tokio::time::timeout(timeout + Duration::from_secs(1), served.downstream.deliver(&attempt))
        .await
        .expect("it ends within its time")
}
