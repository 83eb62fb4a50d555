//! HOLD: before anything is claimed the database is compared with what this worker remembers of it, at the start, after every
//! (re)connect, and every few seconds besides. A fleet on HOLD claims and sweeps nothing; the worker goes on looking, and
//! goes on working when a person has lifted it.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{
    Shared,
    memory::{Journal, Proof, Trace, Writer},
    settle,
};
use crate::{
    clock::Boot,
    error::StoreError,
    store::{
        Claim, Next, Settlement, Want,
        identity::{Hold, Identity, Mismatch, Remembered, Verdict, compare, lost_claim},
    },
};

/// Between two looks while nothing seems to have changed: behind a pooler nobody tells of a failover.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at whether the HOLD was lifted.
const HELD_LOOK_EVERY: Duration = Duration::from_secs(1);
/// A claim is written into the journal at most this often.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Whoever meets new connections again and again claims nothing in this round.
const COMPARISONS_MAX: u32 = 10;
/// Between two log lines about the same HOLD.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// What a running worker knows of its database.
#[derive(Default)]
pub(super) struct Watch {
    /// `None`: it remembers as long as it runs.
    pub(super) journal: Option<Arc<dyn Journal>>,
    pub(super) proof: Proof,
    writer: Writer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    recalled: bool,
    known: Option<Remembered>,
    /// The connections that were made when it was last looked at, and when to look again.
    connections: Option<u64>,
    look_at: Option<Boot>,
    /// What this worker put the fleet on HOLD for.
    told: Option<Mismatch>,
    held: bool,
    said_at: Option<Boot>,
    written_at: Option<Boot>,
}

impl Shared {
    /// Whether anything may be claimed or swept.
    pub(super) async fn is_clear(&self) -> Result<bool, StoreError> {
        let mut state = self.watch.state.lock().await;
        if !state.recalled {
            state.known = self.recall().await;
            self.watch.proof.begin(state.known.as_ref());
            state.recalled = true;
        }
        let now = self.clock.boot();
        let connections = self.store.reconnects();
        if state.connections == Some(connections) && state.look_at.is_some_and(|at| now < at) {
            return Ok(!state.held);
        }
        let found = self.store.identity().await?;
        if let Some(known) = &mut state.known {
            (known.last_claim, known.exact) = self.watch.proof.last();
        }
        self.judge(&mut state, &found).await?;
        let hold = self.store.hold().await?;
        self.mark(hold.as_ref()).await?;
        match hold {
            Some(hold) => self.say(&mut state, &hold, now),
            None => self.clear(&mut state, &found),
        }
        let again = if state.held { HELD_LOOK_EVERY } else { LOOK_EVERY };
        state.connections = Some(connections);
        state.look_at = Some(now.plus(again));
        Ok(!state.held)
    }

    /// Compares; puts the fleet on HOLD where it must be.
    async fn judge(&self, state: &mut State, found: &Identity) -> Result<(), StoreError> {
        let mismatch = match (compare(state.known.as_ref(), found), &state.known) {
            (Verdict::Hold(mismatch), _) => mismatch,
            (Verdict::PromotedIf(token, effect), Some(known))
                if !self.store.has_claim(token, effect).await? =>
            {
                lost_claim(known, found)
            }
            (Verdict::Same | Verdict::Promoted | Verdict::PromotedIf(..), _) => {
                state.told = None;
                return self.store.accept(found).await;
            }
        };
        self.enter_hold(state, mismatch).await
    }

    async fn enter_hold(&self, state: &mut State, mismatch: Mismatch) -> Result<(), StoreError> {
        if state.told.as_ref() == Some(&mismatch) {
            return Ok(());
        }
        self.store.enter_hold(&self.config.worker, &mismatch).await?;
        state.told = Some(mismatch);
        Ok(())
    }

    /// Every worker helps: the one that found it may have ended.
    async fn mark(&self, hold: Option<&Hold>) -> Result<(), StoreError> {
        if hold.is_some_and(|hold| hold.went_back && !hold.marked) {
            let leases = self.served.values().map(|serving| serving.served.lease);
            let longest = leases.max().unwrap_or_default();
            while self.store.mark_uncertain(longest).await? {}
        }
        Ok(())
    }

    fn say(&self, state: &mut State, hold: &Hold, now: Boot) {
        state.held = true;
        if state.said_at.is_none_or(|at| now - at >= SAY_EVERY) {
            state.said_at = Some(now);
            tracing::error!(
                found_by = hold.found_by,
                "HOLD: {}; nothing is sent. Look at what is unfinished, then run `aftercommit hold lift --reason …`",
                hold.reason
            );
        }
    }

    fn clear(&self, state: &mut State, found: &Identity) {
        if state.held {
            tracing::info!("the HOLD was lifted; going on");
            state.held = false;
            state.said_at = None;
        }
        let known = Remembered::after(state.known.as_ref(), found);
        let accepted = state
            .known
            .as_ref()
            .is_some_and(|before| before.installation != known.installation || before.epoch != known.epoch);
        if accepted {
            self.watch.proof.forget();
        }
        self.write(Remembered { exact: false, ..known.clone() });
        state.known = Some(known);
    }

    /// Takes note of new claims. Tokens that did not grow mean that the database went back this very moment: what was
    /// claimed is not sent, and its lease ends by itself.
    pub(super) async fn note_claims(&self, claims: Vec<Claim>) -> Result<Vec<Claim>, StoreError> {
        let newest = claims.iter().max_by_key(|claim| claim.token());
        let oldest = claims.iter().map(|claim| claim.token().get()).min();
        let (Some(newest), Some(oldest)) = (newest, oldest) else { return Ok(claims) };
        let token = newest.token().get();
        let mut state = self.watch.state.lock().await;
        let now = self.clock.boot();
        let Some(known) = &mut state.known else { return Ok(claims) };
        if oldest <= known.token {
            state.look_at = None;
            tracing::error!(oldest, "a claim came under a token that was drawn before: it is not sent");
            return Ok(Vec::new());
        }
        known.token = token;
        self.watch.proof.claimed(&claims);
        let (last_claim, _) = self.watch.proof.last();
        let seen = Remembered { last_claim, exact: false, ..known.clone() };
        if state.written_at.is_none_or(|at| now - at >= WRITE_EVERY) {
            state.written_at = Some(now);
            self.write(seen);
        }
        Ok(claims)
    }

    /// The last word: nothing is claimed any more.
    pub(super) async fn close_journal(&self) {
        let known = self.watch.state.lock().await.known.clone();
        if let Some(known) = known {
            let (last_claim, exact) = self.watch.proof.last();
            self.write(Remembered { last_claim, exact, ..known });
            self.watch.writer.finish().await;
        }
    }

    async fn recall(&self) -> Option<Remembered> {
        let journal = self.watch.journal.clone()?;
        let recalled = tokio::task::spawn_blocking(move || journal.recall()).await;
        recalled.unwrap_or_default()
    }

    fn write(&self, known: Remembered) {
        if let Some(journal) = &self.watch.journal {
            self.watch.writer.write(journal, known);
        }
    }

    /// One claimed effect is settled: whether its claim leaves a trace.
    pub(super) fn note_settled(&self, settlement: &Settlement, trace: Trace) {
        self.watch.proof.settled((settlement.token.get(), settlement.id.get()), trace);
    }

    /// Compares until it is known to which connections the answer applies; `None` where nothing may be claimed.
    pub(super) async fn compared(&self) -> Result<Option<u64>, StoreError> {
        for _ in 0..COMPARISONS_MAX {
            let connections = self.store.reconnects();
            if !self.is_clear().await? {
                return Ok(None);
            }
            if self.store.reconnects() == connections {
                return Ok(Some(connections));
            }
        }
        Ok(None)
    }

    /// Claims from a database that was compared. Where a connection was made meanwhile, the claim may have run on another
    /// server: that one is compared before anything is handed out, and the claim is given back unstarted where it does not fit.
    pub(super) async fn claim_compared(&self, wants: &[Want]) -> Result<Vec<Claim>, StoreError> {
        let Some(connections) = self.compared().await? else { return Ok(Vec::new()) };
        let claims = self.store.claim(&self.config.worker, wants).await?;
        // An error is no yes either, and what was claimed must not be left lying.
        if self.store.reconnects() == connections || matches!(self.compared().await, Ok(Some(_))) {
            return self.note_claims(claims).await;
        }
        self.give_back(&claims).await?;
        Ok(Vec::new())
    }

    async fn give_back(&self, claims: &[Claim]) -> Result<(), StoreError> {
        let unstarted: Vec<Settlement> =
            claims.iter().map(|claim| settle::unstarted(claim, &Next::GiveBack, None)).collect();
        let mut tokens: Vec<_> = claims.iter().map(Claim::token).collect();
        tokens.dedup();
        if !unstarted.is_empty() {
            self.store.settle(&unstarted, &tokens).await?;
        }
        Ok(())
    }
}
