//! What a worker remembers of its own claims, and how that gets into its journal.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::Notify;

use crate::store::{Claim, identity::Remembered};

/// Where a worker remembers a database, outside of it.
pub trait Journal: Send + Sync {
    /// What was remembered before this process began.
    fn recall(&self) -> Option<Remembered>;

    /// Remembers. It may wait for a disk; one that fails is to say so, since nobody can do anything about it here.
    fn write(&self, seen: &Remembered);
}

/// The last word of a worker waits this long for the disk; without it, it is as if the worker had been killed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// The claims that a promotion must have kept. One that was given back unstarted leaves no trace once somebody else claims
/// its effect, and nothing was sent under it: it proves nothing and is forgotten.
#[derive(Debug, Default)]
pub(super) struct Proof(Mutex<Claims>);

#[derive(Debug, Default)]
struct Claims {
    /// Claimed and not settled: token, effects.
    open: BTreeMap<i64, Vec<i64>>,
    /// The newest that the log holds for good.
    logged: Option<(i64, i64)>,
    /// Whether no earlier process can have claimed anything later than `logged`.
    exact: bool,
}

impl Proof {
    /// Begins with what a journal says, or with nothing, for sure.
    pub(super) fn begin(&self, known: Option<&Remembered>) {
        let mut claims = self.lock();
        claims.logged = known.and_then(|known| known.last_claim);
        claims.exact = known.is_none_or(|known| known.exact);
    }

    /// What was claimed until now may be lost, and that was accepted.
    pub(super) fn forget(&self) {
        *self.lock() = Claims { exact: true, ..Claims::default() };
    }

    pub(super) fn claimed(&self, claimed: &[Claim]) {
        let mut claims = self.lock();
        for claim in claimed {
            claims.open.entry(claim.token().get()).or_default().push(claim.effect.id.get());
        }
    }

    /// One claimed effect is settled.
    pub(super) fn settled(&self, (token, effect): (i64, i64), trace: Trace) {
        let mut claims = self.lock();
        let Some(effects) = claims.open.get_mut(&token) else { return };
        effects.retain(|open| *open != effect);
        if effects.is_empty() {
            claims.open.remove(&token);
        }
        if trace == Trace::Logged
            && (!claims.exact || claims.logged.is_none_or(|(logged, _)| logged <= token))
        {
            claims.logged = Some((token, effect));
            claims.exact = true;
            // Later ones prove as much; one that was left to a sweep is never settled here.
            claims.open.retain(|open, _| *open >= token);
        }
    }

    /// The last claim that must be there, and whether it is the last for sure.
    pub(super) fn last(&self) -> (Option<(i64, i64)>, bool) {
        let claims = self.lock();
        let open = claims.open.last_key_value();
        match open.and_then(|(token, effects)| effects.first().map(|effect| (*token, *effect))) {
            Some(open) => (Some(open), true),
            None => (claims.logged, claims.exact),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// Whether a settled claim stays visible under its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// In the log of attempts, or in the outcome.
    Logged,
    /// Nothing was attempted, or somebody else had settled it.
    None,
}

/// Writes the journal on a thread of its own, the newest word only: neither a slow disk nor whoever holds the file keeps a
/// claim waiting. So a claim may be sent before it is noted, and a worker that is killed then does not know its last claim for
/// sure; the journal says so until the last word is written.
#[derive(Default)]
pub(super) struct Writer(Arc<Desk>);

#[derive(Default)]
struct Desk {
    state: Mutex<Pending>,
    idle: Notify,
}

#[derive(Default)]
struct Pending {
    next: Option<Remembered>,
    writing: bool,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// What is to be written now; `None` ends the writing.
    fn take(&self) -> Option<Remembered> {
        let mut pending = self.lock();
        let next = pending.next.take();
        pending.writing = next.is_some();
        next
    }
}

impl Writer {
    /// Has it written soon.
    pub(super) fn write(&self, journal: &Arc<dyn Journal>, seen: Remembered) {
        let mut pending = self.0.lock();
        pending.next = Some(seen);
        if pending.writing {
            return;
        }
        let (desk, journal) = (self.0.clone(), journal.clone());
        // No task of the runtime: one that hangs would keep the process from ending.
        let writer = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            while let Some(seen) = desk.take() {
                journal.write(&seen);
            }
            desk.idle.notify_waiters();
        });
        match writer {
            Ok(_) => pending.writing = true,
            Err(error) => {
                tracing::error!(%error, "no thread for the journal: nothing is written into it now")
            }
        }
    }

    /// Waits until everything is written, for as long as is sensible.
    pub(super) async fn finish(&self) {
        let written = async {
            loop {
                let idle = self.0.idle.notified();
                tokio::pin!(idle);
                idle.as_mut().enable();
                if !self.0.lock().writing {
                    return;
                }
                idle.await;
            }
        };
        if tokio::time::timeout(CLOSE_PATIENCE, written).await.is_err() {
            tracing::warn!(
                "the journal could not be written in time: after a promotion a person will be asked"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::store::identity::{Cluster, Identity};

    fn remembered(token: i64, exact: bool) -> Remembered {
        let cluster = Cluster { system_identifier: None, timeline: Some(1) };
        let found = Identity {
            installation: "one".to_owned(),
            system_identifier: None,
            timeline: Some(1),
            epoch: 0,
            token,
            accepted: Some(cluster),
        };
        Remembered { token, last_claim: Some((token, 1)), exact, ..Remembered::of(&found) }
    }

    fn open(proof: &Proof, token: i64, effects: &[i64]) {
        proof.lock().open.insert(token, effects.to_vec());
    }

    #[test]
    fn a_claim_that_was_given_back_proves_nothing() {
        let proof = Proof::default();
        proof.begin(None);
        assert_eq!(proof.last(), (None, true));
        open(&proof, 5, &[1, 2]);
        assert_eq!(proof.last(), (Some((5, 1)), true));
        proof.settled((5, 1), Trace::None);
        assert_eq!(proof.last(), (Some((5, 2)), true), "the batch's other effect is still in flight");
        proof.settled((5, 2), Trace::Logged);
        open(&proof, 6, &[3]);
        proof.settled((6, 3), Trace::None);
        assert_eq!(proof.last(), (Some((5, 2)), true));
    }

    #[test]
    fn what_a_killed_process_claimed_last_is_known_again_once_something_newer_is_logged() {
        let proof = Proof::default();
        proof.begin(Some(&remembered(4, false)));
        assert_eq!(proof.last(), (Some((4, 1)), false));
        open(&proof, 9, &[1]);
        assert_eq!(proof.last(), (Some((9, 1)), true));
        proof.settled((9, 1), Trace::None);
        assert_eq!(proof.last(), (Some((4, 1)), false));
        open(&proof, 10, &[1]);
        proof.settled((10, 1), Trace::Logged);
        assert_eq!(proof.last(), (Some((10, 1)), true));
    }

    /// A disk that does not answer until it is told to.
    struct Stuck(Mutex<mpsc::Receiver<()>>, Mutex<Vec<i64>>);

    impl Journal for Stuck {
        fn recall(&self) -> Option<Remembered> {
            None
        }

        fn write(&self, seen: &Remembered) {
            self.0.lock().unwrap().recv().unwrap();
            self.1.lock().unwrap().push(seen.token);
        }
    }

    #[tokio::test]
    async fn a_disk_that_hangs_keeps_nobody_waiting_and_gets_the_newest_word() {
        let (go, gate) = mpsc::channel();
        let stuck = Arc::new(Stuck(Mutex::new(gate), Mutex::default()));
        let (journal, writer): (Arc<dyn Journal>, _) = (stuck.clone(), Writer::default());
        for token in 1..=50 {
            writer.write(&journal, remembered(token, false));
        }
        for _ in 0..50 {
            go.send(()).unwrap();
        }
        writer.finish().await;
        let written = stuck.1.lock().unwrap().clone();
        assert!(written.len() <= 2 && written.last() == Some(&50), "{written:?}");
    }
}
