//! The kind against Standard Webhooks: signatures, endpoints of both sources, and who may make it call what.

mod delivery;
mod settings;
mod signing;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::Timestamp,
    downstream::{
        Attempt, Closed, Gate, Served,
        endpoint::{Disabled, Endpoint},
    },
    effect::{Effect, EffectId},
    outcome::Outcome,
};

use crate::config::{ConfigError, Settings, Sources};

/// The secret of the specification's example.
pub(super) const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
/// An Ed25519 seed of 32 bytes.
pub(super) const SEED: &str = "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

struct Fixed(Result<(), Closed>);

impl Gate for Fixed {
    fn may_begin(&self) -> Result<(), Closed> {
        self.0
    }
}

/// An effect for the endpoint `acme`.
fn effect() -> Effect {
    Effect {
        payload: Some(r#"{"type":"order.paid","amount":1.0}"#.to_owned()),
        target: Some("acme".to_owned()),
        ..Effect::new(EffectId::new(17), "hooks", "order-17/paid", Timestamp::from_micros(0))
    }
}

/// Settings with one downstream `hooks`, whose table is `toml`.
fn load(toml: &str) -> Result<Settings, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.hooks]\nkind = \"webhook\"\nprofile = \"standard-webhooks\"\n{toml}"
    );
    std::fs::write(&file, text).unwrap();
    let env = [
        ("HOOK_ACME", SECRET),
        ("HOOK_NEXT", SEED),
        ("HOOK_BROKEN", "hunter2hunter2"),
        ("PGPASSWORD", "hunter2"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Settings::load(&Sources { file: Some(file), env, ..Sources::default() })
}

fn served(toml: &str) -> Served {
    let served = load(toml).unwrap_or_else(|error| panic!("the test's configuration: {error}"));
    served.serve(None).unwrap().remove(0)
}

/// The rows of the database, as the engine would put them.
fn rows(served: &Served, rows: Vec<Endpoint>) {
    served.downstream.directory().unwrap().put_once(rows);
}

/// A downstream with the endpoint `acme` at `url`, and whatever else `toml` says.
fn with_acme(url: &str, toml: &str) -> Served {
    let served = with_acme_unread(url, toml);
    rows(&served, vec![]);
    served
}

/// The same, whose rows nobody has read yet.
fn with_acme_unread(url: &str, toml: &str) -> Served {
    let port = url.rsplit_once(':').unwrap().1.split('/').next().unwrap();
    served(&format!(
        "{toml}\negress = {{ allow = [\"127.0.0.1\"], http = true, ports = [{port}] }}\n\
         [downstream.hooks.endpoints.acme]\nurl = \"{url}\"\nsecret = {{ env = \"HOOK_ACME\" }}\n"
    ))
}

fn row(name: &str, url: &str, secrets: &str) -> Endpoint {
    Endpoint {
        name: name.into(),
        url: Some(url.to_owned()),
        secrets: Some(secrets.to_owned()),
        disabled: None,
        failing_since: None,
    }
}

fn disabled(endpoint: Endpoint, reason: &str) -> Endpoint {
    let disabled = Disabled { since: Timestamp::from_micros(0), reason: reason.to_owned() };
    Endpoint { disabled: Some(disabled), ..endpoint }
}

fn attempt(effect: Effect, gate: Result<(), Closed>) -> Attempt {
    let key = effect.key.clone();
    let timeout = Duration::from_secs(20);
    Attempt { effect: Arc::new(effect), key, number: 1, timeout, gate: Arc::new(Fixed(gate)) }
}

async fn deliver(served: &Served, effect: Effect) -> Outcome {
    served.downstream.deliver(&attempt(effect, Ok(()))).await
}
