//! The kinds of events of an identifier.

use std::fmt;

/// What has happened to an identifier (C: `enum rdma_cm_event_type`; the values are the same).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u32)]
pub enum EventType {
    /// The destination's address is resolved: the identifier has a device.
    AddrResolved = 0,
    /// The destination's address cannot be resolved.
    AddrError = 1,
    /// The way to the destination is known.
    RouteResolved = 2,
    /// There is no way to the destination.
    RouteError = 3,
    /// A peer asks a listener for a connection, or which queue pair serves.
    ConnectRequest = 4,
    /// The peer has accepted, and the identifier has no queue pair that could be made ready.
    ConnectResponse = 5,
    /// Something of ours has failed while a connection was made.
    ConnectError = 6,
    /// The peer has not answered, or has no such datagram service.
    Unreachable = 7,
    /// The peer has refused.
    Rejected = 8,
    /// The connection is there, or the datagram service found.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device is gone: destroy the identifier.
    DeviceRemoval = 11,
    /// The multicast group is joined.
    MulticastJoin = 12,
    /// The multicast group cannot be joined, or is lost.
    MulticastError = 13,
    /// The interface has another hardware address.
    AddrChange = 14,
    /// The queue pair may be used again.
    TimewaitExit = 15,
    /// An address query is answered.
    AddrinfoResolved = 16,
    /// An address query has failed.
    AddrinfoError = 17,
    /// An event that the program itself has written.
    User = 18,
    /// An event that a library between this one and a program has written for itself.
    Internal = 19,
}

impl EventType {
    /// All of them, by value.
    pub const ALL: [Self; 20] = [
        Self::AddrResolved,
        Self::AddrError,
        Self::RouteResolved,
        Self::RouteError,
        Self::ConnectRequest,
        Self::ConnectResponse,
        Self::ConnectError,
        Self::Unreachable,
        Self::Rejected,
        Self::Established,
        Self::Disconnected,
        Self::DeviceRemoval,
        Self::MulticastJoin,
        Self::MulticastError,
        Self::AddrChange,
        Self::TimewaitExit,
        Self::AddrinfoResolved,
        Self::AddrinfoError,
        Self::User,
        Self::Internal,
    ];

    /// Its name, as C spells it (C: `rdma_event_str`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected => "RDMA_CM_EVENT_REJECTED",
            Self::Established => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            Self::AddrinfoResolved => "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
            Self::AddrinfoError => "RDMA_CM_EVENT_ADDRINFO_ERROR",
            Self::User => "RDMA_CM_EVENT_USER",
            Self::Internal => "RDMA_CM_EVENT_INTERNAL",
        }
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_names_are_those_of_c() {
        for (value, event) in EventType::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, value);
            assert!(event.to_string().starts_with("RDMA_CM_EVENT_"));
        }
        assert_eq!(EventType::Rejected as u32, 8);
    }
}
