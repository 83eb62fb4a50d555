//! The `amqp` kind: an effect is one persistent, mandatory message to a RabbitMQ (AMQP 0-9-1), confirmed by the broker.
//!
//! `config` reads the table with `topology`, `render` makes the message, `connect` makes a connection that `link` shares
//! between attempts, `declare` looks that an exchange is there, `order` is what an attempt gives to a lane,
//! `lane` publishes and tells confirms, returns and losses of its `outstanding` messages apart, `loss` reads the library's
//! errors, `classify` says what each of them shows, `check` looks without sending;
//! `suspects` remembers what may have closed a channel, and goes alone from then on.
//!
//! It publishes each message once: the client library's recovery is off, and a message that it has not begun is withdrawn
//! when its attempt ends.

mod check;
mod classify;
mod config;
mod connect;
mod declare;
mod lane;
mod link;
mod loss;
mod order;
mod outstanding;
mod render;
mod suspects;
#[cfg(test)]
mod tests;
mod topology;

use std::time::Duration;

use aftercommit::{
    check::Check,
    downstream::{Attempt, Downstream},
    outcome::{About, Finding, Outcome, Phase},
};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};

pub(crate) use config::read;

use self::{
    classify::{Fault, Reading, Told},
    config::Amqp,
    connect::Address,
    declare::Way,
    link::{Link, Orders, Session, Track},
    order::{Order, Publish, Stage},
    render::Publication,
};
use crate::{message, veil::Veil};

/// After an attempt's end its message may still be confirmed, and a connection that nobody uses any more is kept for that.
const LINGER: Duration = Duration::from_secs(60);
/// How long the library may take to notice that its connection was ended.
const LAST_WORD: Duration = Duration::from_secs(1);

/// An `amqp` downstream, ready to be called.
pub(crate) struct AmqpDownstream {
    amqp: Amqp,
    link: Link,
    veil: Veil,
    single_exchange: bool,
}

impl AmqpDownstream {
    fn new(amqp: Amqp, address: Address) -> Self {
        let veil = Veil::new(address.secrets.iter().cloned());
        let single_exchange = amqp.exchanges().len() == 1;
        let link = Link::new(address, amqp.connect_timeout, LINGER, amqp.topology.clone());
        Self { amqp, link, veil, single_exchange }
    }

    fn reading(&self, attempt: &Attempt) -> Reading<'_> {
        Reading {
            single_queue: self.amqp.single_queue,
            single_exchange: self.single_exchange,
            own_routing_key: attempt.effect.target.is_some(),
            place: &self.link.address.place,
        }
    }

    async fn send(&self, attempt: &Attempt) -> Outcome {
        let deadline = Instant::now() + attempt.timeout;
        let effect = &attempt.effect;
        if !self.amqp.has(effect.operation.as_deref()) {
            return message::unconfigured(effect);
        }
        match render::render(&self.amqp, effect, &attempt.key) {
            Ok(publication) => self.publish(attempt, publication, deadline).await,
            // What the effect's own text shows stays so, however often it is tried.
            Err(problem) => {
                let reason = format!("not sent: {problem}");
                Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, reason)
            }
        }
    }

    async fn publish(&self, attempt: &Attempt, publication: Publication, deadline: Instant) -> Outcome {
        let (reading, place) = (self.reading(attempt), &self.link.address.place);
        let track = self.track(&publication);
        let (session, orders) = match timeout_at(deadline, self.link.orders(&track)).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(fault)) => return reading.not_sent(fault),
            Err(_elapsed) => {
                return reading.not_sent(Fault::Away(format!(
                    "no connection to {place} in time: look whether it is up, and at its load"
                )));
            }
        };
        let heard = session.heard();
        let stage = Stage::default();
        let (answer, mut told) = oneshot::channel();
        let publish = Publish { publication, gate: attempt.gate.clone(), stage: stage.clone(), answer };
        if orders.send(Order::Publish(Box::new(publish))).is_err() {
            return reading.not_sent(closed_meanwhile(place));
        }
        let mut waiting = Waiting { told: &mut told, stage: &stage, orders: &orders };
        let told = match timeout_at(deadline, &mut *waiting.told).await {
            Ok(Ok(told)) => told,
            // The lane is gone, or the time is up: what was not begun never will be.
            Ok(Err(_)) if stage.withdraw() => Told::NotSent(closed_meanwhile(place)),
            Err(_) if stage.withdraw() => Told::NotSent(Fault::Away(format!(
                "{place} did not take the messages before this one in time: look at its load, or raise timeout"
            ))),
            Ok(Err(_)) => Told::Lost(format!("the channel to {place} ended without a confirm")),
            Err(_) => waiting.overdue(&session, heard).await,
        };
        reading.outcome(told)
    }

    /// Where the message is published: with the others, or alone.
    fn track(&self, publication: &Publication) -> Track {
        let Publication { key, exchange, routing_key, .. } = publication;
        Track {
            way: Way::of(publication, &self.amqp.topology),
            alone: self.link.suspects.suspected(key, exchange, routing_key.as_str()),
        }
    }
}

/// What was queued for a channel that is gone; another attempt gets another channel.
fn closed_meanwhile(place: &str) -> Fault {
    Fault::Away(format!("the channel to {place} was closed before this message: the next attempt opens one"))
}

/// An attempt that waits for what becomes of its message.
struct Waiting<'a> {
    told: &'a mut oneshot::Receiver<Told>,
    stage: &'a Stage,
    orders: &'a Orders,
}

impl Waiting<'_> {
    /// The time is up, and the library has the message.
    async fn overdue(&mut self, session: &Session, heard: u64) -> Told {
        let (place, blocked) = (&session.shared.place, session.shared.blocked());
        if self.stage.is_unwritten() {
            // It would leave when the broker takes messages again, long after this attempt: without a connection it
            // cannot, and the lane says in a moment whether it was in time.
            session.abandon();
            if let Ok(Ok(told)) = timeout(LAST_WORD, &mut *self.told).await {
                return match (told, blocked) {
                    (Told::NotSent(_), Some(why)) => Told::NotSent(Fault::Blocked(why)),
                    (Told::NotSent(_), None) => {
                        let why = format!("{place} did not read the message in time: look at its load");
                        Told::NotSent(Fault::Away(why))
                    }
                    (told, _) => told,
                };
            }
        }
        session.doubt(heard);
        Told::Lost(match blocked {
            Some(why) => format!("{place} blocked its publishers ({why}) after the message was handed over"),
            None => format!("no confirm from {place} in time"),
        })
    }
}

/// Also where the attempt is dropped: what was not begun never will be, and the lane looks after what was.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.told.close();
        if !self.stage.withdraw() && self.stage.is_unwritten() {
            // A lane that is gone has nothing to look after.
            self.orders.send(Order::Look).ok();
        }
    }
}

#[async_trait::async_trait]
impl Downstream for AmqpDownstream {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let mut outcome = self.send(attempt).await;
        self.veil.cover(&mut outcome.reason, outcome.response.as_mut());
        outcome
    }

    async fn check(&self, timeout: Duration) -> Vec<Check> {
        let mut checks = check::check(&self.amqp, &self.link.address, timeout).await;
        for check in &mut checks {
            self.veil.cover(&mut check.found, None);
        }
        checks
    }
}
