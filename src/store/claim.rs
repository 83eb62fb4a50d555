//! What a store hands out and takes back: only a [`Claim`] can be settled, and only a store makes one.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Timestamp,
    decision::{Decision, History},
    effect::{Effect, EffectId},
    outcome::{Finding, Outcome, Phase, Response, Verdict},
};

/// What the log says of a claim that its worker handed back unstarted, too late.
const NOT_BEGUN: &str = "not begun: handed back after its lease had ended";

/// Fences every write that follows a claim. Drawn from one database-wide sequence at every claim and every operator action,
/// never reset, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct Token(i64);

impl Token {
    pub(crate) const fn new(token: i64) -> Self {
        Self(token)
    }

    /// The number in the database.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// One downstream's part of a claim request.
#[derive(Clone, Debug)]
pub struct Want {
    /// Whose effects.
    pub downstream: Arc<str>,
    /// At most this many.
    pub slots: u32,
    /// How long the claim holds unless renewed.
    pub lease: Duration,
    /// The registered terms of each operation (`None`: the default one), as [`super::Store::register`] numbered them.
    pub terms: Vec<(Option<String>, i64)>,
    /// Where its calls go, as whoever claims is configured: what holds that origin holds the claim. The registered one may be
    /// another worker's, before a change or after it.
    pub origin: Option<Arc<str>>,
    /// The one call that finds out whether an origin whose breaker is open answers again ([`super::Budget::begin_trial`]).
    pub trial: bool,
}

/// A worker's time-limited right to attempt one effect. It is committed and durable before anybody holds it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The effect.
    pub effect: Arc<Effect>,
    pub(crate) token: Token,
    /// What is known of it, this attempt counted. `first_sent_at` is set.
    pub history: History,
    /// Number of this attempt in the effect's log, from 1.
    pub number: u32,
    /// The request hash that an earlier, uncertain attempt was sent with; for a certain effect, today's. `None` when the
    /// configuration of whoever claimed it did not have the operation.
    pub pinned: Option<[u8; 32]>,
    /// When it was claimed, on the database's clock.
    pub claimed_at: Timestamp,
}

impl Claim {
    /// The token that fences its settle. All effects of one downstream claimed in one round trip share it.
    pub fn token(&self) -> Token {
        self.token
    }
}

/// An attempt's row in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptLog {
    /// Number in the effect's log, from 1.
    pub number: u32,
    /// Who tried.
    pub worker: Arc<str>,
    /// When it began, on the database's clock as the worker knew it.
    pub started_at: Timestamp,
    /// When it ended, likewise.
    pub ended_at: Timestamp,
    /// How far the request got.
    pub phase: Phase,
    /// What it showed.
    pub verdict: Verdict,
    /// The downstream marked its answer as a replay.
    pub replayed: bool,
    /// The protocol's status.
    pub response_status: Option<u16>,
    /// A sentence for people; empty for a plain success. Stored through [`crate::outcome::stored_text`].
    pub error: String,
}

impl AttemptLog {
    /// The log row of a claim that was handed back unstarted, after a sweep had taken it for an attempt.
    pub fn not_begun(number: u32, worker: Arc<str>, claimed_at: Timestamp, ended_at: Timestamp) -> Self {
        let outcome = Outcome::new(Finding::NotApplied, Phase::Render, NOT_BEGUN);
        Self::of(number, worker, &outcome, claimed_at, ended_at)
    }

    /// The log row of an attempt with this outcome.
    pub fn of(
        number: u32,
        worker: Arc<str>,
        outcome: &Outcome,
        started_at: Timestamp,
        ended_at: Timestamp,
    ) -> Self {
        Self {
            number,
            worker,
            started_at,
            ended_at,
            phase: outcome.phase,
            verdict: outcome.verdict(),
            replayed: outcome.replayed,
            response_status: outcome.status(),
            error: outcome.stored_reason(),
        }
    }
}

/// What is to be written about one claimed effect.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Which effect.
    pub id: EffectId,
    /// The claim's token.
    pub token: Token,
    /// What follows.
    pub decision: Next,
    /// The attempt's row; `None` gives the claim back unstarted: its try, its counted attempt and its number are taken back.
    pub attempt: Option<AttemptLog>,
    /// Whether the attempt counts towards `max_attempts`; it was counted at the claim and is taken back when not.
    pub counts: bool,
    /// Whether the effect is uncertain from now on. When it is not, `first_sent_at` is taken back.
    pub uncertain: bool,
    /// The earliest time at which its last request cannot be travelling any more. Never moves back.
    pub quiet_at: Option<Timestamp>,
    /// When the sweep must look at it if nobody claims it before: `safe_until` of an uncertain effect, `expires_at` of a
    /// certain one. A give-back of a claim leaves it as it was (of one that a sweep parked meanwhile: `expires_at`); the
    /// give-back of an overdue effect moves it here.
    pub sweep_at: Option<Timestamp>,
    /// What the downstream said: stored with the outcome.
    pub response: Option<Response>,
    /// The vendor stored this refusal under the key: the failed effect can only be reissued. Of an effect that stays: it stored
    /// a server error, so that a probe's *absent* does not prove that nothing will be applied.
    pub refusal_stored: bool,
}

/// What follows, for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// As [`crate::decision::decide`] said.
    Decided(Decision),
    /// Given back unstarted: as it was before the claim, due as before. One that a sweep parked meanwhile stays in doubt when
    /// it is uncertain all the same. Of an overdue effect that may still be sent: only `sweep_at` moves.
    GiveBack,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Written. Also when a settle whose COMMIT went unanswered is found to have been written.
    Done,
    /// Not written: somebody asked to cancel, or a late *applied* came in, after the claim. Decide again with this known.
    /// Never for [`Decision::Succeed`].
    Reconsider {
        /// Somebody asked to cancel.
        cancel_requested: bool,
        /// A worker that had lost its lease reported *applied*.
        applied_late: bool,
    },
    /// Not written: the claim is no longer the effect's (fenced).
    Lost,
}

/// A claim whose lease ended without a settle, as the sweep judges it.
#[derive(Clone, Debug)]
pub struct Expired {
    /// Which effect.
    pub id: EffectId,
    /// Its downstream.
    pub downstream: Arc<str>,
    /// Its operation.
    pub operation: Option<String>,
    /// The token whose lease ended.
    pub token: Token,
    /// What is known of it, the lost attempt counted.
    pub history: History,
    /// Number of the lost attempt.
    pub number: u32,
    /// Who held the claim.
    pub worker: Arc<str>,
    /// When it was claimed.
    pub claimed_at: Timestamp,
    /// When its lease ended.
    pub lease_until: Timestamp,
}

/// An unclaimed effect whose `sweep_at` has passed: an uncertain one past its safe time, or one past `expires_at`.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// Which effect.
    pub id: EffectId,
    /// Its downstream.
    pub downstream: Arc<str>,
    /// Its operation.
    pub operation: Option<String>,
    /// Its token now; the sweep's write is refused once it changed.
    pub token: Token,
    /// What is known of it.
    pub history: History,
}

/// What a worker that lost its lease found out.
#[derive(Clone, Debug)]
pub struct LateAnswer {
    /// Which effect.
    pub id: EffectId,
    /// The token of the lost claim.
    pub token: Token,
    /// The attempt as the worker saw it. Always logged, but for one that was never begun: see `begun`.
    pub attempt: AttemptLog,
    /// Whether it was begun. A claim that is handed back unstarted has no attempt; it is logged only beside the row in which a
    /// sweep took it for one, which would read as if something had been sent.
    pub begun: bool,
    /// What the downstream said, stored when it settles the effect.
    pub response: Option<Response>,
}

/// What a late answer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Logged; it changed nothing.
    Logged,
    /// It was *applied* and the effect was uncertain and not in flight: succeeded.
    Succeeded,
    /// It was *applied* and the effect is in flight: it succeeds when that attempt settles.
    Noted,
    /// It was *applied*, and a person had said *not applied*, a probe had shown so (or the effect was superseded): logged, and
    /// loud. Where the effect was uncertain it succeeds all the same.
    Contradicts,
}

/// The terms of one operation as registered in the database: what the sweep of another worker, and the views, go by.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RegisteredTerms {
    /// What the downstream promises.
    pub contract: crate::contract::Contract,
    /// How it is retried.
    pub policy: crate::schedule::Policy,
    /// One attempt takes no longer.
    pub timeout: Duration,
}
