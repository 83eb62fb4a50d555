//! The connection of a downstream, shared by its attempts: made when one needs it, one at a time, and made anew after it broke.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection, Event,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use tokio::{
    sync::{Mutex as AsyncMutex, OnceCell, mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::{
    classify::Fault,
    connect::Address,
    declare::{self, Way},
    lane::{Lane, Shared},
    loss::{away, lost},
    order::Order,
    suspects::Suspects,
    topology::Topology,
};

/// The routing key of the message that looks for an alarm: no queue has this name.
const NOWHERE: &str = "aftercommit-alarm-look-5f0c8a52-7f0e-4b8e-9d55-0d1f3f7a6c11";

/// The shared connection.
pub(super) struct Link {
    pub(super) address: Address,
    limit: Duration,
    /// How long a lane that gets no more orders waits for its last confirms.
    linger: Duration,
    topology: Arc<Topology>,
    /// What must go alone.
    pub(super) suspects: Arc<Suspects>,
    state: AsyncMutex<State>,
    /// Connections that were tried. Whoever waited while one was tried takes its result.
    tried: AtomicU64,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    failed: Option<Fault>,
}

/// One connection, from login to loss.
pub(super) struct Session {
    connection: Connection,
    pub(super) shared: Shared,
    lanes: Mutex<HashMap<Track, Arc<OnceCell<Orders>>>>,
    /// It said nothing for a whole attempt.
    suspect: AtomicBool,
    _tasks: JoinSet<()>,
}

/// What a lane is for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) way: Way,
    /// For messages that go one by one, on a channel of their own.
    pub(super) alone: bool,
}

/// Where a lane takes its orders.
pub(super) type Orders = mpsc::UnboundedSender<Order>;

impl Link {
    pub(super) fn new(address: Address, limit: Duration, linger: Duration, topology: Arc<Topology>) -> Self {
        Self {
            address,
            limit,
            linger,
            topology,
            suspects: Arc::default(),
            state: AsyncMutex::default(),
            tried: AtomicU64::new(0),
        }
    }

    /// The session, connected if there was none.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Fault> {
        let tried = self.tried.load(Ordering::SeqCst);
        let mut state = self.state.lock().await;
        if let Some(session) = state.session.as_ref().filter(|session| session.is_alive()) {
            return Ok(Arc::clone(session));
        }
        // A connection that was tried while we waited for the lock: a second one would fare no better.
        if let Some(fault) = state.failed.clone().filter(|_| self.tried.load(Ordering::SeqCst) != tried) {
            return Err(fault);
        }
        state.session = None;
        let opened = Session::open(&self.address, self.limit).await.map(Arc::new);
        state.failed = opened.as_ref().err().cloned();
        state.session = opened.as_ref().ok().cloned();
        self.tried.fetch_add(1, Ordering::SeqCst);
        opened
    }

    /// Where messages of `track` are published.
    pub(super) async fn orders(&self, track: &Track) -> Result<(Arc<Session>, Orders), Fault> {
        let session = self.session().await?;
        // Looking for an exchange would wait, too.
        if let Some(why) = session.shared.blocked() {
            return Err(Fault::Blocked(why));
        }
        let cell = session.cell(track);
        let opened = timeout(self.limit, cell.get_or_try_init(|| session.lane(track, self)));
        let orders = match opened.await {
            Ok(orders) => orders?.clone(),
            Err(_elapsed) => {
                session.suspect.store(true, Ordering::Relaxed);
                let place = &self.address.place;
                return Err(Fault::Away(format!(
                    "{place} does not answer, no channel within {:?}: look at its load",
                    self.limit
                )));
            }
        };
        Ok((session, orders))
    }
}

impl Session {
    /// Connects, and learns whether an alarm blocks publishers.
    pub(super) async fn open(address: &Address, limit: Duration) -> Result<Self, Fault> {
        let (connection, socket) = address.open(limit).await?;
        let (tell, blocked) = watch::channel(None);
        let shared = Shared {
            status: connection.status().clone(),
            blocked,
            heard: Arc::default(),
            socket,
            frame_max: usize::try_from(connection.configuration().frame_max()).unwrap_or(usize::MAX),
            place: address.place.as_str().into(),
        };
        let mut tasks = JoinSet::new();
        let events = connection.events_listener();
        // What it said before anybody listened is lost, but for this.
        if shared.status.blocked() {
            tell.send_replace(Some("an alarm".to_owned()));
        }
        tasks.spawn(watch_events(events, shared.place.clone(), tell));
        let looked = timeout(limit, look_for_alarm(&connection, shared.blocked.clone(), &mut tasks)).await;
        if looked.is_err() {
            shared.socket.shut();
            let why = format!("{} let us in and does not answer: look at its load", address.place);
            return Err(Fault::Away(why));
        }
        let (lanes, suspect) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { connection, shared, lanes, suspect, _tasks: tasks })
    }

    fn is_alive(&self) -> bool {
        self.connection.status().connected() && !self.suspect.load(Ordering::Relaxed)
    }

    /// A channel of its own, for what may close it.
    pub(super) async fn channel(&self) -> Result<Channel, Fault> {
        let opened = self.connection.create_channel().await;
        opened.map_err(|error| away(&self.shared.place, &error))
    }

    /// An attempt waited for a confirm in vain; `heard` is what this connection had brought when it began. Where nothing
    /// came since, later attempts take another connection; a broker that blocks us will be heard again.
    pub(super) fn doubt(&self, heard: u64) {
        if self.heard() == heard && self.shared.blocked().is_none() {
            self.suspect.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the connection at once: what is not written never will be.
    pub(super) fn abandon(&self) {
        self.suspect.store(true, Ordering::Relaxed);
        self.shared.socket.shut();
    }

    pub(super) fn heard(&self) -> u64 {
        self.shared.heard.load(Ordering::Relaxed)
    }

    /// The lane's place; one whose lane ended is replaced.
    fn cell(&self, track: &Track) -> Arc<OnceCell<Orders>> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = |cell: &Arc<OnceCell<Orders>>| cell.get().is_some_and(mpsc::UnboundedSender::is_closed);
        if lanes.get(track).is_some_and(ended) {
            lanes.remove(track);
        }
        Arc::clone(lanes.entry(track.clone()).or_default())
    }

    async fn lane(&self, track: &Track, link: &Link) -> Result<Orders, Fault> {
        declare::prepare(self, &track.way, &link.topology).await?;
        let channel = self.channel().await?;
        let confirming = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirming.map_err(|error| away(&self.shared.place, &error))?;
        let (orders, taken) = mpsc::unbounded_channel();
        let lane = Lane::new(channel, track, self.shared.clone(), link.suspects.clone(), taken);
        TaskTracker::new().spawn(lane.run(link.linger));
        self.wake_when_blocked(orders.downgrade());
        Ok(orders)
    }

    /// A lane that waits for confirms must learn at once that the broker blocks us.
    fn wake_when_blocked(&self, orders: mpsc::WeakUnboundedSender<Order>) {
        let mut blocked = self.shared.blocked.clone();
        TaskTracker::new().spawn(async move {
            while blocked.changed().await.is_ok() {
                let Some(orders) = orders.upgrade() else { return };
                if orders.send(Order::Look).is_err() {
                    return;
                }
            }
        });
    }
}

async fn watch_events(
    events: impl futures_util::Stream<Item = Event> + Send,
    place: Arc<str>,
    blocked: watch::Sender<Option<String>>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        if let Event::ConnectionBlocked(reason) = event {
            tracing::warn!(%place, reason, "the broker takes no messages: effects wait until its alarm is over");
            blocked.send_replace(Some(reason));
        } else if matches!(event, Event::ConnectionUnblocked) {
            tracing::info!(%place, "the broker takes messages again");
            blocked.send_replace(None);
        } else if let Event::Error(error) = event {
            tracing::warn!("{}", lost(&place, &error));
        }
    }
}

/// A broker with an alarm says so only to a connection that publishes. So a message that goes nowhere is published first:
/// what an effect's message would meet, it meets, and nothing is in doubt for it.
async fn look_for_alarm(
    connection: &Connection,
    mut blocked: watch::Receiver<Option<String>>,
    tasks: &mut JoinSet<()>,
) {
    let Ok(channel) = connection.create_channel().await else { return };
    if channel.confirm_select(ConfirmSelectOptions::default()).await.is_err() {
        return;
    }
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    // Whoever may not publish to the default exchange learns of an alarm from the first effect.
    let Ok(confirm) = channel
        .basic_publish("".into(), NOWHERE.into(), options, b"", lapin::BasicProperties::default())
        .await
    else {
        return;
    };
    let (said, confirmed) = tokio::sync::oneshot::channel();
    tasks.spawn(async move {
        confirm.await.ok();
        said.send(()).ok();
        drop(channel);
    });
    tokio::select! {
        _ = confirmed => {}
        _ = blocked.wait_for(Option::is_some) => {}
    }
}
