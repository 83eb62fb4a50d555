//! The endpoints of a downstream that has many by name: [`Endpoints`] (the engine's, and people's).

use crate::{
    clock::Timestamp,
    downstream::endpoint::{Called, Change, Endpoint},
    error::StoreError,
    verb::Actor,
};

/// Reads and switches endpoints.
#[async_trait::async_trait]
pub trait Endpoints: Send + Sync {
    /// Every row of `downstream`, and the database's clock.
    async fn endpoints(&self, downstream: &str) -> Result<(Timestamp, Vec<Endpoint>), StoreError>;

    /// Writes what an endpoint showed to `worker`; `false` when nothing changed by it, as it was so already, or the row is gone
    /// or has another URL than was called. Disabling it leaves an audit row.
    async fn note_endpoint(
        &self,
        downstream: &str,
        called: &Called,
        change: &Change,
        worker: &str,
    ) -> Result<bool, StoreError>;

    /// A person disables an endpoint (`disable` says why), or enables it again, with an audit row; `false` when it was so already, or,
    /// to enable it, nobody ever disabled one of that name.
    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> Result<bool, StoreError>;
}
