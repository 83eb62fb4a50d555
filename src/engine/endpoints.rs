//! Endpoints: their rows are read for the downstreams that have many, and what calls showed of them is written.
//!
//! Never part of a settle: an outcome is written whatever becomes of its endpoint.

use std::{sync::Arc, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Outages, Shared};
use crate::{
    clock::Timestamp,
    downstream::endpoint::{Called, Change, Directory, change},
    error::StoreError,
};

/// How old the copy may become.
const READ_EVERY: Duration = Duration::from_secs(1);
/// However many ask for fresh rows, two readings begin no closer to each other than this: the later askers share one.
const READ_APART: Duration = Duration::from_millis(250);

/// The tasks that read and write, one for each downstream that has endpoints.
pub(super) struct Reading {
    end: CancellationToken,
    tasks: TaskTracker,
}

impl Reading {
    /// Reads once before anything is claimed; an outage is waited out elsewhere.
    pub(super) async fn start(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let (end, tasks) = (CancellationToken::new(), TaskTracker::new());
        for (name, serving) in &shared.served {
            let Some(directory) = serving.served.downstream.directory() else { continue };
            match read(shared, name, directory).await {
                Ok(_) => {}
                Err(error) if error.is_outage() => {}
                Err(error) => return Err(error),
            }
            tasks.spawn(run(Arc::clone(shared), Arc::clone(name), end.clone()));
        }
        tasks.close();
        Ok(Self { end, tasks })
    }

    /// Writes what is left to write.
    pub(super) async fn stop(self) {
        self.end.cancel();
        self.tasks.wait().await;
    }
}

async fn run(shared: Arc<Shared>, name: Arc<str>, end: CancellationToken) {
    let Some(directory) = shared.served[&name].served.downstream.directory() else { return };
    let mut outages = Outages::default();
    let mut began = shared.clock.boot();
    while !end.is_cancelled() {
        tokio::select! {
            () = early(directory, shared.clock.boot() - began) => {}
            () = tokio::time::sleep(READ_EVERY) => {}
            () = end.cancelled() => {}
        }
        began = shared.clock.boot();
        match look(&shared, &name, directory).await {
            Ok(()) => outages.over(),
            Err(error) => {
                outages.report("reading endpoints", &error);
                tokio::select! {
                    () = outages.wait() => {}
                    () = end.cancelled() => {}
                }
            }
        }
    }
}

/// Until somebody wants fresh rows and the last reading, which began so long ago, is far enough away.
async fn early(directory: &Directory, since: Duration) {
    let apart = READ_APART.saturating_sub(since);
    if !apart.is_zero() {
        tokio::time::sleep(apart).await;
    }
    directory.wanted().await;
}

/// Reads, writes what follows from what was noted, and reads what that made of it.
async fn look(shared: &Shared, name: &Arc<str>, directory: &Directory) -> Result<(), StoreError> {
    let now = read(shared, name, directory).await?;
    if write(shared, name, directory, now).await? {
        read(shared, name, directory).await?;
    }
    Ok(())
}

async fn read(shared: &Shared, name: &str, directory: &Directory) -> Result<Timestamp, StoreError> {
    let reading = directory.begin_reading();
    let (now, rows) = shared.store.endpoints(name).await?;
    directory.put(reading, rows);
    Ok(now)
}

/// Whether anything was written. What could not be is noted again, whole.
async fn write(
    shared: &Shared,
    downstream: &Arc<str>,
    directory: &Directory,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let (mut written, mut failed) = (false, None);
    for (called, noted) in directory.take() {
        let known = directory.find(&called.name);
        let change = change(known.as_deref(), (&called, &noted), now, directory.disable_after);
        let Some(change) = change else { continue };
        match apply(shared, downstream, &called, &change).await {
            Ok(()) => written = true,
            Err(error) => {
                directory.put_back(called, noted);
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(written), Err)
}

async fn apply(
    shared: &Shared,
    downstream: &Arc<str>,
    called: &Called,
    change: &Change,
) -> Result<(), StoreError> {
    let written = shared.store.note_endpoint(downstream, called, change, &shared.config.worker).await?;
    if let (Change::Disable(reason), true) = (change, written) {
        tracing::error!(%downstream, endpoint = &*called.name, reason,
            "the endpoint is disabled: what is due there fails, unsent; enable it with `aftercommit endpoints enable`, then retry");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test]
    async fn however_many_ask_the_rows_are_not_read_again_right_after_they_were() {
        let directory = Directory::new(None, Arc::new(SystemClock));
        assert!(early(&directory, READ_APART).now_or_never().is_none(), "nobody asked");
        for _ in 0..3 {
            assert!(directory.fresh().now_or_never().is_none());
        }
        assert!(early(&directory, Duration::ZERO).now_or_never().is_none(), "they were read just now");
        assert!(early(&directory, READ_APART).now_or_never().is_some());
        assert!(early(&directory, READ_APART).now_or_never().is_none(), "all askers share one reading");
    }
}
