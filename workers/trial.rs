//! An attempt at a configured downstream, for the tests of kinds.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::Timestamp,
    downstream::{Attempt, Closed, Downstream, Gate, Served},
    effect::{Effect, EffectId},
    outcome::Outcome,
};

use crate::config::{Settings, Sources};

/// A gate that says what it was made with.
struct Fixed(Result<(), Closed>);

impl Gate for Fixed {
    fn may_begin(&self) -> Result<(), Closed> {
        self.0
    }
}

/// An effect with a small JSON payload.
pub(crate) fn effect(key: &str) -> Effect {
    Effect {
        payload: Some(r#"{"amount":1500}"#.to_owned()),
        ..Effect::new(EffectId::new(17), "shop", key, Timestamp::from_micros(0))
    }
}

/// Settings with one downstream `shop`, whose table is `toml`; `SECRET` is in the environment.
fn settings(toml: &str, secret: &str) -> Result<Settings, String> {
    let directory = tempfile::tempdir().expect("a folder");
    let file = directory.path().join("aftercommit.toml");
    let text = format!("database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.shop]\n{toml}");
    std::fs::write(&file, text).expect("the folder is ours");
    let env = vec![("SECRET".to_owned(), secret.to_owned())];
    Settings::load(&Sources { file: Some(file), env, ..Sources::default() })
        .map_err(|error| error.to_string())
}

/// What is wrong with `toml`.
pub(crate) fn refused(toml: &str) -> String {
    match settings(toml, "sekret-word") {
        Err(problem) => problem,
        Ok(settings) => settings.serve(None).err().map(|error| error.to_string()).expect("it is refused"),
    }
}

/// The downstream of `toml`.
pub(crate) fn served(toml: &str) -> Served {
    served_with(toml, "sekret-word")
}

/// The same with another secret.
pub(crate) fn served_with(toml: &str, secret: &str) -> Served {
    let settings = settings(toml, secret).unwrap_or_else(|error| panic!("the test's configuration: {error}"));
    settings.serve(None).expect("its secrets are there").remove(0)
}

/// An attempt at `effect`.
pub(crate) fn attempt(effect: Effect, timeout: Duration, gate: Result<(), Closed>) -> Attempt {
    let key = effect.key.clone();
    Attempt { effect: Arc::new(effect), key, number: 1, timeout, gate: Arc::new(Fixed(gate)) }
}

/// Delivers `effect` with a deadline, and fails the test when the attempt outlives it.
pub(crate) async fn deliver(downstream: &dyn Downstream, effect: Effect, timeout: Duration) -> Outcome {
    let attempt = attempt(effect, timeout, Ok(()));
    tokio::time::timeout(timeout + Duration::from_secs(2), downstream.deliver(&attempt))
        .await
        .expect("the attempt outlived its deadline")
}
