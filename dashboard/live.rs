//! What changes, told to whoever looks: server-sent events at `GET /api/v1/events`.
//!
//! However many listen, one task asks, once a second and only while somebody listens. A listener that is slow misses what was
//! between, never the last: what is told is how things stand, not what happened.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aftercommit::store::Filter;
use axum::{
    extract::State,
    http::{Method, StatusCode},
    response::{
        IntoResponse as _, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, stream};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::{
    api::json::{CountJson, CountsJson, Time},
    problem::Problem,
    routes::{Right, Routes},
    shared::Shared,
};

/// How often the database is asked while somebody listens.
const EVERY: Duration = Duration::from_secs(1);
/// What a proxy or a phone takes for a dead connection is longer than this.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// As many listen at once; each holds a connection.
const LISTENERS_MAX: usize = 200;
/// After this long a listener has to come again, which browsers do by themselves: rights that ended end here too.
const LIFE: Duration = Duration::from_secs(300);

/// What pages ask for by themselves, without anybody who looks.
pub(crate) const BY_ITSELF: [&str; 2] = ["/api/v1/events", "/api/v1/counts"];
/// The header by which they say the same of whatever else they ask for.
pub(crate) const REFRESH: &str = "x-aftercommit-refresh";

/// Who listens, and what they are told. One per dashboard.
#[derive(Default)]
pub(crate) struct Hub(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Who listens now. The poller ends when nobody does.
    listeners: Listeners,
    /// The last that was told; there is one as long as the poller runs.
    told: Option<watch::Sender<Option<Told>>>,
    /// The poller that tells.
    poller: Option<JoinHandle<()>>,
}

/// Who listens, by number, and when each has to end.
#[derive(Default)]
struct Listeners {
    open: BTreeMap<u64, Instant>,
    last: u64,
}

impl Listeners {
    /// One more; `None` when too many listen. Whose time is over counts no more: one who does not read is never asked to end.
    fn enter(&mut self, now: Instant) -> Option<u64> {
        self.forget(now);
        if self.open.len() >= LISTENERS_MAX {
            return None;
        }
        self.last += 1;
        self.open.insert(self.last, now + LIFE);
        Some(self.last)
    }

    fn leave(&mut self, n: u64) {
        self.open.remove(&n);
    }

    fn forget(&mut self, now: Instant) {
        self.open.retain(|_, ends| *ends > now);
    }
}

/// An event: its name and its data.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Counts(Arc<CountsJson>),
    /// The database does not answer.
    Away(Arc<str>),
}

impl Told {
    /// Whether whoever was told `before` need not be told this: a clock that goes on is no change.
    fn is_news_after(&self, before: Option<&Self>) -> bool {
        match (self, before) {
            (Self::Counts(now), Some(Self::Counts(before))) => {
                (&now.counts, now.newest) != (&before.counts, before.newest)
            }
            (Self::Away(_), Some(Self::Away(_))) => false,
            (Self::Counts(_) | Self::Away(_), _) => true,
        }
    }

    fn event(&self) -> Event {
        match self {
            Self::Counts(counts) => match Event::default().event("counts").json_data(&**counts) {
                Ok(event) => event,
                Err(problem) => Event::default().comment(problem.to_string().replace(['\n', '\r'], " ")),
            },
            Self::Away(why) => Event::default().event("away").data(why.replace(['\n', '\r'], " ")),
        }
    }
}

/// One who listens. Dropped, it leaves.
struct Listener {
    shared: Shared,
    told: watch::Receiver<Option<Told>>,
    /// It was told nothing yet.
    is_new: bool,
    /// Its number.
    n: u64,
    ends: Instant,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.hub().lock().listeners.leave(self.n);
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is held; and what it guards is whole after every line.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more listens; `None` when too many do.
    fn listen(&self, shared: &Shared) -> Option<Listener> {
        let (mut inner, now) = (self.lock(), Instant::now());
        let n = inner.listeners.enter(now)?;
        // It ended by itself, as it never should: another one begins.
        if inner.poller.as_ref().is_some_and(JoinHandle::is_finished) {
            inner.told = None;
        }
        let told = match &inner.told {
            Some(told) => told.subscribe(),
            None => {
                let (sender, told) = watch::channel(None);
                inner.told = Some(sender.clone());
                inner.poller = Some(shared.tasks().spawn(poll(shared.clone(), sender)));
                told
            }
        };
        Some(Listener { shared: shared.clone(), told, is_new: true, n, ends: now + LIFE })
    }

    /// Whether the poller may end: nobody listens, and from here on the next one starts another.
    fn is_left(&self) -> bool {
        let mut inner = self.lock();
        inner.listeners.forget(Instant::now());
        if !inner.listeners.open.is_empty() {
            return false;
        }
        inner.told = None;
        true
    }
}

/// Asks until nobody listens.
async fn poll(shared: Shared, told: watch::Sender<Option<Told>>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.closing().cancelled() => return,
        }
        if shared.hub().is_left() {
            return;
        }
        let now = match look(&shared).await {
            Ok(counts) => Told::Counts(Arc::new(counts)),
            Err(problem) => Told::Away(problem.detail().into()),
        };
        told.send_if_modified(|before| {
            let news = now.is_news_after(before.as_ref());
            if news {
                *before = Some(now);
            }
            news
        });
    }
}

/// How things stand.
pub(crate) async fn look(shared: &Shared) -> Result<CountsJson, Problem> {
    let snapshot = shared.counts().await?;
    let newest = shared.database().effects(&Filter { limit: 1, ..Filter::default() }).await?;
    Ok(CountsJson {
        as_of: Time(snapshot.as_of),
        counts: snapshot.value.iter().map(CountJson::from).collect(),
        newest: newest.effects.first().map(|effect| effect.id),
    })
}

pub(crate) fn routes(routes: &mut Routes) {
    routes.add(Method::GET, "/api/v1/events", Right::View, events);
}

/// How things stand, now and whenever that changes.
///
/// Events of the name `counts` carry what `GET counts` answers; one of the name `away` says why the database cannot be asked.
/// The stream ends after some minutes: come again.
#[utoipa::path(
    get,
    path = "/events",
    tag = "look",
    responses(
        (status = 200, description = "Server-sent events", content_type = "text/event-stream", body = String),
        (status = 503),
    )
)]
pub(crate) async fn events(State(shared): State<Shared>) -> Response {
    match shared.hub().listen(&shared) {
        Some(listener) => {
            let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
            // A proxy that gathers what it is sent would tell nobody anything.
            ([("x-accel-buffering", "no")], Sse::new(heard(listener)).keep_alive(keep_alive)).into_response()
        }
        None => {
            let detail = "As many listen already as may. Close a page that nobody looks at, or ask GET counts now and then.";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-listeners", "Too many listen", detail)
                .retry_after(30)
                .into_response()
        }
    }
}

/// What a listener hears, to the end.
fn heard(listener: Listener) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(listener, |mut listener| async move {
        let closing = listener.shared.closing().clone();
        loop {
            // What was told before it came is news to it, too.
            let known =
                if listener.told.has_changed().unwrap_or(false) || std::mem::take(&mut listener.is_new) {
                    listener.told.borrow_and_update().clone()
                } else {
                    None
                };
            if let Some(known) = known {
                return Some((Ok(known.event()), listener));
            }
            tokio::select! {
                changed = listener.told.changed() => {
                    changed.ok()?;
                    listener.told.mark_changed();
                }
                () = tokio::time::sleep_until(listener.ends) => return None,
                () = closing.cancelled() => return None,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use aftercommit::{clock::Timestamp, effect::EffectId, state::State};

    use super::*;

    fn counts(at: i64, effects: u64, newest: i64) -> Told {
        let count = CountJson { downstream: "pay".to_owned(), state: State::Ready, effects };
        let newest = Some(EffectId::new(newest));
        Told::Counts(Arc::new(CountsJson {
            as_of: Time(Timestamp::from_micros(at)),
            counts: vec![count],
            newest,
        }))
    }

    #[test]
    fn who_does_not_read_holds_a_place_no_longer_than_others() {
        let (mut listeners, now) = (Listeners::default(), Instant::now());
        let entered: Vec<_> = (0..LISTENERS_MAX).map(|_| listeners.enter(now).unwrap()).collect();
        assert_eq!(listeners.enter(now), None);
        listeners.leave(entered[7]);
        assert!(listeners.enter(now).is_some() && listeners.enter(now).is_none());
        assert!(listeners.enter(now + LIFE).is_some());
        assert_eq!(listeners.open.len(), 1);
    }

    #[test]
    fn a_clock_that_goes_on_is_no_news() {
        let before = counts(1, 7, 3);
        assert!(before.is_news_after(None));
        assert!(!counts(2, 7, 3).is_news_after(Some(&before)));
        assert!(counts(2, 8, 3).is_news_after(Some(&before)) && counts(2, 7, 4).is_news_after(Some(&before)));
        let away = || Told::Away("gone".into());
        assert!(away().is_news_after(Some(&before)) && !away().is_news_after(Some(&away())));
        assert!(before.is_news_after(Some(&away())));
    }
}
