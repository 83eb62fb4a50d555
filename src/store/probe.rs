//! What a store hands out and takes back of probes: the questions about effects in doubt.
//!
//! A probe is no attempt: it is in no log of attempts and counts towards no budget. What it showed stands in `status.last_error`
//! beside the reason for the doubt, its next time in `status.due_at`.

use std::{sync::Arc, time::Duration};

use super::{Next, Settled, Token};
use crate::{
    clock::Timestamp,
    decision::Doubt,
    effect::{Effect, EffectId},
    error::StoreError,
    outcome::Response,
};

/// One downstream's part of a claim of probes.
#[derive(Clone, Debug)]
pub struct ProbeWant {
    /// Whose effects.
    pub downstream: Arc<str>,
    /// At most this many.
    pub slots: u32,
    /// A probe that is not settled after this long is due again: its worker was killed.
    pub lease: Duration,
    /// Where it asks, as whoever claims is configured.
    pub origin: Option<Arc<str>>,
    /// The one question that finds out whether an origin whose breaker is open answers again ([`super::Budget::begin_trial`]).
    pub trial: bool,
}

/// A worker's right to ask about one effect in doubt, and to say what was seen.
#[derive(Clone, Debug)]
pub struct DueProbe {
    /// The effect.
    pub effect: Arc<Effect>,
    /// The effect's token: a person's verb draws another, and what was seen then changes nothing.
    pub(crate) token: Token,
    /// This probe's own: another worker that takes it over draws another.
    pub(crate) probe: Token,
    /// What is known of it.
    pub doubt: Doubt,
    /// The request hash of its last attempt; `None` where nobody knows it.
    pub pinned: Option<[u8; 32]>,
    /// When it was claimed, on the database's clock.
    pub claimed_at: Timestamp,
}

/// What is to be written about one probe.
#[derive(Clone, Debug)]
pub struct ProbeSettlement {
    /// Which effect.
    pub id: EffectId,
    /// The effect's token, as it was claimed for the probe.
    pub token: Token,
    /// The probe's own.
    pub probe: Token,
    /// What follows. A retry begins a new history, and draws a new token: nothing of the old one is heard any more. Given
    /// back, it is due at once, as if it had not been claimed.
    pub decision: Next,
    /// When it was first seen absent.
    pub absent_at: Option<Timestamp>,
    /// What people read of it from now on, where the decision has no words: it succeeded, or a new history began.
    pub note: Option<String>,
    /// What the downstream showed: stored when the effect succeeds.
    pub response: Option<Response>,
}

impl DueProbe {
    /// What is to be written: `decision`, and nothing else.
    pub fn settlement(&self, decision: Next) -> ProbeSettlement {
        ProbeSettlement {
            id: self.effect.id,
            token: self.token,
            probe: self.probe,
            decision,
            absent_at: None,
            note: None,
            response: None,
        }
    }
}

/// The engine's verbs about probes.
#[async_trait::async_trait]
pub trait Probes: Send + Sync {
    /// Claims up to `slots` effects in doubt of each wanted downstream whose probe is due, oldest first, and puts their
    /// `due_at` off by the lease. What is paused is not asked about. Nothing that is claimed so can be sent.
    async fn claim_probes(&self, wants: &[ProbeWant]) -> Result<Vec<DueProbe>, StoreError>;

    /// Writes what a probe came to, in one transaction, only while the effect is in doubt under the same token and no other
    /// probe of it was begun: else it is [`Settled::Lost`]. Never [`Settled::Reconsider`].
    async fn settle_probe(&self, settlement: &ProbeSettlement) -> Result<Settled, StoreError>;

    /// Whether a probe of one of these is due now.
    async fn probe_is_due(&self, downstreams: &[Arc<str>]) -> Result<bool, StoreError>;
}
