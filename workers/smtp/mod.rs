//! The `smtp` kind: an effect is one mail to one recipient, sent once; what it came to is read from how far it got.
//!
//! `config` reads the table. `mail`, `address`, `header`, `identity` and `render` make a payload into a message whose bytes are
//! the same on every attempt. `reply`, `wire`, `session` and `transaction` speak to the server, one command after the
//! other, each in sight; `pool` keeps sessions between mails; `classify` says what it shows.

mod address;
mod check;
mod classify;
mod config;
mod header;
mod identity;
mod mail;
mod pool;
mod render;
mod reply;
mod session;
#[cfg(test)]
mod tests;
mod transaction;
mod wire;

use std::time::Duration;

use aftercommit::{
    check::Check,
    downstream::{Attempt, Downstream},
    effect::Effect,
    outcome::{About, Finding, Outcome, Phase},
};
use tokio::time::Instant;

pub(crate) use config::read;

use self::{
    address::Mailbox,
    mail::Mail,
    pool::Pool,
    transaction::{Envelope, Sent},
};
use crate::veil::Veil;

/// A mail server, ready to be sent to.
pub(crate) struct SmtpDownstream {
    pool: Pool,
    /// Who sends where a payload does not say.
    from: Option<Mailbox>,
    /// One more header that carries the key.
    key_header: Option<String>,
    /// The part of an attempt's time that belongs to the answer to the final dot.
    after_dot: Duration,
    veil: Veil,
}

#[async_trait::async_trait]
impl Downstream for SmtpDownstream {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let mut outcome = self.send(attempt).await;
        self.veil.cover(&mut outcome.reason, outcome.response.as_mut());
        outcome
    }

    async fn check(&self, timeout: Duration) -> Vec<Check> {
        let mut checks = check::look(self.pool.server(), timeout).await;
        for check in &mut checks {
            self.veil.cover(&mut check.found, None);
        }
        checks
    }
}

impl SmtpDownstream {
    async fn send(&self, attempt: &Attempt) -> Outcome {
        let begun = Instant::now();
        let answer_by = begun + attempt.timeout;
        let by = begun + attempt.timeout.saturating_sub(self.after_dot);
        let (mail, message) = match self.render(&attempt.effect, &attempt.key) {
            Ok(rendered) => rendered,
            Err(problem) => {
                let reason = format!("not sent: {problem}");
                return Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, reason);
            }
        };
        let mut session = match self.pool.take(by).await {
            Ok(session) => session,
            Err(failure) => return classify::not_opened(&failure),
        };
        // Asked with the session at hand: a server may take its time to greet.
        if let Err(closed) = attempt.may_begin() {
            self.pool.give_back(session).await;
            return Outcome::new(Finding::NotApplied, Phase::Connect, format!("not begun: {closed}"));
        }
        let (sender, recipient) = (mail.from.address.to_string(), mail.recipient.to_string());
        let envelope =
            Envelope { sender: &sender, recipient: &recipient, utf8: mail.needs_utf8(), message: &message };
        let sent = transaction::send(&mut session, &envelope, by, answer_by).await;
        if is_reusable(&sent) {
            self.pool.give_back(session).await;
        } else {
            pool::close(session).await;
        }
        classify::sent(&sent)
    }

    fn render(&self, effect: &Effect, key: &str) -> Result<(Mail, Vec<u8>), String> {
        let mail = Mail::of(effect, self.from.as_ref())?;
        let rendered = render::render(&mail, effect, key, self.key_header.as_deref())?;
        Ok((mail, rendered))
    }
}

/// After an answer that is neither "closing" nor out of turn a session is as good as before; a RSET clears what was begun.
fn is_reusable(sent: &Sent) -> bool {
    use transaction::Command;
    match sent {
        Sent::Unfit(_) => true,
        Sent::Answered(Command::Dot, reply) => reply.code != 421 && !(300..400).contains(&reply.code),
        Sent::Answered(Command::Mail | Command::Rcpt | Command::Data, reply) => {
            reply.code != 421 && (reply.is_transient() || reply.is_permanent())
        }
        // Half of a message stands in it.
        Sent::Answered(Command::Body, _) | Sent::Lost(..) => false,
    }
}
