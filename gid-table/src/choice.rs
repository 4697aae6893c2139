//! Choosing the GID to send from.

use std::fmt;
use std::net::IpAddr;

use crate::table::GidEntry;
use crate::{Gid, GidType};

/// How far a GID reaches, from the one to take first to the one to take last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GidScope {
    /// An IPv4 address that is routed: not of 169.254.0.0/16, nor of 127.0.0.0/8.
    GlobalV4,
    /// An IPv6 address that is routed, a unique local one (RFC 4193) too.
    GlobalV6,
    /// An address of this link alone: `fe80::/64`, or 169.254.0.0/16 (RFC 3927).
    LinkLocal,
    /// An address of this host alone: 127.0.0.0/8, or `::1`.
    Loopback,
}

impl fmt::Display for GidScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GlobalV4 => "a global IPv4 address",
            Self::GlobalV6 => "a global IPv6 address",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "a loopback address",
        })
    }
}

impl Gid {
    /// How far it reaches.
    pub fn scope(self) -> GidScope {
        match self.to_ip() {
            ip if ip.is_loopback() => GidScope::Loopback,
            IpAddr::V4(v4) if v4.is_link_local() => GidScope::LinkLocal,
            IpAddr::V4(_) => GidScope::GlobalV4,
            IpAddr::V6(_) if self.is_link_local() => GidScope::LinkLocal,
            IpAddr::V6(_) => GidScope::GlobalV6,
        }
    }
}

/// The entry to send from, when the program has no wish of its own; `None` where no entry works.
///
/// Programs without a connection manager have to find this out, and each wrote it for itself, not
/// all in the same way. Here it is:
///
/// 1. Only entries that the host owns. The default GID, at index 0, often is not one: it is shown
///    because Linux shows it, but nothing can be sent from it.
/// 2. RoCE v2 before v1: v2 passes routers, and v1 needs a peer on the same link.
/// 3. By [`GidScope`]: a global IPv4 address, then a global IPv6 one, then a link-local one, then,
///    as on `lo`, a loopback one. IPv4 before IPv6, as most peers have it, and since a peer must
///    have the same.
/// 4. The lowest port, then the lowest index: the oldest address of the interface.
///
/// The peer's GID must be of the same family; a program that knows it looks for that first, with
/// [`GidTable::find`](crate::GidTable::find) or by its route.
pub fn routable_gid(entries: impl IntoIterator<Item = GidEntry>) -> Option<GidEntry> {
    entries.into_iter().filter(|entry| entry.owned).min_by_key(|entry| {
        let GidEntry { gid, gid_index, port_num, gid_type, .. } = *entry;
        (gid_type != GidType::RoceV2, gid.scope(), port_num, gid_index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries in the order given, `-` before those that the host does not own.
    fn chosen(gids: &[(&str, GidType)]) -> Option<u32> {
        let entry = |(index, &(text, gid_type)): (usize, &(&str, GidType))| GidEntry {
            gid: text.trim_start_matches('-').parse().expect("a GID"),
            gid_index: index as u32,
            port_num: 1,
            gid_type,
            ifindex: 2,
            owned: !text.starts_with('-'),
        };
        routable_gid(gids.iter().enumerate().map(entry)).map(|entry| entry.gid_index)
    }

    #[test]
    fn scopes_of_addresses() {
        let scope = |text: &str| text.parse::<Gid>().expect("a GID").scope();
        assert_eq!(scope("10.0.0.1"), GidScope::GlobalV4);
        assert_eq!(scope("169.254.1.1"), GidScope::LinkLocal);
        assert_eq!(scope("127.9.9.9"), GidScope::Loopback);
        assert_eq!(scope("fd00::1"), GidScope::GlobalV6);
        assert_eq!(scope("2001:db8::1"), GidScope::GlobalV6);
        assert_eq!(scope("fe80::1"), GidScope::LinkLocal);
        assert_eq!(scope("::1"), GidScope::Loopback);
    }

    #[test]
    fn the_choice_follows_its_rules_in_their_order() {
        use GidType::{RoceV1, RoceV2};
        let all = [
            ("-10.0.0.9", RoceV2),
            ("10.0.0.1", RoceV1),
            ("::1", RoceV2),
            ("fe80::1", RoceV2),
            ("169.254.0.1", RoceV2),
            ("fd00::1", RoceV2),
            ("10.0.0.1", RoceV2),
            ("10.0.0.2", RoceV2),
        ];
        // Whatever is best goes, and the next best is taken.
        let mut left = all.to_vec();
        let mut order = Vec::new();
        while let Some(index) = chosen(&left) {
            let best = left.remove(index as usize);
            order.push(all.iter().position(|entry| *entry == best).expect("is one of them"));
        }
        assert_eq!(order, [6, 7, 5, 3, 4, 2, 1]);
        assert_eq!(left, [("-10.0.0.9", RoceV2)], "nothing can be sent from it");
    }

    #[test]
    fn the_lowest_port_comes_first() {
        let entry = |port_num| GidEntry {
            gid: "10.0.0.1".parse().expect("a GID"),
            gid_index: 3,
            port_num,
            gid_type: GidType::RoceV2,
            ifindex: 2,
            owned: true,
        };
        assert_eq!(routable_gid([entry(2), entry(1)]), Some(entry(1)));
    }
}
