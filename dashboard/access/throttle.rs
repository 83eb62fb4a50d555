//! How often somebody may guess. Only wrong credentials count; who is let in already is not held up by who guesses.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aftercommit::clock::{Boot, Clock};

/// Wrong guesses of one address in a row, and after how long it has one more.
const OF_ONE: Allowance = Allowance { burst: 10, every: Duration::from_secs(30) };
/// The same for all addresses together: a crowd guesses no faster.
const OF_ALL: Allowance = Allowance { burst: 100, every: Duration::from_secs(3) };
/// An address whose credentials were right is not held up by the crowd for so long.
const TRUSTED: Duration = Duration::from_secs(12 * 60 * 60);
/// Addresses that are remembered; those with the most guesses left make room.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Clone, Copy)]
struct Allowance {
    burst: u32,
    every: Duration,
}

/// Guesses made, as the time at which none of them counts any more.
#[derive(Clone, Copy, Default)]
struct Made {
    clear: Boot,
}

impl Made {
    /// How long until one more may be made; zero: now.
    fn wait(self, of: Allowance, now: Boot) -> Duration {
        let full = of.every * (of.burst - 1);
        now.plus(full).until(self.clear)
    }

    /// Guesses that were let through at the same moment do not make the wait longer than one guess.
    fn add(&mut self, of: Allowance, now: Boot) {
        self.clear = self.clear.max(now).plus(of.every).min(now.plus(of.every * of.burst));
    }
}

#[derive(Default)]
struct Kept {
    all: Made,
    of: HashMap<IpAddr, Made>,
    /// When the credentials of an address were right.
    right: HashMap<IpAddr, Boot>,
}

/// The guesses of late.
pub(crate) struct Throttle {
    clock: Arc<dyn Clock>,
    // Locked for a look-up; never across an await.
    kept: Mutex<Kept>,
}

impl Throttle {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    /// Whether credentials from this address are looked at now.
    ///
    /// # Errors
    ///
    /// How long they are not.
    pub(crate) fn admit(&self, address: Option<IpAddr>) -> Result<(), Duration> {
        let (now, of) = (self.clock.boot(), network(address));
        let kept = self.kept();
        let one = kept.of.get(&of).map_or(Duration::ZERO, |made| made.wait(OF_ONE, now));
        let trusted = kept.right.get(&of).is_some_and(|at| now - *at < TRUSTED);
        let all = if trusted { Duration::ZERO } else { kept.all.wait(OF_ALL, now) };
        let wait = one.max(all);
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }

    /// They were wrong.
    pub(crate) fn wrong(&self, address: Option<IpAddr>) {
        let (now, of) = (self.clock.boot(), network(address));
        let mut kept = self.kept();
        kept.all.add(OF_ALL, now);
        if kept.of.len() >= ADDRESSES_MAX && !kept.of.contains_key(&of) {
            kept.of.retain(|_, made| made.clear > now);
        }
        if kept.of.len() >= ADDRESSES_MAX && !kept.of.contains_key(&of) {
            let least = kept.of.iter().min_by_key(|(_, made)| made.clear).map(|(address, _)| *address);
            least.map(|address| kept.of.remove(&address));
        }
        kept.of.entry(of).or_default().add(OF_ONE, now);
    }

    /// They were right.
    pub(crate) fn right(&self, address: Option<IpAddr>) {
        let (now, of) = (self.clock.boot(), network(address));
        let mut kept = self.kept();
        if kept.right.len() >= ADDRESSES_MAX {
            kept.right.retain(|_, at| now - *at < TRUSTED);
        }
        if kept.right.len() < ADDRESSES_MAX || kept.right.contains_key(&of) {
            kept.right.insert(of, now);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever has one IPv6 address has a network of them.
pub(crate) fn network(address: Option<IpAddr>) -> IpAddr {
    match address {
        Some(IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        Some(address) => address,
        None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

#[cfg(test)]
mod tests {
    use aftercommit::clock::{ManualClock, Timestamp};

    use super::*;

    fn throttle() -> (Arc<ManualClock>, Throttle) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_000_000)));
        (Arc::clone(&clock), Throttle::new(clock))
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn one_address_guesses_ten_times_and_then_twice_a_minute() {
        let (clock, throttle) = throttle();
        let (bad, good) = (address("192.0.2.1"), address("192.0.2.2"));
        for _ in 0..10 {
            throttle.admit(bad).unwrap();
            throttle.wrong(bad);
        }
        assert_eq!(throttle.admit(bad), Err(OF_ONE.every));
        throttle.admit(good).unwrap();
        clock.advance(OF_ONE.every);
        throttle.admit(bad).unwrap();
        throttle.wrong(bad);
        assert!(throttle.admit(bad).is_err());
        clock.advance(OF_ONE.every * 20);
        for _ in 0..10 {
            throttle.admit(bad).unwrap();
            throttle.wrong(bad);
        }
        assert!(throttle.admit(bad).is_err());
    }

    #[test]
    fn a_network_of_addresses_is_one() {
        let (_, throttle) = throttle();
        for n in 0..10 {
            throttle.wrong(address(&format!("2001:db8::{n}")));
        }
        assert!(throttle.admit(address("2001:db8::ffff")).is_err());
        throttle.admit(address("2001:db8:0:1::1")).unwrap();
    }

    #[test]
    fn a_crowd_guesses_no_faster_and_holds_up_nobody_who_was_right() {
        let (clock, throttle) = throttle();
        let ann = address("198.51.100.7");
        throttle.right(ann);
        for n in 0..100 {
            let of = address(&format!("192.0.2.{n}"));
            throttle.admit(of).unwrap();
            throttle.wrong(of);
        }
        assert!(throttle.admit(address("203.0.113.1")).is_err());
        throttle.admit(ann).unwrap();
        clock.advance(OF_ALL.every);
        throttle.admit(address("203.0.113.1")).unwrap();
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_guesses_most_is_not_forgotten() {
        let (clock, throttle) = throttle();
        let bad = address("192.0.2.1");
        for _ in 0..10 {
            throttle.wrong(bad);
        }
        for n in 0..50_000_u32 {
            let of = Some(IpAddr::V4((0x0a00_0000 + n).into()));
            throttle.wrong(of);
            throttle.right(of);
        }
        assert!(throttle.kept().of.len() <= ADDRESSES_MAX && throttle.kept().right.len() <= ADDRESSES_MAX);
        clock.advance(Duration::from_secs(1));
        assert!(throttle.admit(bad).is_err());
    }
}
