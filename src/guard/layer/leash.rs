//! A client that hangs up ends its request as long as nothing was begun for it; from BEGIN on it runs to its end.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::task::AbortHandle;

const BEGUN: u8 = 1;
const LEFT: u8 = 2;

/// Whether a request has begun, and whether its client has left: whoever comes first is heeded by the other.
#[derive(Default)]
pub(super) struct Watch(AtomicU8);

impl Watch {
    /// Before BEGIN is sent; false: the client has left, and nothing is to begin.
    pub(super) fn begin(&self) -> bool {
        self.0.fetch_or(BEGUN, Ordering::SeqCst) & LEFT == 0
    }

    /// What was begun is over, and it is waited again; false: the client has left.
    pub(super) fn wait(&self) -> bool {
        self.0.fetch_and(!BEGUN, Ordering::SeqCst) & LEFT == 0
    }

    /// Whether a transaction may be open.
    pub(super) fn has_begun(&self) -> bool {
        self.0.load(Ordering::SeqCst) & BEGUN != 0
    }

    /// The client leaves; true: nothing had begun, and nothing will.
    pub(super) fn leave(&self) -> bool {
        self.0.fetch_or(LEFT, Ordering::SeqCst) & BEGUN == 0
    }
}

/// Dropped with the client: then `leaves` says whether the task may stop.
pub(super) struct Leash<F: Fn() -> bool> {
    pub(super) task: AbortHandle,
    pub(super) leaves: F,
}

impl<F: Fn() -> bool> Drop for Leash<F> {
    fn drop(&mut self) {
        if (self.leaves)() {
            self.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_is_heeded_by_the_other() {
        let left = Watch::default();
        assert!(left.leave() && !left.begin(), "nothing begins for a client that has left");
        let begun = Watch::default();
        assert!(begun.begin() && !begun.leave() && begun.has_begun(), "what has begun runs to its end");
        assert!(!begun.wait(), "but is not begun again");
        let waits = Watch::default();
        assert!(waits.begin() && waits.wait() && waits.leave());
    }
}
