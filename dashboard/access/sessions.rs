//! Sessions of people who logged in on the page. They live in this process and nowhere else: a restart ends them, and of several
//! dashboards each has its own.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aftercommit::clock::{Boot, Clock};

use super::Role;
use crate::settings::hash;

/// Unused for so long a session ends.
pub(crate) const IDLE: Duration = Duration::from_secs(30 * 60);
/// Nobody stays longer than this without saying again who they are.
pub(crate) const AT_MOST: Duration = Duration::from_secs(12 * 60 * 60);
/// Sessions at one time; the one unused longest makes room.
const SESSIONS_MAX: usize = 1000;
/// Sessions of one name: nobody can push out all others.
const OF_ONE_NAME_MAX: usize = 50;

/// Who somebody proved to be when they logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) who: String,
    pub(crate) role: Role,
}

struct Session {
    known: Known,
    began: Boot,
    used: Boot,
}

/// The sessions, by the hash of their ids: who reads this memory has no cookie.
pub(crate) struct Sessions {
    clock: Arc<dyn Clock>,
    // Locked for a look-up or a few; never across an await.
    held: Mutex<HashMap<[u8; 32], Session>>,
}

impl Sessions {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, held: Mutex::default() }
    }

    /// Begins a session; its id has 256 random bits and was never anybody's. `None` when the system gives no randomness.
    pub(crate) fn begin(&self, known: Known) -> Option<String> {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).ok()?;
        let mut id = String::with_capacity(64);
        for byte in bytes {
            write!(id, "{byte:02x}").ok()?;
        }
        let now = self.clock.boot();
        let mut held = self.held();
        held.retain(|_, session| session.lives(now));
        make_room(&mut held, &known.who);
        held.insert(hash(id.as_bytes()), Session { known, began: now, used: now });
        Some(id)
    }

    /// Whose session it is; it was used now.
    pub(crate) fn visit(&self, id: &str) -> Option<Known> {
        self.find(id, true)
    }

    /// Whose session it is, without using it.
    pub(crate) fn glance(&self, id: &str) -> Option<Known> {
        self.find(id, false)
    }

    fn find(&self, id: &str, used: bool) -> Option<Known> {
        let (now, key) = (self.clock.boot(), hash(id.as_bytes()));
        let mut held = self.held();
        let session = held.get_mut(&key)?;
        if !session.lives(now) {
            held.remove(&key);
            return None;
        }
        if used {
            session.used = now;
        }
        Some(session.known.clone())
    }

    /// Ends it, if it is one.
    pub(crate) fn end(&self, id: &str) {
        self.held().remove(&hash(id.as_bytes()));
    }

    fn held(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn lives(&self, now: Boot) -> bool {
        now - self.used < IDLE && now - self.began < AT_MOST
    }
}

/// Ends what was unused longest, of that name or of all, until one more may begin.
fn make_room(held: &mut HashMap<[u8; 32], Session>, who: &str) {
    let of_name = held.values().filter(|session| session.known.who == who).count();
    let oldest = |held: &HashMap<[u8; 32], Session>, any: bool| {
        let those = held.iter().filter(|(_, session)| any || session.known.who == who);
        those.min_by_key(|(_, session)| session.used).map(|(key, _)| *key)
    };
    let gone = if of_name >= OF_ONE_NAME_MAX {
        oldest(held, false)
    } else if held.len() >= SESSIONS_MAX {
        oldest(held, true)
    } else {
        None
    };
    if let Some(key) = gone {
        held.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use aftercommit::clock::{ManualClock, Timestamp};

    use super::*;

    fn sessions() -> (Arc<ManualClock>, Sessions) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_000_000)));
        (Arc::clone(&clock), Sessions::new(clock))
    }

    fn known(who: &str) -> Known {
        Known { who: who.to_owned(), role: Role::Operator }
    }

    #[test]
    fn a_session_ends_half_an_hour_after_its_last_use() {
        let (clock, sessions) = sessions();
        let id = sessions.begin(known("ann")).unwrap();
        clock.advance(IDLE - Duration::from_secs(1));
        assert_eq!(sessions.visit(&id), Some(known("ann")));
        clock.advance(IDLE - Duration::from_secs(1));
        assert_eq!(sessions.visit(&id), Some(known("ann")));
        clock.advance(IDLE);
        assert_eq!(sessions.visit(&id), None);
        assert_eq!(sessions.visit(&id), None);
    }

    #[test]
    fn what_only_looks_keeps_no_session_alive() {
        let (clock, sessions) = sessions();
        let id = sessions.begin(known("ann")).unwrap();
        for _ in 0..2 {
            clock.advance(IDLE / 3);
            assert_eq!(sessions.glance(&id), Some(known("ann")));
        }
        clock.advance(IDLE / 3);
        assert_eq!((sessions.glance(&id), sessions.visit(&id)), (None, None));
    }

    #[test]
    fn a_session_ends_after_twelve_hours_however_much_it_is_used() {
        let (clock, sessions) = sessions();
        let id = sessions.begin(known("ann")).unwrap();
        let step = Duration::from_secs(20 * 60);
        for _ in 0..35 {
            clock.advance(step);
            assert!(sessions.visit(&id).is_some());
        }
        clock.advance(step);
        assert_eq!(sessions.visit(&id), None);
    }

    #[test]
    fn what_was_ended_or_never_begun_is_nobodys() {
        let (_, sessions) = sessions();
        let (first, second) = (sessions.begin(known("ann")).unwrap(), sessions.begin(known("ann")).unwrap());
        assert_ne!(first, second);
        assert_eq!(first.len(), 64);
        sessions.end(&first);
        assert_eq!((sessions.visit(&first), sessions.visit("")), (None, None));
        assert_eq!(sessions.visit(&second), Some(known("ann")));
    }

    #[test]
    fn ten_thousand_sessions_are_not_kept() {
        let (clock, sessions) = sessions();
        let ann = sessions.begin(known("ann")).unwrap();
        let mut last = String::new();
        for _ in 0..10_000 {
            clock.advance(Duration::from_millis(1));
            last = sessions.begin(known("mallory")).unwrap();
        }
        assert_eq!(sessions.held().len(), OF_ONE_NAME_MAX + 1);
        assert!(sessions.visit(&ann).is_some() && sessions.visit(&last).is_some());
        for name in 0..10_000 {
            clock.advance(Duration::from_millis(1));
            last = sessions.begin(known(&format!("user{name}"))).unwrap();
        }
        assert_eq!(sessions.held().len(), SESSIONS_MAX);
        assert!(sessions.visit(&last).is_some());
    }
}
