//! Sessions between mails. One that was idle is asked first whether it is still there (a blackholed connection looks like a good
//! one), one on which anything failed is not kept, and nobody keeps one for long.

use std::{sync::Mutex, time::Duration};

use tokio::{
    sync::{Mutex as Gate, Semaphore},
    time::{Instant, timeout_at},
};

use super::session::{self, NotOpened, Server, Session, Step};

/// An idle session is closed after this: servers close them after five minutes (RFC 5321 §4.5.3.2.7), firewalls forget earlier.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long an idle one may take to say that it is still there.
const PING: Duration = Duration::from_secs(5);
/// As many mails go over one session: servers limit it, and a new one may find a better address.
const USES_MAX: u32 = 100;
/// As many sessions are opened at one time, so that a server that comes back is not run over.
const OPENING: usize = 4;

/// The sessions of one server.
pub(super) struct Pool {
    server: Server,
    idle: Mutex<Vec<Session>>,
    opening: Semaphore,
    /// When the last attempt to open one failed, and why: who waited for it meanwhile gets the same answer.
    failed: Gate<Option<(Instant, NotOpened)>>,
}

impl Pool {
    pub(super) fn new(server: Server) -> Self {
        Self {
            server,
            idle: Mutex::default(),
            opening: Semaphore::new(OPENING),
            failed: Gate::const_new(None),
        }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// A session that is there: an idle one that answers, else a new one.
    pub(super) async fn take(&self, by: Instant) -> Result<Session, NotOpened> {
        while let Some(mut session) = self.pop() {
            if session.idle_since.elapsed() > IDLE_MAX {
                close(session).await;
                continue;
            }
            // A third of what is left, so that there is time for a new one.
            let now = Instant::now();
            let ping = PING.min(by.saturating_duration_since(now) / 3);
            if session.wire.ask("RSET", now + ping).await.is_ok_and(|reply| reply.code == 250) {
                return Ok(session);
            }
            // What took this one away took the others of its age too; to ask each would use up the time.
            self.lock().clear();
        }
        self.open(by).await
    }

    async fn open(&self, by: Instant) -> Result<Session, NotOpened> {
        let asked = Instant::now();
        let late = |_elapsed| NotOpened {
            step: Step::Connect,
            why: format!(
                "{} did not let us in in time: look at its load, or raise timeout",
                self.server.place
            ),
            reply: None,
            refuses_us: false,
        };
        let turn = timeout_at(by, self.opening.acquire()).await.map_err(late)?;
        // Nobody closes the semaphore: an error would only mean that there is no limit.
        let _turn = turn.ok();
        if let Some((when, failure)) = &*self.failed.lock().await
            && *when >= asked
        {
            return Err(failure.clone());
        }
        let opened = session::open(&self.server, by, &mut |_step, _seen| {}).await;
        if let Err(failure) = &opened {
            *self.failed.lock().await = Some((Instant::now(), failure.clone()));
        }
        opened
    }

    /// Takes back a session on which nothing failed.
    pub(super) async fn give_back(&self, mut session: Session) {
        session.used += 1;
        session.idle_since = Instant::now();
        if session.used >= USES_MAX {
            return close(session).await;
        }
        self.lock().push(session);
    }

    /// The one that was idle for the shortest time.
    fn pop(&self) -> Option<Session> {
        self.lock().pop()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().expect("no holder of this lock panics")
    }
}

/// Says goodbye, and does not wait for the answer: whatever comes of it, the mails that went before are what they are.
pub(super) async fn close(mut session: Session) {
    let soon = Instant::now() + Duration::from_millis(200);
    session.wire.write(b"QUIT\r\n", soon).await.ok();
}
