//! Which database this is, and whether it went back: what a worker remembers, compared with what it finds.
//!
//! Values inside the database prove nothing after a restore: they were restored too. So each worker remembers, outside of it,
//! what it saw last. What differs puts the fleet on HOLD: nothing is sent until a person lifts it.
//!
//! A changed timeline is a promotion. It lost nothing that this worker acted on if, and only if, the last claim that it
//! made is still there: the log is sequential, so everything before that is there too. (Tokens alone do not tell: a sequence
//! is logged 32 numbers ahead, and may stand high although the claims that drew from it are gone.)

use std::time::Duration;

use crate::{clock::Timestamp, effect::EffectId, error::StoreError, store::Token, verb::Actor};

/// What a database says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Drawn once, by the first `migrate`. A copy has the same.
    pub installation: String,
    /// PostgreSQL's cluster, and the database in it; `None` where it is unknown or there is no such thing.
    pub system_identifier: Option<String>,
    /// PostgreSQL's timeline: every promotion and every restore to a point in time begins a new one.
    pub timeline: Option<i64>,
    /// How many holds were lifted.
    pub epoch: i64,
    /// The highest token that was drawn.
    pub token: i64,
    /// The cluster that the database itself remembers; `None` before the first worker.
    pub accepted: Option<Cluster>,
}

/// A PostgreSQL cluster at one point of its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// See [`Identity::system_identifier`].
    pub system_identifier: Option<String>,
    /// See [`Identity::timeline`].
    pub timeline: Option<i64>,
}

/// What a worker remembers of a database, outside of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Remembered {
    /// See [`Identity::installation`].
    pub installation: String,
    /// See [`Identity::system_identifier`].
    pub system_identifier: Option<String>,
    /// See [`Identity::timeline`].
    pub timeline: Option<i64>,
    /// See [`Identity::epoch`].
    pub epoch: i64,
    /// The highest token of a claim that this worker made. Only those are durable for sure: a crash may take back a number
    /// that somebody drew and did not commit.
    pub token: i64,
    /// The last claim that this worker made: its token and one of its effects.
    pub last_claim: Option<(i64, i64)>,
    /// Whether `last_claim` is the last one for sure: not after a crash, since it is written down a moment later.
    pub exact: bool,
}

impl Remembered {
    /// What is to be remembered of a database that was found to be the right one, after this: a cluster that could be told
    /// once is not forgotten because it cannot be told now.
    pub fn after(before: Option<&Self>, found: &Identity) -> Self {
        let now = Self::of(found);
        let Some(before) = before.filter(|before| before.installation == found.installation) else {
            return now;
        };
        let accepted = before.epoch != found.epoch;
        let (system, timeline) =
            if accepted { (None, None) } else { (before.system_identifier.clone(), before.timeline) };
        Self {
            system_identifier: now.system_identifier.clone().or(system),
            timeline: now.timeline.or(timeline),
            token: before.token,
            // A claim from before a lift may be one of those that are lost: it proves nothing any more.
            last_claim: before.last_claim.filter(|_| !accepted),
            exact: before.exact || accepted,
            ..now
        }
    }

    /// What is to be remembered of a database that is seen for the first time.
    pub fn of(found: &Identity) -> Self {
        Self {
            installation: found.installation.clone(),
            system_identifier: found.system_identifier.clone(),
            timeline: found.timeline,
            epoch: found.epoch,
            token: 0,
            last_claim: None,
            exact: true,
        }
    }
}

/// What follows from a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the database that is remembered, and it did not go back.
    Same,
    /// A promotion; nothing that this worker knows of is missing if this claim is still there.
    PromotedIf(Token, EffectId),
    /// A promotion, and this worker never claimed anything that could be missing.
    Promoted,
    /// Nothing may be sent, for this reason.
    Hold(Mismatch),
}

/// Why the fleet is put on HOLD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What was found, as a sentence.
    pub reason: String,
    /// Whether what was written may have been lost; then every unfinished effect becomes uncertain.
    pub went_back: bool,
    /// Tokens go on above this.
    pub token_above: i64,
    /// The highest epoch that is remembered.
    pub epoch_above: i64,
}

/// A fleet on HOLD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Since when.
    pub since: Timestamp,
    /// Which worker found it.
    pub found_by: String,
    /// What it found.
    pub reason: String,
    /// Whether unfinished effects become uncertain.
    pub went_back: bool,
    /// Whether all of them have.
    pub marked: bool,
}

/// What `lift` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifted {
    /// Lifted, in the same transaction as its audit row.
    Done(Hold),
    /// There was none.
    NotHeld,
    /// Effects have yet to become uncertain: [`Identify::mark_uncertain`] first.
    NotMarked,
}

/// Which database this is; the HOLD. For workers and operators.
#[async_trait::async_trait]
pub trait Identify: Send + Sync {
    /// Grows whenever the database may be another one than before: a connection was made, or the server was lost.
    fn reconnects(&self) -> u64;

    /// What the database says of itself. The first to ask writes down the cluster.
    async fn identity(&self) -> Result<Identity, StoreError>;

    /// Whether any trace of this claim is there: of the effect in flight, of its attempt, or of its outcome.
    async fn has_claim(&self, token: Token, effect: EffectId) -> Result<bool, StoreError>;

    /// Writes down the cluster that this was found to be, as far as that is known, unless it is on hold.
    async fn accept(&self, found: &Identity) -> Result<(), StoreError>;

    /// Puts the fleet on HOLD, or adds to it; tokens go on above [`Mismatch::token_above`].
    async fn enter_hold(&self, found_by: &str, mismatch: &Mismatch) -> Result<(), StoreError>;

    /// The HOLD, if there is one.
    async fn hold(&self) -> Result<Option<Hold>, StoreError>;

    /// Makes the next unfinished effects uncertain that were written before the HOLD began: `first_sent_at` is the known
    /// one, else the later of `created_at` and `due_at`; terms that nobody knows are today's. Their requests may travel for
    /// another `lease`, the longest that is known; what probes showed, and a person's resend, is forgotten; what is in flight
    /// waits again, and what its worker finds out comes in as a late answer. Returns whether there are more. Any number of
    /// workers may do it at one time.
    async fn mark_uncertain(&self, lease: Duration) -> Result<bool, StoreError>;

    /// Lifts the HOLD; the ordinary rules decide from now on. What the database is now is accepted.
    async fn lift_hold(&self, actor: &Actor) -> Result<Lifted, StoreError>;
}

/// How far tokens jump over what is remembered: other workers may have drawn more and not come to say so yet.
const TOKENS_BETWEEN: i64 = 1_000_000;

/// Compares what was found with what is remembered (`None`: this worker sees it for the first time).
pub fn compare(remembered: Option<&Remembered>, found: &Identity) -> Verdict {
    if let Some(remembered) = remembered {
        let verdict = compare_memory(remembered, found);
        // What the database remembers was accepted by somebody else's memory, or by a person.
        if verdict != Verdict::Same || remembered.exact {
            return verdict;
        }
    }
    let hold =
        |reason| Verdict::Hold(mismatch(remembered.unwrap_or(&Remembered::of(found)), found, reason, true));
    let Some(accepted) = &found.accepted else { return Verdict::Same };
    if differs(accepted.system_identifier.as_ref(), found.system_identifier.as_ref()) {
        return hold(format!(
            "this is a copy in another PostgreSQL database or cluster (system identifier {}, and it came from {})",
            shown(found.system_identifier.as_deref()),
            shown(accepted.system_identifier.as_deref()),
        ));
    }
    if differs(accepted.timeline.as_ref(), found.timeline.as_ref()) {
        return hold(format!(
            "the server was promoted or restored (timeline {}, and it was {}), and this worker remembers nothing that could \
             prove that nothing was lost",
            shown(found.timeline),
            shown(accepted.timeline),
        ));
    }
    Verdict::Same
}

fn compare_memory(remembered: &Remembered, found: &Identity) -> Verdict {
    let hold = |reason, went_back| Verdict::Hold(mismatch(remembered, found, reason, went_back));
    if remembered.installation != found.installation && found.epoch <= remembered.epoch {
        return hold(
            format!(
                "this is another installation ({}, and this worker remembers {})",
                found.installation, remembered.installation
            ),
            false,
        );
    }
    if remembered.installation != found.installation {
        return Verdict::Same;
    }
    if found.token < remembered.token || found.epoch < remembered.epoch {
        return hold(
            format!(
                "the database went back: its highest token is {}, and this worker has seen {}",
                found.token, remembered.token
            ),
            true,
        );
    }
    // A person has looked at whatever else is different now.
    if found.epoch > remembered.epoch {
        return Verdict::Same;
    }
    if differs(remembered.system_identifier.as_ref(), found.system_identifier.as_ref()) {
        return hold(
            format!(
                "this is a copy in another PostgreSQL database or cluster (system identifier {}, and this worker remembers {})",
                shown(found.system_identifier.as_deref()),
                shown(remembered.system_identifier.as_deref())
            ),
            true,
        );
    }
    if !differs(remembered.timeline.as_ref(), found.timeline.as_ref()) {
        return Verdict::Same;
    }
    // The fleet accepted it, by what others remember: this one knows of nothing that contradicts them.
    let accepted = found.accepted.as_ref().and_then(|accepted| accepted.timeline);
    if !remembered.exact && found.timeline.is_some() && accepted == found.timeline {
        return Verdict::Same;
    }
    match remembered.last_claim {
        None if remembered.exact => Verdict::Promoted,
        Some((token, effect)) if remembered.exact => {
            Verdict::PromotedIf(Token::new(token), EffectId::new(effect))
        }
        None | Some(_) => hold(
            format!(
                "the server was promoted or restored (timeline {}, and it was {}), and this worker, which did not end well, \
                 cannot tell whether its last claim is there",
                shown(found.timeline),
                shown(remembered.timeline)
            ),
            true,
        ),
    }
}

/// The claim that would have proved that nothing is missing is missing.
pub fn lost_claim(remembered: &Remembered, found: &Identity) -> Mismatch {
    let reason = format!(
        "the server was promoted or restored (timeline {}, and it was {}), and this worker's last claim is not there: what was \
         committed last is lost",
        shown(found.timeline),
        shown(remembered.timeline)
    );
    mismatch(remembered, found, reason, true)
}

fn mismatch(remembered: &Remembered, found: &Identity, reason: String, went_back: bool) -> Mismatch {
    let token_above = if went_back { remembered.token.saturating_add(TOKENS_BETWEEN) } else { 0 };
    Mismatch { reason, went_back, token_above, epoch_above: remembered.epoch.max(found.epoch) }
}

/// What is not known does not differ.
fn differs<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests;
