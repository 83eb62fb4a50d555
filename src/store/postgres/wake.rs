//! Waking workers: a LISTEN connection that turns notifications into a hint. Only a hint: polling is the truth.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::{sync::Notify, task::JoinSet, time::timeout};

use crate::clock::{Boot, Clock as _, SystemClock};

/// The channel that the trigger on `effects` notifies; without a payload.
pub(super) const CHANNEL: &str = "aftercommit_work";

/// How long silence is trusted: a listener whose connection died without a word is noticed after this and [`PROBE_TIMEOUT`].
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two tries to connect again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// When the listening connection was last known to be alive.
type Heard = Arc<Mutex<Option<Boot>>>;

/// The listener's task; it ends with this value.
#[derive(Debug)]
pub(super) struct Wake {
    hint: Arc<Notify>,
    /// When the listening connection was last known to be alive; written by the task.
    heard: Heard,
    _task: JoinSet<()>,
}

impl Wake {
    pub(super) fn start(options: PgConnectOptions) -> Self {
        let hint = Arc::new(Notify::new());
        let heard = Arc::default();
        let mut task = JoinSet::new();
        task.spawn(listen_for_ever(options, Arc::clone(&hint), Arc::clone(&heard)));
        Self { hint, heard, _task: task }
    }

    /// How long ago the listening connection was last known to be alive; `None` while there is none.
    pub(super) fn age(&self) -> Option<Duration> {
        let heard = *self.heard.lock().expect("no holder of this lock panics");
        heard.map(|at| SystemClock.boot() - at)
    }

    /// Waits for a hint, at most `at_most`.
    pub(super) async fn wait(&self, at_most: Duration) {
        // Nothing follows from which of the two it was.
        drop(timeout(at_most, self.hint.notified()).await);
    }
}

async fn listen_for_ever(options: PgConnectOptions, hint: Arc<Notify>, heard: Heard) {
    loop {
        if let Err(error) = listen(&options, &hint, &heard).await {
            tracing::debug!(%error, "the listening connection was lost; polling goes on");
        }
        *heard.lock().expect("no holder of this lock panics") = None;
        wake(&hint);
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// Listens until the connection is lost.
async fn listen(options: &PgConnectOptions, hint: &Notify, heard: &Heard) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(options.clone())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    // Whatever was committed before we listened.
    wake(hint);
    loop {
        *heard.lock().expect("no holder of this lock panics") = Some(SystemClock.boot());
        match timeout(PROBE_EVERY, listener.try_recv()).await {
            Ok(Ok(Some(_))) => wake(hint),
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let probe = sqlx::query("SELECT 1").execute(&mut listener);
                match timeout(PROBE_TIMEOUT, probe).await {
                    Ok(answered) => {
                        answered?;
                    }
                    Err(_) => return Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
                }
            }
        }
    }
}

/// Wakes who waits now, and the next one who comes: a hint between two waits is not lost.
fn wake(hint: &Notify) {
    hint.notify_waiters();
    hint.notify_one();
}
