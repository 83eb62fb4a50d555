//! A downstream in this process that does what a test tells it, and remembers what it was sent.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    EffectId,
    clock::{Boot, Clock as _, SystemClock},
    downstream::{Attempt, Downstream},
    outcome::{Finding, Outcome, Phase},
};
use tokio::sync::Barrier;

use super::{answer, eventually};

/// What a call does.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// Answers.
    Answer(Outcome),
    /// Answers after this long.
    AnswerAfter(Duration, Outcome),
    /// Meets the test at the barrier, then again, then answers: between the two meetings the call is open.
    Meet(Arc<Barrier>, Outcome),
    /// As [`Self::Meet`], but before the gate is asked, as a name is resolved or a connection made.
    MeetFirst(Arc<Barrier>, Outcome),
    /// Never answers: the engine must give up.
    Hang,
    /// Panics.
    Panic(&'static str),
}

/// A call as the downstream saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Which effect.
    pub(crate) effect: EffectId,
    /// The key, prefix included.
    pub(crate) key: String,
    /// Number of the attempt.
    pub(crate) number: u32,
    /// Payload or body, byte for byte.
    pub(crate) bytes: Vec<u8>,
    /// When, on this machine's clock.
    pub(crate) at: Boot,
}

type Answering = Box<dyn FnMut(&Attempt) -> Script + Send>;

/// A scripted downstream. It asks the gate before each call, like a real one; a closed gate is no call.
pub(crate) struct Scripted {
    next: Mutex<Answering>,
    calls: Mutex<Vec<Call>>,
    refused: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Scripted {
    /// Does what `next` says about each attempt.
    pub(crate) fn by(next: impl FnMut(&Attempt) -> Script + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            next: Mutex::new(Box::new(next)),
            calls: Mutex::default(),
            refused: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        })
    }

    /// Does these in turn, and applies everything after the last.
    pub(crate) fn queue(scripts: impl IntoIterator<Item = Script>) -> Arc<Self> {
        let mut scripts: VecDeque<Script> = scripts.into_iter().collect();
        Self::by(move |_| scripts.pop_front().unwrap_or_else(|| Script::Answer(answer(200, "{}"))))
    }

    /// Applies everything.
    pub(crate) fn applying() -> Arc<Self> {
        Self::queue([])
    }

    /// The calls so far, in order.
    pub(crate) fn calls(&self) -> Vec<Call> {
        locked(&self.calls).clone()
    }

    /// How often the gate was closed.
    pub(crate) fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    /// The most calls that were open at one time.
    pub(crate) fn most_open(&self) -> usize {
        self.most_open.load(Ordering::SeqCst)
    }

    /// The calls that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits until `n` calls were begun.
    pub(crate) async fn called(&self, n: usize) {
        let what = format!("{n} calls at the scripted downstream");
        eventually(Duration::from_secs(20), &what, async || (self.calls().len() >= n).then_some(())).await;
    }
}

/// Counts a call as open until it ends, however it ends.
struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl Downstream for Scripted {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let script = (locked(&self.next))(attempt);
        if let Script::MeetFirst(barrier, _) = &script {
            barrier.wait().await;
            barrier.wait().await;
        }
        if let Err(closed) = attempt.may_begin() {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Outcome::new(Finding::NotApplied, Phase::Render, closed.to_string());
        }
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        let _open = Open(&self.open);
        self.most_open.fetch_max(open, Ordering::SeqCst);
        let effect = &attempt.effect;
        let bytes = effect.payload.clone().map(String::into_bytes).or_else(|| effect.body.clone());
        locked(&self.calls).push(Call {
            effect: effect.id,
            key: attempt.key.clone(),
            number: attempt.number,
            bytes: bytes.unwrap_or_default(),
            at: SystemClock.boot(),
        });
        match script {
            Script::Answer(outcome) | Script::MeetFirst(_, outcome) => outcome,
            Script::AnswerAfter(delay, outcome) => {
                tokio::time::sleep(delay).await;
                outcome
            }
            Script::Meet(barrier, outcome) => {
                barrier.wait().await;
                barrier.wait().await;
                outcome
            }
            Script::Hang => std::future::pending().await,
            Script::Panic(message) => panic!("{message}"),
        }
    }
}

/// A script may panic inside a lock; what it guards stays readable.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
