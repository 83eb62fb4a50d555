//! The leases this worker holds, as it sees them: counted on a clock that runs through suspend, from before the claim was
//! asked for, so that they end here no later than in the database.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Boot, Clock, Timestamp},
    store::Token,
};

/// The database's time, followed on this machine's clock: never behind the database's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    /// Read before the database was asked.
    pub(super) boot: Boot,
    /// What the database said its time was.
    pub(super) at: Timestamp,
    /// How long its answer took: at most so far ahead of the database's is [`Self::now`]. Long when an outage was waited out.
    pub(super) ahead: Duration,
}

impl Base {
    /// The database's time now, or a little later.
    pub(super) fn now(self, clock: &dyn Clock) -> Timestamp {
        self.at.plus(clock.boot() - self.boot)
    }
}

/// One claimed batch: every effect of it holds a share.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Token,
    pub(super) length: Duration,
    /// Written by the renewals, read by every attempt of the batch.
    until: Mutex<Boot>,
    /// Cancelled when a renewal found the lease gone.
    lost: CancellationToken,
    /// Some effect of the batch was left to the sweep: its claim must not be dropped.
    abandoned: AtomicBool,
}

impl Held {
    fn until(&self) -> Boot {
        *self.until.lock().expect("no holder of this lock panics")
    }

    /// Whether a call that takes `length` from now on would still be covered.
    pub(super) fn covers(&self, clock: &dyn Clock, length: Duration) -> bool {
        !self.lost.is_cancelled() && clock.boot().plus(length) <= self.until()
    }

    /// Returns when the lease is over: its end has passed, or a renewal found it gone.
    pub(super) async fn over(&self, clock: &dyn Clock) {
        loop {
            let left = clock.boot().until(self.until());
            if left.is_zero() {
                // In the database it ends a little later: a renewal must not bring back what nobody works on any more.
                self.lost.cancel();
                return;
            }
            tokio::select! {
                () = self.lost.cancelled() => return,
                // Woken early by nothing, late by a suspend: the boot clock is asked again either way.
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

/// All leases held.
#[derive(Debug, Default)]
pub(super) struct Leases {
    held: Mutex<HashMap<Token, (Arc<Held>, usize)>>,
}

impl Leases {
    /// Takes note of a batch of `effects` claimed under `token`, asked for at `asked`.
    pub(super) fn hold(&self, token: Token, length: Duration, asked: Boot, effects: usize) -> Arc<Held> {
        let held = Arc::new(Held {
            token,
            length,
            until: Mutex::new(asked.plus(length)),
            lost: CancellationToken::new(),
            abandoned: AtomicBool::new(false),
        });
        self.lock().insert(token, (held.clone(), effects));
        held
    }

    /// Nothing is claimed.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// One effect of the batch is left to the sweep: its claim must neither be dropped nor be renewed for its sake.
    pub(super) fn abandon(&self, held: &Held) {
        held.abandoned.store(true, Ordering::SeqCst);
        self.settled(held.token);
    }

    /// One effect of the batch is settled (or fenced); true when it was the last and none was left to the sweep.
    pub(super) fn settled(&self, token: Token) -> bool {
        let mut held = self.lock();
        let Some((lease, left)) = held.get_mut(&token) else { return false };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return false;
        }
        let abandoned = lease.abandoned.load(Ordering::SeqCst);
        held.remove(&token);
        !abandoned
    }

    /// What should be renewed now: everything that has used up a third of its lease.
    pub(super) fn to_renew(&self, now: Boot) -> Vec<(Token, Duration)> {
        self.lock()
            .values()
            .filter(|(held, _)| !held.lost.is_cancelled() && now.until(held.until()) < held.length * 2 / 3)
            .map(|(held, _)| (held.token, held.length))
            .collect()
    }

    /// Enters what a renewal asked for at `asked` came to: `kept` go on, the others of `tried` are lost.
    pub(super) fn renewed(&self, tried: &[(Token, Duration)], kept: &[Token], asked: Boot) {
        let held = self.lock();
        for (token, length) in tried {
            let Some((lease, _)) = held.get(token) else { continue };
            if kept.contains(token) {
                *lease.until.lock().expect("no holder of this lock panics") = asked.plus(*length);
            } else {
                lease.lost.cancel();
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Token, (Arc<Held>, usize)>> {
        self.held.lock().expect("no holder of this lock panics")
    }
}
