//! The dashboard over real sockets: nobody gets further than their role, from nowhere else than its own pages, whatever the route.

mod access;
mod actions;
mod address;
mod api;
mod browser;
mod bulk;
mod by_key;
mod cases;
mod client;
mod command;
mod decide;
mod dev;
mod fleet;
mod follow;
mod foreseen;
mod forms;
mod frozen;
mod hostile;
mod limits;
mod live;
mod matrix;
mod mounts;
mod nginx;
mod openapi;
mod origin;
mod reach;
mod remote;
mod resend;
mod rows;
mod secrets;
mod sessions;
mod ten_million;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aftercommit::{
    clock::{ManualClock, Timestamp},
    store::Database,
};
use aftercommit_dashboard::{Access, Dashboard, Login, Role, Secret, Settings, dashboard};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub(crate) use client::{Answer, Ask};
pub(crate) use reach::{Reach, here_and_there};

/// A dashboard that listens, until it is dropped.
pub(crate) struct Site {
    /// Where.
    pub(crate) address: SocketAddr,
    /// The dashboard itself.
    pub(crate) dashboard: Arc<Dashboard>,
    _task: JoinSet<usize>,
}

impl Site {
    /// Opens one.
    pub(crate) async fn open(database: &Arc<dyn Database>, settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let dashboard = Arc::new(dashboard(Arc::clone(database), settings));
        let (served, mut task) = (Arc::clone(&dashboard), JoinSet::new());
        task.spawn(async move { served.serve(listener, CancellationToken::new(), Duration::ZERO).await });
        Self { address, dashboard, _task: task }
    }

    /// Something to be asked of it.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Ask {
        Ask::new(self.address, method, path)
    }

    /// Logs in with a token; the cookie.
    pub(crate) async fn log_in(&self, token: &str) -> String {
        let answer = self.ask("POST", "/login").ours().form(&format!("token={token}")).send().await;
        assert_eq!(answer.status, 303, "{answer:?}");
        answer.cookie().unwrap_or_else(|| panic!("no cookie: {answer:?}"))
    }
}

/// The token of a role.
pub(crate) fn token(role: Role) -> String {
    format!("a-long-token-of-the-{}", role.as_str())
}

/// A token for each role, and a user.
pub(crate) fn everybody() -> Access {
    let login =
        |name: &str, role, secret: &str| Login { name: name.to_owned(), role, secret: Secret::new(secret) };
    Access {
        tokens: Role::ALL.map(|role| login(role.as_str(), role, &token(role))).to_vec(),
        basic: vec![login("ann", Role::Operator, "password of ann")],
        proxy: None,
    }
}

/// Settings with a clock that the test moves.
pub(crate) fn settings(access: Access) -> (Arc<ManualClock>, Settings) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_000_000_000)));
    (Arc::clone(&clock), Settings { access, clock, ..Settings::default() })
}
