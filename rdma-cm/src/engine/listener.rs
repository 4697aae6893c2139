//! Who is asked for connections and lookups.

use std::collections::HashMap;
use std::net::IpAddr;

use gid_table::Gid;
use rxe_wire::mad::cm::{ServiceId, TransportService};

use super::error::ListenError;

/// A listener of an engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u64);

/// The addresses that a listener serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ListenOn {
    /// One address.
    Address(Gid),
    /// All IPv4 addresses.
    Ipv4,
    /// All IPv6 addresses.
    Ipv6,
    /// All addresses.
    Any,
}

impl ListenOn {
    /// Those that serve what comes to `local`, the most special first.
    fn candidates(local: Gid) -> [Self; 3] {
        let family = match local.to_ip() {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        };
        [Self::Address(local), family, Self::Any]
    }
}

/// What a listener takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenFor {
    /// Connections of this transport.
    Connections(TransportService),
    /// Connections of any transport that there is.
    AnyConnections,
    /// Lookups of datagram services.
    Lookups,
}

/// A listener, and how many requests its owner has not looked at yet.
#[derive(Debug)]
pub(super) struct Listener {
    key: Key,
    pub(super) takes: ListenFor,
    pub(super) backlog: usize,
    pub(super) waiting: usize,
}

type Key = (ServiceId, ListenOn);

/// All listeners of an engine.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_key: HashMap<Key, ListenerId>,
    by_id: HashMap<ListenerId, Listener>,
    made: u64,
}

impl Listeners {
    pub(super) fn add(
        &mut self,
        service: ServiceId,
        on: ListenOn,
        takes: ListenFor,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let key = (service, on);
        if self.by_key.contains_key(&key) {
            return Err(ListenError::Taken { service });
        }
        let id = ListenerId(self.made);
        self.made += 1;
        self.by_key.insert(key, id);
        self.by_id.insert(id, Listener { key, takes, backlog, waiting: 0 });
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.by_id.remove(&id) else { return false };
        self.by_key.remove(&listener.key);
        true
    }

    pub(super) fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.by_id.get_mut(&id)
    }

    /// What a listener takes.
    pub(super) fn takes(&self, id: ListenerId) -> Option<ListenFor> {
        self.by_id.get(&id).map(|listener| listener.takes)
    }

    /// Who serves `service` at `local`.
    pub(super) fn find(&self, service: ServiceId, local: Gid) -> Option<ListenerId> {
        let keys = ListenOn::candidates(local).map(|on| (service, on));
        keys.iter().find_map(|key| self.by_key.get(key)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_special_listener_is_asked() {
        let mut listeners = Listeners::default();
        let service = ServiceId(7);
        let v4 = Gid::from_ip([10, 0, 0, 1].into());
        let v6 = Gid::from_ip("fd00::1".parse::<IpAddr>().unwrap());
        let mut add = |on| listeners.add(service, on, ListenFor::AnyConnections, 1).unwrap();
        let any = add(ListenOn::Any);
        let ipv4 = add(ListenOn::Ipv4);
        let one = add(ListenOn::Address(v4));
        assert_eq!(listeners.find(service, v4), Some(one));
        assert_eq!(listeners.find(service, v6), Some(any));
        assert!(listeners.remove(one));
        assert_eq!(listeners.find(service, v4), Some(ipv4));
        assert!(listeners.remove(ipv4));
        assert_eq!(listeners.find(service, v4), Some(any));
        assert_eq!(listeners.find(ServiceId(8), v4), None);
        let error = listeners.add(service, ListenOn::Any, ListenFor::Lookups, 1).unwrap_err();
        assert_eq!(error.errno(), 98);
        assert!(listeners.remove(any) && !listeners.remove(any));
        assert_eq!(listeners.len(), 0);
    }
}
