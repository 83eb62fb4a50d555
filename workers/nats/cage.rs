//! Where the client's tasks run, and can be ended.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use tokio::runtime::Runtime;

/// A place of their own, so that they can be ended at once, with all that they have queued.
pub(super) struct Cage(Mutex<Option<Runtime>>);

impl Cage {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("nats")
            .enable_all()
            .build()?;
        Ok(Self(Mutex::new(Some(runtime))))
    }

    pub(super) fn spawn<F>(&self, future: F) -> Option<tokio::task::JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|runtime| runtime.spawn(future))
    }

    /// Ends every task where it stands, without waiting: the socket is closed, and what was queued is gone.
    pub(super) fn end(&self) {
        let runtime = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        self.end();
    }
}
