//! What an attempt gives a lane, and how the two agree whether it is sent.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use aftercommit::downstream::Gate;
use tokio::sync::oneshot;

use super::{classify::Told, render::Publication};

/// How far an attempt's message got. Shared by the attempt and the lane.
#[derive(Clone, Debug, Default)]
pub(super) struct Stage(Arc<AtomicU8>);

const QUEUED: u8 = 0;
const BEGUN: u8 = 1;
const WITHDRAWN: u8 = 2;
const WRITTEN: u8 = 3;

impl Stage {
    /// `false`: the attempt gave up before, and nothing may be sent.
    pub(super) fn begin(&self) -> bool {
        self.0.compare_exchange(QUEUED, BEGUN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// `true` proves that nothing was sent, and never will be.
    pub(super) fn withdraw(&self) -> bool {
        let was = self.0.compare_exchange(QUEUED, WITHDRAWN, Ordering::SeqCst, Ordering::SeqCst);
        !matches!(was, Err(BEGUN | WRITTEN))
    }

    /// The library wrote it.
    pub(super) fn written(&self) {
        self.0.store(WRITTEN, Ordering::SeqCst);
    }

    /// The library has it and did not write it whole.
    pub(super) fn is_unwritten(&self) -> bool {
        self.0.load(Ordering::SeqCst) == BEGUN
    }
}

/// One message, and who waits for what becomes of it.
pub(super) struct Publish {
    pub(super) publication: Publication,
    pub(super) gate: Arc<dyn Gate>,
    pub(super) stage: Stage,
    pub(super) answer: oneshot::Sender<Told>,
}

/// What a lane is told.
pub(super) enum Order {
    Publish(Box<Publish>),
    /// The connection was blocked or unblocked, or an attempt ended.
    Look,
}
