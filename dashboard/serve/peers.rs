//! Connections by address: no address can have those of all others.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::access::network;

/// How many connections each address has.
pub(super) struct Peers {
    at_most: usize,
    // Locked for a look-up; never across an await. Never longer than there are connections.
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection of an address. Dropped, it ends.
pub(super) struct Held {
    peers: Arc<Peers>,
    of: IpAddr,
}

impl Peers {
    /// Each address has at most so many.
    pub(super) fn new(at_most: usize) -> Arc<Self> {
        Arc::new(Self { at_most, held: Mutex::default() })
    }

    /// One more of this address; `None` when it has as many as it may.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Held> {
        let of = network(Some(address));
        let mut held = self.held();
        let count = held.entry(of).or_default();
        if *count >= self.at_most {
            return None;
        }
        *count += 1;
        Some(Held { peers: Arc::clone(self), of })
    }

    fn held(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.peers.held();
        let Some(count) = held.get_mut(&self.of) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            held.remove(&self.of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_and_takes_nothing_from_others() {
        let peers = Peers::new(2);
        let admit = |address: &str| peers.admit(address.parse().unwrap());
        let (first, second) = (admit("192.0.2.1"), admit("192.0.2.1"));
        assert!(first.is_some() && second.is_some() && admit("192.0.2.1").is_none());
        assert!(admit("192.0.2.2").is_some());
        drop(first);
        assert!(admit("192.0.2.1").is_some());
        // Whoever has one IPv6 address has a network of them.
        let of_network = [admit("2001:db8::1"), admit("2001:db8::2")];
        assert!(admit("2001:db8::3").is_none() && admit("2001:db8:0:1::1").is_some());
        drop((second, of_network));
        assert!(peers.held().is_empty());
    }
}
