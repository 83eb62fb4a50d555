//! Endpoints: their rows are read for the downstreams that have many, and what calls showed of them is written.
//!
//! Never part of a settle: an outcome is written whatever becomes of its endpoint.

use std::{sync::Arc, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Outages, Shared};
use crate::{
    clock::Timestamp,
    downstream::endpoint::{Change, Directory, change},
    error::StoreError,
    verb::Actor,
};

/// How old the copy may become.
const READ_EVERY: Duration = Duration::from_secs(1);
/// However many ask for fresh rows, they are read no more often than this.
const READ_PAUSE: Duration = Duration::from_millis(50);

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
    while !end.is_cancelled() {
        tokio::select! {
            () = directory.wanted() => tokio::time::sleep(READ_PAUSE).await,
            () = tokio::time::sleep(READ_EVERY) => {}
            () = end.cancelled() => {}
        }
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

/// Reads, writes what follows from what was noted, and reads what that made of it.
async fn look(shared: &Shared, name: &Arc<str>, directory: &Directory) -> Result<(), StoreError> {
    let now = read(shared, name, directory).await?;
    if write(shared, name, directory, now).await? {
        read(shared, name, directory).await?;
    }
    Ok(())
}

async fn read(shared: &Shared, name: &str, directory: &Directory) -> Result<Timestamp, StoreError> {
    let asked = directory.asked();
    let (now, rows) = shared.store.endpoints(name).await?;
    directory.put(asked, rows);
    Ok(now)
}

/// Whether anything was written. What could not be is noted again.
async fn write(
    shared: &Shared,
    downstream: &Arc<str>,
    directory: &Directory,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let (mut written, mut failed) = (false, None);
    for (name, noted) in directory.take() {
        let known = directory.find(&name);
        let Some(change) = change(known.as_deref(), &noted, now, directory.disable_after) else { continue };
        match apply(shared, downstream, &name, change).await {
            Ok(()) => written = true,
            Err(error) => {
                directory.note(&name, noted.last);
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(written), Err)
}

async fn apply(shared: &Shared, downstream: &Arc<str>, name: &str, change: Change) -> Result<(), StoreError> {
    let reason = match change {
        Change::Fails => return shared.store.note_endpoint(downstream, name, true).await,
        Change::Works => return shared.store.note_endpoint(downstream, name, false).await,
        Change::Disable(reason) => reason,
    };
    let actor = Actor { who: shared.config.worker.to_string(), reason: None };
    if shared.store.switch_endpoint(downstream, name, Some(&reason), &actor).await? {
        tracing::error!(%downstream, endpoint = name, reason,
            "the endpoint is disabled: what is due there fails, unsent; enable it with `aftercommit endpoints enable`, then retry");
    }
    Ok(())
}
