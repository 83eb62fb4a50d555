//! Calls to each endpoint of a downstream that has many: a slow one gets no more than its share of the slots.
//!
//! What finds no place was not sent: it is put off, each effect by another time, so that the slots go to the others' effects.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::clock::Boot;

/// An endpoint of a downstream.
type Name = (Arc<str>, Arc<str>);

/// Nobody is put off by less: there is one claim in it.
const PUT_OFF_MIN: Duration = Duration::from_millis(200);
/// Nor by more, however slow the endpoint is.
const PUT_OFF_MAX: Duration = Duration::from_secs(20);

/// When each open call began, by endpoint. Shared by all attempts.
#[derive(Debug, Default)]
pub(super) struct Crowds(Mutex<HashMap<Name, Vec<Boot>>>);

/// A place for one call; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowds: Arc<Crowds>,
    name: Name,
    began: Boot,
}

impl Crowds {
    /// A place among at most `limit` calls, or by how much to be put off: about as long as the open calls take already.
    pub(super) fn enter(self: &Arc<Self>, name: Name, limit: u32, now: Boot) -> Result<Place, Duration> {
        let mut crowds = self.0.lock().expect("no holder of this lock panics");
        let open = crowds.entry(name.clone()).or_default();
        if open.len() >= limit as usize {
            let oldest = open.iter().map(|began| now - *began).max().unwrap_or_default();
            return Err((oldest * 2).clamp(PUT_OFF_MIN, PUT_OFF_MAX));
        }
        open.push(now);
        Ok(Place { crowds: Arc::clone(self), name, began: now })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut crowds = self.crowds.0.lock().expect("no holder of this lock panics");
        if let Some(open) = crowds.get_mut(&self.name) {
            if let Some(at) = open.iter().position(|began| *began == self.began) {
                open.swap_remove(at);
            }
            // Endpoints come and go: one without a call takes no memory.
            if open.is_empty() {
                crowds.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, ManualClock};

    #[test]
    fn an_endpoint_gets_its_share_and_a_slow_one_is_left_alone_for_longer() {
        let (crowds, clock) =
            (Arc::new(Crowds::default()), ManualClock::at(crate::clock::Timestamp::from_micros(0)));
        let name = |endpoint: &str| -> Name { ("hooks".into(), endpoint.into()) };
        let held: Vec<_> = (0..2).map(|_| crowds.enter(name("acme"), 2, clock.boot()).unwrap()).collect();
        assert_eq!(crowds.enter(name("acme"), 2, clock.boot()).unwrap_err(), PUT_OFF_MIN);
        let other = crowds.enter(name("other"), 2, clock.boot());
        assert!(other.is_ok(), "another endpoint has its own");
        clock.advance(Duration::from_secs(3));
        assert_eq!(crowds.enter(name("acme"), 2, clock.boot()).unwrap_err(), Duration::from_secs(6));
        clock.advance(Duration::from_secs(300));
        assert_eq!(crowds.enter(name("acme"), 2, clock.boot()).unwrap_err(), PUT_OFF_MAX);
        drop((held, other));
        assert!(crowds.0.lock().unwrap().is_empty(), "nothing is kept of who is gone");
        assert!(crowds.enter(name("acme"), 2, clock.boot()).is_ok());
    }
}
