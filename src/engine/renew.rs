//! Renewals: on a thread and a runtime of their own, so that no busy attempt can starve them.

use std::{sync::Arc, thread, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Outages, Shared, figures::Beat};

/// A worker that has not reported for this long is not live; it reports several times as often.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A running renewal thread.
pub(super) struct Renewals {
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Renewals {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// When the operating system gives no thread.
    pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new()
            .name("aftercommit-renew".to_owned())
            .spawn(move || runtime.block_on(renew_until(&shared, &stopped)))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread; a renewal that is on its way is waited for.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the renewal thread panicked");
            }
        }
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// One renewal at a time; a tick that falls into a slow one is skipped, not queued.
async fn renew_until(shared: &Shared, stop: &CancellationToken) {
    let shortest = shared.served.values().map(|served| served.served.lease).min().unwrap_or(HEARTBEAT);
    let tick = (shortest / 4).clamp(Duration::from_millis(20), Duration::from_secs(2));
    let mut reported = shared.clock.boot();
    let mut outages = Outages::default();
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(tick) => {}
        }
        let asked = shared.clock.boot();
        let due = shared.leases.to_renew(asked);
        if due.is_empty() && asked - reported < HEARTBEAT {
            continue;
        }
        match shared.store.renew(&shared.config.worker, &due).await {
            Ok(kept) => {
                reported = asked;
                shared.figures.beat(Beat::Renewal, asked);
                outages.over();
                shared.leases.renewed(&due, &kept, asked);
            }
            Err(error) => outages.report("renewing leases", &error),
        }
    }
}
