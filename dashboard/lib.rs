//! The dashboard: pages and a JSON API as an axum [`Router`] that mounts anywhere, and [`Operations`]: health and metrics.
//!
//! Every route is added by `routes::Routes` with the right that it takes; who comes is found out by `access`; what holds for every
//! answer is in `security`. Nothing here decides about effects.

mod access;
mod actions;
pub mod api;
mod bulk;
mod causes;
mod charts;
mod digest;
mod eyes;
mod fresh;
mod live;
mod metrics;
mod operations;
mod pages;
mod problem;
mod redaction;
mod routes;
mod search;
mod security;
mod serve;
mod settings;
mod shared;
mod slow;

use std::{sync::Arc, time::Duration};

use aftercommit::store::Database;
use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use access::{Guest, Role};
pub use operations::Operations;
pub use redaction::{Pattern, Pointer, Redact};
pub use routes::{Right, Route};
pub use settings::{Access, BulkLimits, KnownAs, Login, Proxy, Secret, Settings, Trial};

use routes::Routes;
use shared::Shared;

/// The pages and the API of one database.
pub struct Dashboard {
    router: Router,
    table: Vec<Route>,
    shared: Shared,
}

/// Where the pages' sheet is, below a dashboard's root: for a page beside them that should look like them.
pub fn sheet() -> String {
    format!("assets/{}", pages::assets::sheet())
}

/// Furnishes a dashboard for `database`. Nothing is asked of it before somebody looks, but whether a bulk is left to be carried out:
/// a dashboard that is not read-only does that from now on, or, made outside a runtime, from its first request on.
pub fn dashboard(database: Arc<dyn Database>, settings: Settings) -> Dashboard {
    let shared = Shared::new(database, settings);
    let mut routes = Routes::new(shared.clone());
    access::routes(&mut routes);
    operations::routes(&mut routes);
    api::routes(&mut routes);
    live::routes(&mut routes);
    pages::routes(&mut routes);
    let (router, table) = routes.finish();
    bulk::begin(&shared);
    Dashboard { router, table, shared }
}

impl Dashboard {
    /// Everything, to be merged at the root or nested at a path. Serve it with `into_make_service_with_connect_info::<SocketAddr>()`:
    /// without the address of who asks, nobody is let in who has no credentials. Slow bodies end here too; slow readers and heads that do
    /// not end are for whoever serves it, as [`Self::serve_app`] does.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Everything below `path` (`/ops/effects`), to be merged into an application. As opposed to `nest`, the path without its
    /// trailing slash leads to the one with it.
    pub fn at(&self, path: &str) -> Router {
        routes::at(path, self.router.clone())
    }

    /// What an application puts beside the pages, for people at this machine as they are: called by the dashboard's names only, changed by
    /// no page of somebody else's, with the same headers.
    pub fn beside(&self, other: Router) -> Router {
        let around = security::Around::new(self.shared.clone(), slow::Patience::default());
        other.layer(axum::middleware::from_fn_with_state(around, security::beside))
    }

    /// Every route with the right that it takes.
    pub fn table(&self) -> &[Route] {
        &self.table
    }

    /// Cancelled, it ends what would not end by itself: streams of events and the tasks behind them.
    pub fn closing(&self) -> CancellationToken {
        self.shared.closing().clone()
    }

    /// Serves it until `stop`; then takes no more connections, ends streams, and lets open requests end within `grace`. Says how many
    /// connections it had to cut off.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken, grace: Duration) -> usize {
        self.serve_app(self.router(), listener, stop, grace).await
    }

    /// [`Self::serve`] for an application that has this dashboard in it.
    pub async fn serve_app(
        &self,
        app: Router,
        listener: TcpListener,
        stop: CancellationToken,
        grace: Duration,
    ) -> usize {
        serve::serve(self, app, listener, (stop, grace)).await
    }
}
