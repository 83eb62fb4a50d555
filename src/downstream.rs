//! The seam to the outside: what a downstream kind implements, and what the engine is given of each downstream.

pub mod endpoint;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use crate::{
    check::Check,
    contract::Contract,
    effect::Effect,
    outcome::{Outcome, Probed, Sighting},
    schedule::Policy,
};

/// A place that effects are sent to. An implementation translates and classifies; it never retries, sleeps, decides, or
/// touches the store.
#[async_trait::async_trait]
pub trait Downstream: Send + Sync {
    /// Sends the effect once and says what happened. What cannot be known is [`crate::outcome::Finding::Unknown`], never a
    /// guess. It asks [`Attempt::may_begin`] right before the first byte, and stops within `attempt.timeout`; the engine
    /// drops the future at the end of the lease.
    async fn deliver(&self, attempt: &Attempt) -> Outcome;

    /// The origin that this effect goes to, where it is not the downstream's own ([`Served::origin`]): a target that the
    /// effect itself names. Such an origin's troubles hold up only the effects that go there.
    fn origin(&self, _effect: &Effect) -> Option<Arc<str>> {
        None
    }

    /// The endpoints of a downstream that has many by name: the engine keeps them fresh, and writes what is noted of them.
    fn directory(&self) -> Option<&endpoint::Directory> {
        None
    }

    /// Which of many endpoints this effect goes to, and how many calls that one gets at one time in this process: a slow one
    /// must not take every slot of the downstream.
    fn share(&self, _effect: &Effect) -> Option<(Arc<str>, u32)> {
        None
    }

    /// Asks once whether an effect in doubt was applied, and says what was seen; it applies nothing. Only what the contract
    /// recognises is a sighting, all else is [`Sighting::Unknown`]. It asks [`Probe::may_begin`] right before each exchange,
    /// stops within `probe.timeout`, and never repeats one.
    async fn probe(&self, _probe: &Probe) -> Probed {
        Probed::new(Sighting::Impossible, "this kind of downstream cannot be asked")
    }

    /// Connects, authenticates, and looks whether what the configuration and the contract say holds, as far as that can be
    /// seen without any effect. It says what it saw, and what cannot be seen; it stops within `timeout`.
    async fn check(&self, _timeout: Duration) -> Vec<Check> {
        let found = "this kind of downstream cannot be looked at without an effect";
        vec![Check::warn("downstream", found, "send something to it that may be sent")]
    }
}

/// One question about an effect in doubt, as a downstream is given it.
#[derive(Clone)]
pub struct Probe {
    /// The effect.
    pub effect: Arc<Effect>,
    /// The key as it was sent: the downstream's prefix and the stored key.
    pub key: String,
    /// One deadline for the whole of it, all pages of a list included.
    pub timeout: Duration,
    /// Asked right before each exchange.
    pub gate: Arc<dyn Gate>,
}

impl Probe {
    /// Asks the gate.
    ///
    /// # Errors
    ///
    /// [`Closed`] when nothing may be asked any more.
    pub fn may_begin(&self) -> Result<(), Closed> {
        self.gate.may_begin()
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("effect", &self.effect.id).finish_non_exhaustive()
    }
}

/// One try, as a downstream is given it. It cannot settle anything.
#[derive(Clone)]
pub struct Attempt {
    /// The effect.
    pub effect: Arc<Effect>,
    /// The key as it is sent: the downstream's prefix and the stored key.
    pub key: String,
    /// Number of this attempt in the effect's log, from 1.
    pub number: u32,
    /// One deadline for everything: resolution, connection, TLS, writing, reading.
    pub timeout: Duration,
    /// Asked right before the first byte.
    pub gate: Arc<dyn Gate>,
}

/// Whether the first byte may still leave: the lease is held, the window and the expiry have not passed, nobody stopped us or
/// paused the downstream.
pub trait Gate: Send + Sync {
    /// `Err` says why not.
    ///
    /// # Errors
    ///
    /// [`Closed`] when nothing may be sent any more; the outcome is then *not applied*, and the engine gives the claim back.
    fn may_begin(&self) -> Result<(), Closed>;
}

/// Why the first byte must not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The claim's lease, the safe window or `expires_at` would not outlast the call.
    #[error("too late to begin: the lease, the safe window or the expiry would pass during the call")]
    TooLate,
    /// The worker is stopping.
    #[error("the worker is stopping")]
    Stopping,
    /// The downstream is paused, or its origin asked for patience or does not answer.
    #[error("the downstream is held: paused, asked for patience, or its breaker is open")]
    Held,
}

impl Attempt {
    /// Asks the gate.
    ///
    /// # Errors
    ///
    /// [`Closed`] when the first byte must not leave.
    pub fn may_begin(&self) -> Result<(), Closed> {
        self.gate.may_begin()
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("effect", &self.effect.id)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// What one operation of a downstream is called with: contract, retries, time, and the hash of all that determines the
/// rendered request besides the effect's own row.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// What the downstream promises.
    pub contract: Contract,
    /// How it is retried.
    pub policy: Policy,
    /// One attempt takes no longer.
    pub timeout: Duration,
    /// SHA-256 of what the request is rendered from: method, origin, target and header templates, encoding, where the key
    /// stands, the account, the renderer's version. Not windows, retries, authentication values.
    pub request_sha256: [u8; 32],
}

/// Calls per time, over the whole fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub calls: u32,
    /// In how long.
    pub period: Duration,
}

impl Rate {
    /// From one call to the next, in microseconds: never zero.
    pub fn interval_us(self) -> i64 {
        let interval = self.period / self.calls.max(1);
        crate::clock::duration_micros(interval).max(1)
    }

    /// Calls that may follow each other at once: what comes to a twentieth of a second, so that a high rate needs few claims
    /// and a low one keeps its distance from call to call.
    pub fn burst(self) -> u32 {
        let burst = 50_000 / self.interval_us();
        u32::try_from(burst).unwrap_or(u32::MAX).max(1)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, period } = self;
        match period.as_secs() {
            1 => write!(f, "{calls}/s"),
            60 => write!(f, "{calls}/m"),
            3600 => write!(f, "{calls}/h"),
            _ => write!(f, "{calls}/{period:?}"),
        }
    }
}

/// A configured downstream, ready to be served.
#[derive(Clone)]
pub struct Served {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Its kind, for people.
    pub kind: &'static str,
    /// Who carries effects out.
    pub downstream: Arc<dyn Downstream>,
    /// Put before every key.
    pub key_prefix: String,
    /// Attempts at one time, in this process.
    pub concurrency: u32,
    /// The default operation's terms.
    pub terms: Terms,
    /// The terms of the named operations.
    pub operations: BTreeMap<String, Terms>,
    /// The lease of a claim: at least the longest timeout and [`crate::engine::LEASE_MARGIN`].
    pub lease: Duration,
    /// At most so many calls, over the whole fleet. `None`: as many as there are slots.
    pub rate: Option<Rate>,
    /// Where its calls go (scheme, host, port): what asked for patience or does not answer is held up for everybody who calls
    /// it. `None`: nothing is shared, and nothing is held up.
    pub origin: Option<Arc<str>>,
}

impl Served {
    /// The terms of `operation`; `None` when the configuration does not have it.
    pub fn terms_of(&self, operation: Option<&str>) -> Option<&Terms> {
        match operation {
            None => Some(&self.terms),
            Some(name) => self.operations.get(name),
        }
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}
