//! The endpoints of a downstream that has many by name: [`Endpoints`] (the engine's, and people's).

use crate::{clock::Timestamp, downstream::endpoint::Endpoint, error::StoreError, verb::Actor};

/// Reads and switches endpoints.
#[async_trait::async_trait]
pub trait Endpoints: Send + Sync {
    /// Every row of `downstream`, and the database's clock.
    async fn endpoints(&self, downstream: &str) -> Result<(Timestamp, Vec<Endpoint>), StoreError>;

    /// Notes that an endpoint fails from now on, unless that was noted already, or that it does not.
    async fn note_endpoint(&self, downstream: &str, name: &str, fails: bool) -> Result<(), StoreError>;

    /// Disables an endpoint (`disable` says why), or enables it again, with an audit row; `false` when it was so already, or,
    /// to enable it, nobody ever disabled one of that name.
    async fn switch_endpoint(
        &self,
        downstream: &str,
        name: &str,
        disable: Option<&str>,
        actor: &Actor,
    ) -> Result<bool, StoreError>;
}
