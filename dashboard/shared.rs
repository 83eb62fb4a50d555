//! What all handlers share: the database, the settings, and what is read once for everybody who looks.

use std::{
    future::Future,
    sync::{Arc, Weak},
};

use aftercommit::store::{Count, Database, DownstreamInfo};
use axum::extract::FromRef;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Operations,
    access::{Cookies, Sessions, Throttle},
    bulk::Bell,
    eyes::Eyes,
    fresh::{Fresh, Keeper, Snapshot},
    live::Hub,
    problem::Problem,
    redaction::Redaction,
    routes::Right,
    settings::Settings,
};

/// Requests that are answered at one time: many more than a database has connections for us.
const REQUESTS_MAX: usize = 256;
/// The same of requests that take no right, so that who brings no credentials takes no place from who does.
const PUBLIC_MAX: usize = 128;

/// The state of every handler.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Inner>);

/// [`Shared`] as long as somebody else has it: for tasks that end with the last router.
pub(crate) struct WeakShared(Weak<Inner>);

impl WeakShared {
    /// What it stands for, if it is there still.
    pub(crate) fn upgrade(&self) -> Option<Shared> {
        self.0.upgrade().map(Shared)
    }
}

struct Inner {
    database: Arc<dyn Database>,
    settings: Settings,
    operations: Operations,
    counts: Fresh<Vec<Count>>,
    downstreams: Fresh<Vec<DownstreamInfo>>,
    hub: Hub,
    bell: Arc<Bell>,
    redaction: Arc<Redaction>,
    cookies: Cookies,
    sessions: Sessions,
    throttle: Throttle,
    /// As many requests are answered at one time.
    places: Arc<Semaphore>,
    /// As many of them that take no right.
    public_places: Arc<Semaphore>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Shared {
    pub(crate) fn new(database: Arc<dyn Database>, settings: Settings) -> Self {
        let operations = settings.operations.clone().unwrap_or_default();
        // Whoever brought operations of their own has told them already what to watch.
        operations.watch(Arc::clone(&database), None);
        let clock = Arc::clone(&settings.clock);
        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let keeper = Keeper::new(Arc::clone(&clock), tasks.clone(), closing.clone());
        let (counted, listed) = (Arc::clone(&database), Arc::clone(&database));
        let redaction = Arc::new(Redaction::new(&settings.redact));
        let hidden = Arc::clone(&redaction);
        Self(Arc::new(Inner {
            operations,
            counts: Fresh::new(keeper.clone(), move || {
                let database = Arc::clone(&counted);
                Box::pin(async move { Ok((database.now().await?, database.counts().await?)) })
            }),
            downstreams: Fresh::new(keeper, move || {
                let (database, redaction) = (Arc::clone(&listed), Arc::clone(&hidden));
                Box::pin(async move {
                    Ok((database.now().await?, Eyes::new(&database, &redaction).downstreams().await?))
                })
            }),
            hub: Hub::default(),
            bell: Arc::default(),
            redaction,
            cookies: Cookies::of(&settings),
            sessions: Sessions::new(Arc::clone(&clock)),
            throttle: Throttle::new(clock),
            places: Arc::new(Semaphore::new(REQUESTS_MAX)),
            public_places: Arc::new(Semaphore::new(PUBLIC_MAX)),
            tasks,
            closing,
            database,
            settings,
        }))
    }

    /// The same, without keeping it.
    pub(crate) fn weak(&self) -> WeakShared {
        WeakShared(Arc::downgrade(&self.0))
    }

    /// The database itself: for what is counted, done, or judged. What is shown of its rows is read through [`Self::eyes`].
    pub(crate) fn database(&self) -> &Arc<dyn Database> {
        &self.0.database
    }

    /// What is shown of the database's rows.
    pub(crate) fn eyes(&self) -> Eyes<'_> {
        Eyes::new(&self.0.database, &self.0.redaction)
    }

    /// How this dashboard runs.
    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Effects by downstream and state, at most two seconds old as long as the database answers. Never a query of one request's own.
    ///
    /// # Errors
    ///
    /// When the database has not answered yet.
    pub(crate) async fn counts(&self) -> Result<Snapshot<Vec<Count>>, Problem> {
        self.0.counts.get().await
    }

    /// The downstreams, in the same way.
    ///
    /// # Errors
    ///
    /// When the database has not answered yet.
    pub(crate) async fn downstreams(&self) -> Result<Snapshot<Vec<DownstreamInfo>>, Problem> {
        self.0.downstreams.get().await
    }

    /// Somebody changed something here: no page that is shown from now on is older than that.
    pub(crate) fn outdate(&self) {
        self.0.counts.outdate();
        self.0.downstreams.outdate();
    }

    /// What this process tells of itself.
    pub(crate) fn operations(&self) -> &Operations {
        &self.0.operations
    }

    /// What is told to whoever looks.
    pub(crate) fn hub(&self) -> &Hub {
        &self.0.hub
    }

    /// What wakes whoever carries out bulks.
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.0.bell
    }

    /// Takes away what nobody is shown.
    pub(crate) fn redaction(&self) -> &Redaction {
        &self.0.redaction
    }

    pub(crate) fn cookies(&self) -> &Cookies {
        &self.0.cookies
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    pub(crate) fn throttle(&self) -> &Throttle {
        &self.0.throttle
    }

    /// Cancelled when the process wants to end: streams and loops end with it.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// Tasks of the dashboard. They are never aborted: a database call that is dropped half-way may leave its connection in a
    /// transaction.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    /// Runs `work`, an answer of a route that takes `right`, to its end in a task of its own, whoever waits for it.
    ///
    /// # Errors
    ///
    /// When it panicked, or too much is being done already: what nobody waits for any more still holds the database.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        right: Right,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Problem> {
        let places = if right == Right::Public { &self.0.public_places } else { &self.0.places };
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            return Err(Problem::crowded());
        };
        let task = async move {
            let done = work.await;
            drop(place);
            done
        };
        self.0.tasks.spawn(task).await.map_err(|_panicked| Problem::failed())
    }
}

impl FromRef<Shared> for Operations {
    fn from_ref(shared: &Shared) -> Self {
        shared.0.operations.clone()
    }
}
