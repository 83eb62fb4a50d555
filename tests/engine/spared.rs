//! Guarantee: a rate counts what is sent, and nothing else spends it.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    downstream::{Attempt, Downstream, Rate, Served},
    effect::Effect,
    outcome::{About, Finding, Outcome, Phase},
    state::State,
    store::{Report, Sign},
};

use super::{Running, at_once, engine, reaches, served};
use crate::support::{Script, Scripted, TestDatabase, answer, key_terms, on_every_database};

on_every_database!(what_was_not_sent_spends_no_call_of_the_rate);

/// Endpoints of which one never has a place for a call.
struct Crowded(Arc<Scripted>);

#[async_trait::async_trait]
impl Downstream for Crowded {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        self.0.deliver(attempt).await
    }

    fn origin(&self, effect: &Effect) -> Option<Arc<str>> {
        effect.target.as_deref().map(Into::into)
    }

    fn share(&self, effect: &Effect) -> Option<(Arc<str>, u32)> {
        let target = effect.target.as_deref()?;
        Some((target.into(), if target == "https://full" { 0 } else { 4 }))
    }
}

/// HTTP-09, with a rate: one call in an hour is granted, and whoever is put off, held back or ends unsent leaves it to the others.
async fn what_was_not_sent_spends_no_call_of_the_rate(db: &TestDatabase) {
    let scripted = Scripted::by(|attempt| {
        Script::Answer(match attempt.effect.target.as_deref() {
            Some("https://off") => {
                Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, "not sent: disabled")
            }
            _ => answer(200, "{}"),
        })
    });
    let pause = Some(Duration::from_secs(3600));
    let busy =
        Report { origin: "https://busy".into(), sign: Sign::Nothing, pause, reason: "HTTP 429".to_owned() };
    db.store.report(&[busy]).await.expect("it is told");
    let mut held = Vec::new();
    for number in 0..4 {
        for target in ["full", "busy", "off"] {
            let at = format!("'https://{target}'");
            held.push(
                db.insert_with("hooks", &format!("{target}-{number}"), &[("target", at.as_str())]).await,
            );
        }
    }
    let free = db.insert_with("hooks", "free", &[("target", "'https://free'")]).await;
    let rate = Rate { calls: 1, period: Duration::from_secs(3600) };
    let of = Served {
        downstream: Arc::new(Crowded(scripted.clone())),
        rate: Some(rate),
        ..served("hooks", &scripted, at_once(key_terms()))
    };
    let running = Running::start(engine(db.store.clone(), "w", vec![of]));
    reaches(db, free, State::Succeeded).await;
    running.drain().await;
    for (number, id) in held.iter().enumerate() {
        let state = db.state(*id).await;
        assert!(
            if number % 3 == 2 { state == State::Failed } else { state.is_pending() },
            "{number}: {state:?}"
        );
    }
}
