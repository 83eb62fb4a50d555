//! A message that the library has: whether it is written, and how it ended.

use std::{
    future::Future as _,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::{future::BoxFuture, task::AtomicWaker};
use lapin::{Confirmation, Error, PublisherConfirm};
use tokio::sync::oneshot;

use super::{classify::Told, order::Stage};

/// Whose message it is.
pub(super) struct Sent {
    pub(super) key: String,
    pub(super) routing_key: String,
    pub(super) stage: Stage,
    pub(super) answer: oneshot::Sender<Told>,
}

/// A message that was handed to the library.
pub(super) struct Outstanding {
    pub(super) sent: Sent,
    step: Step,
    mark: Arc<Mark>,
    waker: Waker,
}

enum Step {
    Writing(BoxFuture<'static, Result<PublisherConfirm, Error>>),
    Written(PublisherConfirm),
}

/// How it ended.
pub(super) enum End {
    /// Certainly not written whole.
    Unwritten(Error),
    Confirmed(Box<Confirmation>),
    /// Written, and no confirm will come.
    Failed(Error),
}

/// Something became of one message. The library sets the mark of a message before it turns to the next: whoever sees that
/// the next one ended finds this mark set.
struct Mark {
    set: AtomicBool,
    lane: Arc<AtomicWaker>,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.set.store(true, Ordering::SeqCst);
        self.lane.wake();
    }
}

impl Outstanding {
    /// One that is about to be written.
    pub(super) fn new(
        sent: Sent,
        writing: BoxFuture<'static, Result<PublisherConfirm, Error>>,
        lane: Arc<AtomicWaker>,
    ) -> Self {
        // Marked: it is looked at for the first time.
        let mark = Arc::new(Mark { set: AtomicBool::new(true), lane });
        let waker = Waker::from(Arc::clone(&mark));
        Self { sent, step: Step::Writing(writing), mark, waker }
    }

    pub(super) fn is_unwritten(&self) -> bool {
        matches!(self.step, Step::Writing(_))
    }

    /// Whether it ended, if it is marked; one without a mark is as it was.
    pub(super) fn look(&mut self) -> Poll<End> {
        if !self.mark.set.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let mut context = Context::from_waker(&self.waker);
        if let Step::Writing(writing) = &mut self.step {
            match writing.as_mut().poll(&mut context) {
                Poll::Ready(Ok(confirm)) => {
                    self.sent.stage.written();
                    self.step = Step::Written(confirm);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(End::Unwritten(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        match &mut self.step {
            Step::Written(confirm) => Pin::new(confirm).poll(&mut context).map(|confirmed| match confirmed {
                Ok(confirmation) => End::Confirmed(Box::new(confirmation)),
                Err(error) => End::Failed(error),
            }),
            Step::Writing(_) => Poll::Pending,
        }
    }
}
