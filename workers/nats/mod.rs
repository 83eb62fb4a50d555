//! The `nats` kind: an effect is one message, published to a JetStream stream and acknowledged by it.
//!
//! Never a core publish: what nobody acknowledged is not applied. `config` reads the table, `message` renders, `connect` makes
//! the connection and sees to it that nothing leaves it late, `classify` reads the answer, `look` is for `downstreams test`.

mod cage;
mod classify;
mod config;
mod connect;
mod look;
mod message;
mod refusals;
mod signals;
mod stream;
#[cfg(test)]
mod tests;

use std::time::Duration;

use aftercommit::{
    check::Check,
    downstream::{Attempt, Downstream},
    outcome::{About, Finding, Outcome, Phase},
};
use tokio::time::{Instant, timeout_at};

pub(crate) use config::read;

use self::{
    config::{Call, Nats},
    connect::{Access, Heard, Link},
    message::Rendered,
};
use crate::{
    config::show_duration,
    shared::{Refused, Shared},
    veil::Veil,
};

/// A `nats` downstream, ready to be called.
pub(crate) struct NatsDownstream {
    nats: Nats,
    access: Access,
    veil: Veil,
    link: Shared<Link>,
}

#[async_trait::async_trait]
impl Downstream for NatsDownstream {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let mut outcome = self.send(attempt).await;
        self.veil.cover(&mut outcome.reason, outcome.response.as_mut());
        outcome
    }

    async fn check(&self, timeout: Duration) -> Vec<Check> {
        let mut checks = look::look(&self.nats, &self.access, Instant::now() + timeout).await;
        for check in &mut checks {
            self.veil.cover(&mut check.found, None);
        }
        checks
    }
}

impl NatsDownstream {
    async fn send(&self, attempt: &Attempt) -> Outcome {
        let deadline = Instant::now() + attempt.timeout;
        let effect = &attempt.effect;
        let Some(call) = self.nats.call(effect.operation.as_deref()) else {
            return crate::message::unconfigured(effect);
        };
        let rendered = match message::render(&self.nats.stream, call, effect, &attempt.key) {
            Ok(rendered) => rendered,
            Err(problem) => return unsent(&problem),
        };
        let connect = Link::open(&self.access, &self.nats.stream, deadline);
        let link = match timeout_at(deadline, self.link.get(connect)).await {
            Ok(Ok(link)) => link,
            Ok(Err(refused)) => return refused.outcome(),
            Err(_elapsed) => return Refused::late(&self.access.place()).outcome(),
        };
        if let Some(refused) = self.forgets_too_soon(call, &link, attempt.number, deadline).await {
            return refused.outcome();
        }
        if rendered.size > link.max_payload() {
            return unsent(&format!(
                "the message has {} bytes with its headers, and the server takes {}: send less, or raise max_payload there",
                rendered.size,
                link.max_payload()
            ));
        }
        if let Err(closed) = attempt.may_begin() {
            return Outcome::new(Finding::NotApplied, Phase::Connect, format!("not begun: {closed}"));
        }
        let Rendered { subject, headers, body, .. } = rendered;
        let heard = link.publish(&subject, headers, body, deadline).await;
        let (place, named) = (self.access.place(), effect.target.is_some());
        match heard {
            Heard::Answer(answer) => classify::answer(&answer, &self.nats.stream, named, &place),
            Heard::NobodyListens => classify::no_responders(&subject, &place),
            Heard::Denied => classify::denied(&subject, named, &place),
            Heard::PerhapsDenied => classify::perhaps_denied(&subject, named, &place),
            Heard::NotBegun => classify::not_begun(&subject, named, &place),
            Heard::TooLarge => {
                unsent("the message is larger than the server takes: send less, or raise max_payload there")
            }
            Heard::TooMuch => classify::too_much(&connect::too_much(&place)),
            Heard::Lost => classify::unheard(&place, "the connection was lost before the acknowledgement"),
            Heard::Silent => classify::unheard(&place, "no acknowledgement within the timeout"),
        }
    }

    /// The contract promises a window; a stream that remembers for less would let a repetition in. A window may have been lowered
    /// since the connection was made, so whoever repeats looks again.
    async fn forgets_too_soon(
        &self,
        call: &Call,
        link: &Link,
        number: u32,
        deadline: Instant,
    ) -> Option<Refused> {
        let window = call.window?;
        if number > 1 {
            let place = self.access.place();
            match timeout_at(deadline, link.look_again(&self.nats.stream, &place)).await {
                Ok(Ok(())) => {}
                Ok(Err(refused)) => return Some(refused),
                Err(_elapsed) => {
                    let why = format!(
                        "{place} did not describe the stream within the timeout: look at its load, or raise timeout"
                    );
                    return Some(Refused::unreachable(why));
                }
            }
        }
        let has = link.stream().duplicate_window;
        (has < window).then(|| {
            Refused::us(format!(
                "the stream {} remembers message ids for {} (its duplicate window), and the contract says window = {}: raise the one or lower the other",
                self.nats.stream,
                show_duration(has),
                show_duration(window),
            ))
        })
    }
}

/// What the effect's own text makes impossible stays so, however often it is tried.
fn unsent(problem: &str) -> Outcome {
    Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, format!("not sent: {problem}"))
}
