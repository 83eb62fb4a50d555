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
        match before.filter(|before| before.installation == found.installation) {
            None => now,
            // A claim from before a lift may be one of those that are lost: it proves nothing any more.
            Some(before) if before.epoch != found.epoch => Self { token: before.token, ..now },
            Some(before) => Self {
                system_identifier: now.system_identifier.or_else(|| before.system_identifier.clone()),
                timeline: now.timeline.or(before.timeline),
                ..before.clone()
            },
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
mod tests {
    use super::*;

    fn found() -> Identity {
        let cluster = Cluster { system_identifier: Some("7/5".to_owned()), timeline: Some(1) };
        Identity {
            installation: "one".to_owned(),
            system_identifier: cluster.system_identifier.clone(),
            timeline: cluster.timeline,
            epoch: 3,
            token: 100,
            accepted: Some(cluster),
        }
    }

    fn remembered() -> Remembered {
        Remembered { token: 90, last_claim: Some((90, 8)), ..Remembered::of(&found()) }
    }

    fn reason(verdict: Verdict) -> String {
        match verdict {
            Verdict::Hold(mismatch) => mismatch.reason,
            Verdict::Same | Verdict::PromotedIf(..) | Verdict::Promoted => panic!("no hold: {verdict:?}"),
        }
    }

    #[test]
    fn what_did_not_change_is_the_same() {
        assert_eq!(compare(None, &found()), Verdict::Same);
        assert_eq!(compare(None, &Identity { accepted: None, ..found() }), Verdict::Same);
        assert_eq!(compare(Some(&remembered()), &found()), Verdict::Same);
        assert_eq!(compare(Some(&Remembered { exact: false, ..remembered() }), &found()), Verdict::Same);
        // What a managed service does not tell cannot differ.
        let untold = Identity { system_identifier: None, timeline: None, ..found() };
        assert_eq!(compare(Some(&remembered()), &untold), Verdict::Same);
    }

    #[test]
    fn tokens_that_went_back_are_a_hold_and_go_on_far_above() {
        let verdict = compare(Some(&remembered()), &Identity { token: 89, ..found() });
        let Verdict::Hold(mismatch) = verdict else { panic!("{verdict:?}") };
        assert!(mismatch.went_back && mismatch.token_above >= 90 + TOKENS_BETWEEN, "{mismatch:?}");
        assert_eq!(compare(Some(&remembered()), &Identity { token: 90, ..found() }), Verdict::Same);
    }

    #[test]
    fn a_copy_is_a_hold_with_and_without_a_memory() {
        let copy = Identity { system_identifier: Some("8/5".to_owned()), ..found() };
        assert!(reason(compare(Some(&remembered()), &copy)).contains("copy"));
        assert!(reason(compare(None, &copy)).contains("copy"));
        let other = Identity { installation: "two".to_owned(), ..found() };
        assert!(reason(compare(Some(&remembered()), &other)).contains("another installation"));
    }

    #[test]
    fn a_promotion_is_judged_by_the_last_claim_and_only_by_who_knows_it() {
        let promoted = Identity { timeline: Some(2), ..found() };
        assert_eq!(
            compare(Some(&remembered()), &promoted),
            Verdict::PromotedIf(Token::new(90), EffectId::new(8))
        );
        let idle = Remembered { last_claim: None, ..remembered() };
        assert_eq!(compare(Some(&idle), &promoted), Verdict::Promoted);
        assert!(reason(compare(Some(&Remembered { exact: false, ..idle }), &promoted)).contains("promoted"));
        assert!(reason(compare(None, &promoted)).contains("promoted"));
    }

    #[test]
    fn what_the_fleet_accepted_is_not_asked_again_by_who_cannot_tell() {
        let cluster = Cluster { system_identifier: Some("7/5".to_owned()), timeline: Some(2) };
        let accepted = Identity { timeline: Some(2), accepted: Some(cluster), ..found() };
        let killed = Remembered { exact: false, ..remembered() };
        assert_eq!(compare(Some(&killed), &accepted), Verdict::Same);
        // Who knows its last claim for sure still asks for it.
        let asked = Verdict::PromotedIf(Token::new(90), EffectId::new(8));
        assert_eq!(compare(Some(&remembered()), &accepted), asked);
    }

    #[test]
    fn what_cannot_be_told_now_does_not_take_the_place_of_what_was_known() {
        let untold = Identity { system_identifier: None, timeline: None, ..found() };
        assert_eq!(Remembered::after(Some(&remembered()), &untold), remembered());
        let lifted = Remembered::after(Some(&remembered()), &Identity { epoch: 4, ..untold });
        assert_eq!((lifted.timeline, lifted.last_claim, lifted.token), (None, None, 90));
    }

    #[test]
    fn what_a_person_accepted_since_is_not_asked_again_but_for_tokens() {
        let lifted = Identity {
            epoch: 4,
            system_identifier: Some("8/5".to_owned()),
            accepted: Some(Cluster { system_identifier: Some("8/5".to_owned()), timeline: Some(1) }),
            ..found()
        };
        assert_eq!(compare(Some(&remembered()), &lifted), Verdict::Same);
        assert!(
            reason(compare(Some(&remembered()), &Identity { token: 1, ..lifted.clone() }))
                .contains("went back")
        );
        // An older epoch than the remembered one is a restore from before the lift.
        assert!(
            reason(compare(Some(&Remembered { epoch: 5, ..remembered() }), &lifted)).contains("went back")
        );
    }
}
