//! Serving health and metrics beside a worker.

use std::{future::IntoFuture as _, net::SocketAddr};

use aftercommit_dashboard::Operations;
use tokio::{net::TcpListener, task::JoinSet};

use super::{Exit, fail};

/// The endpoints, served until this is dropped.
pub(super) struct Served {
    operations: Operations,
    _task: JoinSet<()>,
}

impl Served {
    /// Listens at `address`, if there is one: from here on the process is alive for whoever asks, and not yet ready.
    ///
    /// # Errors
    ///
    /// When the address cannot be had.
    pub(super) async fn start(address: Option<SocketAddr>) -> anyhow::Result<Self> {
        let operations = Operations::default();
        let mut task = JoinSet::new();
        if let Some(address) = address {
            let listener = TcpListener::bind(address).await.map_err(|problem| {
                fail(
                    Exit::Failure,
                    format!(
                        "{address} cannot be listened at ({problem}): correct worker.listen, or stop what has it"
                    ),
                )
            })?;
            tracing::info!(address = %listener.local_addr()?, "serving /healthz, /readyz and /metrics");
            let app = operations.router();
            task.spawn(async move {
                if let Err(problem) = axum::serve(listener, app).into_future().await {
                    tracing::error!(%problem, "health and metrics are served no more; the work goes on");
                }
            });
        }
        Ok(Self { operations, _task: task })
    }

    /// What the endpoints look at.
    pub(super) fn operations(&self) -> &Operations {
        &self.operations
    }
}
