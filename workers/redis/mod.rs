//! The `redis` kind: an effect is one entry of a stream.
//!
//! Where the contract promises it, the entry and a marker of its key are written by one atomic script, so that a repetition
//! returns the first entry's id. `config` reads the table, `entry` renders, `add` holds the script and reads what is said,
//! `connect` makes the connection, `metered` bounds what is read from it, `look` is for `downstreams test`.

mod add;
mod config;
mod connect;
mod entry;
mod look;
mod metered;
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
    add::Adding,
    config::Streams,
    connect::{Access, Heard, Link},
};
use crate::{
    message,
    shared::{Refused, Shared},
    veil::Veil,
};

/// A `redis` downstream, ready to be called.
pub(crate) struct RedisDownstream {
    streams: Streams,
    access: Access,
    veil: Veil,
    link: Shared<Link>,
}

#[async_trait::async_trait]
impl Downstream for RedisDownstream {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let mut outcome = self.send(attempt).await;
        self.veil.cover(&mut outcome.reason, outcome.response.as_mut());
        outcome
    }

    async fn check(&self, timeout: Duration) -> Vec<Check> {
        let mut checks = look::look(&self.streams, &self.access, Instant::now() + timeout).await;
        for check in &mut checks {
            self.veil.cover(&mut check.found, None);
        }
        checks
    }
}

impl RedisDownstream {
    async fn send(&self, attempt: &Attempt) -> Outcome {
        let deadline = Instant::now() + attempt.timeout;
        let effect = &attempt.effect;
        let Some(call) = self.streams.call(effect.operation.as_deref()) else {
            return message::unconfigured(effect);
        };
        let adding = match entry::render(call, effect, &attempt.key) {
            Ok(entry) => Adding::new(&self.streams, call, entry, &attempt.key),
            Err(problem) => {
                let reason = format!("not sent: {problem}");
                return Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, reason);
            }
        };
        let link = match timeout_at(deadline, self.link.get(Link::open(&self.access, deadline))).await {
            Ok(Ok(link)) => link,
            Ok(Err(refused)) => return refused.outcome(),
            Err(_elapsed) => return Refused::late(&self.access.place()).outcome(),
        };
        if let Some(refused) = self.forgets_too_soon(attempt, &adding, &link, deadline).await {
            return refused.outcome();
        }
        self.add(attempt, &adding, &link, deadline).await
    }

    /// Sends the script by its hash where this connection has sent it whole before. A server that does not know it did nothing,
    /// and gets it whole.
    async fn add(&self, attempt: &Attempt, adding: &Adding, link: &Link, deadline: Instant) -> Outcome {
        let place = self.access.place();
        let closed =
            |closed| Outcome::new(Finding::NotApplied, Phase::Connect, format!("not begun: {closed}"));
        if let Err(why) = attempt.may_begin() {
            return closed(why);
        }
        let mut heard = link.ask(&adding.command(link.knows_script()), deadline).await;
        if let Heard::Error(error) = &heard
            && error.code() == Some("NOSCRIPT")
        {
            if let Err(why) = attempt.may_begin() {
                return closed(why);
            }
            heard = link.ask(&adding.command(false), deadline).await;
        }
        match heard {
            Heard::Value(value) => {
                link.learnt_script();
                adding.added(&value, &place)
            }
            Heard::Error(error) => add::refused(&error, attempt.effect.target.is_some(), &place),
            Heard::Lost => add::unheard("the connection was lost before the reply", &place),
            Heard::TooMuch => add::too_much(&place),
            Heard::Silent => add::unheard("no reply within the timeout", &place),
        }
    }

    /// With `IDMP` the stream itself remembers: for as long as it was told, which must be what the contract says. It may have been
    /// told otherwise since it was looked at, so whoever repeats looks again.
    async fn forgets_too_soon(
        &self,
        attempt: &Attempt,
        adding: &Adding,
        link: &Link,
        deadline: Instant,
    ) -> Option<Refused> {
        let window = adding.counts_on_stream()?;
        if attempt.number == 1 && link.has_seen(adding.stream(), window) {
            return None;
        }
        let concurrency = self.streams.concurrency;
        let reason = match look::remembers(link, adding.stream(), deadline).await {
            Ok(Some(memory)) if memory.duration >= window && memory.entries >= i64::from(concurrency) => {
                link.saw(adding.stream(), memory.duration);
                return None;
            }
            Ok(Some(memory)) if memory.duration >= window => {
                look::too_few(adding.stream(), memory, concurrency)
            }
            Ok(memory) => look::too_short(adding.stream(), memory, window),
            Err(refused) => return Some(refused),
        };
        // What one effect's own stream is like concerns no other effect.
        let refuses_us = attempt.effect.target.is_none();
        Some(Refused { reason, refuses_us })
    }
}
