//! HOLD: before anything is claimed the database is compared with what this worker remembers of it, at the start, after every
//! (re)connect, and every few seconds besides. A fleet on HOLD claims and sweeps nothing; the worker goes on looking, and
//! goes on working when a person has lifted it.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::Shared;
use crate::{
    clock::Boot,
    error::StoreError,
    store::{
        Claim,
        identity::{Hold, Identity, Mismatch, Remembered, Verdict, compare, lost_claim},
    },
};

/// Where a worker remembers a database, outside of it.
pub trait Journal: Send + Sync {
    /// What was remembered before this process began.
    fn recall(&self) -> Option<Remembered>;

    /// Remembers. It may wait for a disk; one that fails is to say so, since nobody can do anything about it here.
    fn write(&self, seen: &Remembered);
}

/// Between two looks while nothing seems to have changed: behind a pooler nobody tells of a failover.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at whether the HOLD was lifted.
const HELD_LOOK_EVERY: Duration = Duration::from_secs(1);
/// A claim is written into the journal at most this often.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Between two log lines about the same HOLD.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// What a running worker knows of its database.
#[derive(Default)]
pub(super) struct Watch {
    /// `None`: it remembers as long as it runs.
    pub(super) journal: Option<Arc<dyn Journal>>,
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
            state.recalled = true;
        }
        let now = self.clock.boot();
        let connections = self.store.reconnects();
        if state.connections == Some(connections) && state.look_at.is_some_and(|at| now < at) {
            return Ok(!state.held);
        }
        let found = self.store.identity().await?;
        self.judge(&mut state, &found).await?;
        let hold = self.store.hold().await?;
        self.mark(hold.as_ref()).await?;
        match hold {
            Some(hold) => self.say(&mut state, &hold, now),
            None => self.clear(&mut state, &found).await,
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
            while self.store.mark_uncertain().await? {}
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

    async fn clear(&self, state: &mut State, found: &Identity) {
        if state.held {
            tracing::info!("the HOLD was lifted; going on");
            state.held = false;
            state.said_at = None;
        }
        let before = state.known.take().filter(|known| known.installation == found.installation);
        let (token, last_claim) = before.map_or((0, None), |known| (known.token, known.last_claim));
        let known = Remembered { token, last_claim, ..Remembered::of(found) };
        self.write(known.clone(), false).await;
        state.known = Some(known);
    }

    /// Takes note of new claims. Tokens that did not grow mean that the database went back this very moment: what was
    /// claimed is not sent, and its lease ends by itself.
    pub(super) async fn note_claims(&self, claims: Vec<Claim>) -> Result<Vec<Claim>, StoreError> {
        let newest = claims.iter().max_by_key(|claim| claim.token());
        let oldest = claims.iter().map(|claim| claim.token().get()).min();
        let (Some(newest), Some(oldest)) = (newest, oldest) else { return Ok(claims) };
        let (token, effect) = (newest.token().get(), newest.effect.id.get());
        let mut state = self.watch.state.lock().await;
        let now = self.clock.boot();
        let Some(known) = &mut state.known else { return Ok(claims) };
        if oldest <= known.token {
            state.look_at = None;
            tracing::error!(oldest, "a claim came under a token that was drawn before: it is not sent");
            return Ok(Vec::new());
        }
        (known.token, known.last_claim) = (token, Some((token, effect)));
        if state.written_at.is_none_or(|at| now - at >= WRITE_EVERY) {
            state.written_at = Some(now);
            let known = state.known.clone();
            drop(state);
            if let Some(known) = known {
                self.write(known, false).await;
            }
        }
        Ok(claims)
    }

    /// The last word: nothing is claimed any more.
    pub(super) async fn close_journal(&self) {
        let known = self.watch.state.lock().await.known.clone();
        if let Some(known) = known {
            self.write(known, true).await;
        }
    }

    async fn recall(&self) -> Option<Remembered> {
        let journal = self.watch.journal.clone()?;
        let recalled = tokio::task::spawn_blocking(move || journal.recall()).await;
        recalled.unwrap_or_default()
    }

    /// Not on the runtime's threads: a disk may be slow.
    async fn write(&self, known: Remembered, exact: bool) {
        let Some(journal) = self.watch.journal.clone() else { return };
        let written =
            tokio::task::spawn_blocking(move || journal.write(&Remembered { exact, ..known })).await;
        if let Err(error) = written {
            tracing::error!(%error, "the journal could not be written");
        }
    }
}
