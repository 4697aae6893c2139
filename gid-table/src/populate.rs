//! What a GID table should hold, from the addresses of the interfaces behind a port.

use std::net::IpAddr;

use crate::table::{GidChange, GidTable, TableFullError, WantedGid};
use crate::{Gid, GidType};

/// A network interface, as far as a RoCE port wants to know.
///
/// The default is one of which nothing is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InterfaceInfo {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index (`if_nametoindex(3)`).
    pub ifindex: u32,
    /// Its Ethernet address; all zeros on `lo`, `None` where the link has none (a tunnel).
    pub mac: Option<[u8; 6]>,
    /// Its MTU in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Whether it is up administratively (`IFF_UP`).
    pub up: bool,
    /// Whether it has a carrier (`IFF_RUNNING`).
    pub running: bool,
    /// Its addresses in the order that the host lists them, IPv4 and IPv6 mixed.
    pub addrs: Vec<IpAddr>,
    /// Those of `addrs` that the host cannot send from yet, since duplicate address detection
    /// (RFC 4862 section 5.4) still runs, or never, since it found a duplicate.
    pub tentative: Vec<IpAddr>,
    /// Index of the interface that this one is put on top of, of a VLAN or a macvlan.
    pub lower: Option<u32>,
    /// The identifier, of a VLAN.
    pub vlan: Option<u16>,
}

/// Which versions of RoCE a link can send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkGidTypes {
    /// RoCE v2 only: the UDP link.
    V2,
    /// RoCE v1 and v2: links that send whole Ethernet frames.
    V1AndV2,
}

impl LinkGidTypes {
    /// The types, in the order of the table.
    pub const fn types(self) -> &'static [GidType] {
        match self {
            Self::V2 => &[GidType::RoceV2],
            Self::V1AndV2 => &[GidType::RoceV1, GidType::RoceV2],
        }
    }
}

/// The entries that an interface contributes, in the order they take in a fresh table.
///
/// First the default GID, then each IPv4 address, then each IPv6 address, each in every type
/// that the link can send. (Linux's order; `roce_gid_mgmt.c`.) The default GID is there even
/// when the host does not have that address, but not owned (on RoCE v1 it is usable without);
/// when it does, it is one entry. An
/// address that is tentative is not owned yet. A multicast or unspecified address is no address
/// of an interface and is passed over.
pub fn wanted_gids(interface: &InterfaceInfo, link: LinkGidTypes) -> Vec<WantedGid> {
    wanted_with_default(interface, interface.mac.map(Gid::default_for_mac), link)
}

/// The entries of a port: those of its interface, then those of the interfaces on top of it, each
/// with its own index.
///
/// R60: the addresses of VLANs and macvlans are entries of the interface below too, in the order
/// of `all`. They have no default GID of their own. `all` are the interfaces of the host;
/// `interface` may be among them.
pub fn port_gids(
    interface: &InterfaceInfo,
    all: &[InterfaceInfo],
    link: LinkGidTypes,
) -> Vec<WantedGid> {
    let mut wanted = wanted_gids(interface, link);
    for upper in uppers(interface.ifindex, all) {
        wanted.extend(wanted_with_default(upper, None, link));
    }
    wanted
}

/// The interfaces on top of the one of this index, also those on top of these, in the order of
/// `all`.
pub fn uppers(ifindex: u32, all: &[InterfaceInfo]) -> Vec<&InterfaceInfo> {
    let mut below = vec![ifindex];
    let mut found = Vec::new();
    // A chain has no more links than there are interfaces, whatever the host says.
    for _ in 0..all.len() {
        let is_new = |info: &&InterfaceInfo| {
            !below.contains(&info.ifindex) && info.lower.is_some_and(|i| below.contains(&i))
        };
        let more: Vec<&InterfaceInfo> = all.iter().filter(is_new).collect();
        if more.is_empty() {
            break;
        }
        below.extend(more.iter().map(|info| info.ifindex));
        found.extend(more);
    }
    found
}

fn wanted_with_default(
    interface: &InterfaceInfo,
    default: Option<Gid>,
    link: LinkGidTypes,
) -> Vec<WantedGid> {
    let addresses = interface.addrs.iter();
    let v4 = addresses.clone().filter(|ip| ip.is_ipv4());
    let v6 = addresses.filter(|ip| ip.is_ipv6());
    let from_host: Vec<(Gid, bool)> = v4
        .chain(v6)
        .map(|ip| (Gid::from_ip(*ip), !interface.tentative.contains(ip)))
        .filter(|(gid, _)| !gid.is_multicast() && !gid.to_ip().is_unspecified())
        .collect();

    let mut gids: Vec<(Gid, bool)> = Vec::with_capacity(from_host.len() + 1);
    gids.extend(default.map(|gid| (gid, from_host.contains(&(gid, true)))));
    for (gid, owned) in from_host {
        if !gids.iter().any(|&(seen, _)| seen == gid) {
            gids.push((gid, owned));
        }
    }
    let ifindex = interface.ifindex;
    let of_all_types = |(gid, owned)| {
        link.types().iter().map(move |&gid_type| {
            // RoCE v1 does without IP: the default GID says which MAC is meant, so whoever sends
            // frames can use it, whether the host has the address or not.
            let owned = owned || (gid_type == GidType::RoceV1 && default == Some(gid));
            WantedGid { gid, gid_type, ifindex, owned }
        })
    };
    gids.into_iter().flat_map(of_all_types).collect()
}

/// What [`sync`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SyncReport {
    /// The changes, in the order they were made.
    pub changes: Vec<GidChange>,
    /// The entries that found no room; the next `sync` tries them again.
    pub refused: Vec<TableFullError>,
}

/// Makes a table hold just the entries wanted: removes what is gone, then adds what is new.
///
/// `wanted` is everything the port should show: for a port of several interfaces (VLANs, R60)
/// the lists of all of them, one after the other.
pub fn sync(table: &mut GidTable, wanted: &[WantedGid]) -> SyncReport {
    let mut report = SyncReport::default();
    let present: Vec<WantedGid> = table
        .entries()
        .map(|e| WantedGid { gid: e.gid, gid_type: e.gid_type, ifindex: e.ifindex, owned: e.owned })
        .collect();
    for old in present {
        if !wanted.iter().any(|new| new.is_same_entry(&old)) {
            report.changes.extend(table.remove(&old));
        }
    }
    for &new in wanted {
        match table.add(new) {
            Ok(change) => report.changes.extend(change),
            Err(full) => report.refused.push(full),
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interface(addrs: &[&str]) -> InterfaceInfo {
        InterfaceInfo {
            name: "eth0".to_owned(),
            ifindex: 2,
            mac: Some([0x52, 0x54, 0, 0x77, 0, 1]),
            mtu: 1500,
            up: true,
            running: true,
            addrs: addrs.iter().map(|text| text.parse().expect("an address")).collect(),
            ..InterfaceInfo::default()
        }
    }

    fn shown(wanted: &[WantedGid]) -> Vec<(String, u32, bool)> {
        wanted.iter().map(|w| (w.gid.to_string(), w.gid_type as u32, w.owned)).collect()
    }

    fn row(gid: &str, gid_type: u32, owned: bool) -> (String, u32, bool) {
        (gid.to_owned(), gid_type, owned)
    }

    #[test]
    fn default_then_ipv4_then_ipv6() {
        let host = interface(&["fd00:77::1", "10.77.0.1", "fe80::1234", "10.77.0.9"]);
        let expected = [
            row("fe80::5054:ff:fe77:1", 2, false),
            row("::ffff:10.77.0.1", 2, true),
            row("::ffff:10.77.0.9", 2, true),
            row("fd00:77::1", 2, true),
            row("fe80::1234", 2, true),
        ];
        assert_eq!(shown(&wanted_gids(&host, LinkGidTypes::V2)), expected);
    }

    #[test]
    fn each_address_in_each_type() {
        let host = interface(&["10.77.0.1"]);
        let expected = [
            row("fe80::5054:ff:fe77:1", 1, true),
            row("fe80::5054:ff:fe77:1", 2, false),
            row("::ffff:10.77.0.1", 1, true),
            row("::ffff:10.77.0.1", 2, true),
        ];
        assert_eq!(shown(&wanted_gids(&host, LinkGidTypes::V1AndV2)), expected);
    }

    #[test]
    fn an_owned_default_is_one_entry() {
        let host = interface(&["10.77.0.1", "fe80::5054:ff:fe77:1", "10.77.0.1"]);
        let expected = [row("fe80::5054:ff:fe77:1", 2, true), row("::ffff:10.77.0.1", 2, true)];
        assert_eq!(shown(&wanted_gids(&host, LinkGidTypes::V2)), expected);
    }

    #[test]
    fn no_default_without_a_mac_and_no_entry_for_a_group() {
        let host = InterfaceInfo { mac: None, ..interface(&["::", "ff02::1", "0.0.0.0", "::1"]) };
        assert_eq!(shown(&wanted_gids(&host, LinkGidTypes::V2)), [row("::1", 2, true)]);
    }

    #[test]
    fn a_tentative_address_is_not_owned() {
        let default = "fe80::5054:ff:fe77:1";
        let tentative = vec![default.parse().expect("an address")];
        let host = InterfaceInfo { tentative, ..interface(&["10.77.0.1", default]) };
        let expected = [row(default, 2, false), row("::ffff:10.77.0.1", 2, true)];
        assert_eq!(shown(&wanted_gids(&host, LinkGidTypes::V2)), expected);
    }

    #[test]
    fn r60_addresses_of_uppers_are_entries_of_the_interface_below() {
        let eth0 = interface(&["10.77.0.1"]);
        let upper = |name: &str, ifindex, lower, addrs: &[&str]| InterfaceInfo {
            name: name.to_owned(),
            ifindex,
            lower: Some(lower),
            ..interface(addrs)
        };
        let all = [
            // On top of the VLAN, and listed before it; one on top of another interface; a ring.
            upper("mv0", 5, 9, &["10.79.0.1"]),
            eth0.clone(),
            upper("eth0.7", 9, 2, &["10.78.0.1", "fe80::5054:ff:fe77:1"]),
            upper("eth1.7", 10, 3, &["10.80.0.1"]),
            upper("ring", 11, 11, &["10.81.0.1"]),
        ];
        let wanted = port_gids(&eth0, &all, LinkGidTypes::V2);
        let seen: Vec<_> = wanted.iter().map(|w| (w.gid.to_string(), w.ifindex, w.owned)).collect();
        let row = |gid: &str, ifindex, owned| (gid.to_owned(), ifindex, owned);
        let expected = [
            row("fe80::5054:ff:fe77:1", 2, false),
            row("::ffff:10.77.0.1", 2, true),
            row("::ffff:10.78.0.1", 9, true),
            row("fe80::5054:ff:fe77:1", 9, true),
            row("::ffff:10.79.0.1", 5, true),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn sync_keeps_what_stays_where_it_is() {
        let mut table = GidTable::new(1, 16);
        let before = wanted_gids(&interface(&["10.0.0.1", "10.0.0.2"]), LinkGidTypes::V2);
        assert_eq!(sync(&mut table, &before).changes.len(), 3);
        assert_eq!(sync(&mut table, &before), SyncReport::default());

        let after = wanted_gids(&interface(&["10.0.0.3", "10.0.0.2", "fd00::1"]), LinkGidTypes::V2);
        let changes = sync(&mut table, &after).changes;
        assert!(matches!(changes[0], GidChange::Removed(e) if e.gid_index == 1));
        assert!(matches!(changes[1], GidChange::Added(e) if e.gid_index == 1));
        assert!(matches!(changes[2], GidChange::Added(e) if e.gid_index == 3));
        let kept = table.query_gid_ex(2).expect("stayed");
        assert_eq!(kept.gid, Gid::from_ip([10, 0, 0, 2].into()));
    }

    #[test]
    fn sync_tells_of_a_default_that_becomes_owned() {
        let mut table = GidTable::new(1, 16);
        sync(&mut table, &wanted_gids(&interface(&["10.0.0.1"]), LinkGidTypes::V2));
        let now = wanted_gids(&interface(&["10.0.0.1", "fe80::5054:ff:fe77:1"]), LinkGidTypes::V2);
        let changes = sync(&mut table, &now).changes;
        assert!(
            matches!(changes[..], [GidChange::OwnershipChanged(e)] if e.gid_index == 0 && e.owned)
        );
    }

    #[test]
    fn sync_names_what_found_no_room() {
        let mut table = GidTable::new(1, 2);
        let wanted = wanted_gids(&interface(&["10.0.0.1", "10.0.0.2"]), LinkGidTypes::V2);
        let report = sync(&mut table, &wanted);
        assert_eq!(report.changes.len(), 2);
        assert_eq!(report.refused, [TableFullError { wanted: wanted[2], capacity: 2 }]);
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0..6_u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
            (0..6_u16).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])),
            Just(Gid::default_for_mac([2, 0, 0, 0, 0, 1]).to_ip()),
        ]
    }

    proptest! {
        #[test]
        fn wanted_gids_have_no_duplicates_and_own_what_the_host_has(
            addrs in prop::collection::vec(address(), 0..12),
            mac in prop::option::of(Just([2, 0, 0, 0, 0, 1])),
            v1: bool,
        ) {
            let host = InterfaceInfo { mac, addrs, ..interface(&[]) };
            let link = if v1 { LinkGidTypes::V1AndV2 } else { LinkGidTypes::V2 };
            let wanted = wanted_gids(&host, link);
            for (i, one) in wanted.iter().enumerate() {
                prop_assert!(wanted[..i].iter().all(|other| !other.is_same_entry(one)));
                let is_default = host.mac.map(Gid::default_for_mac) == Some(one.gid);
                let needs_no_address = is_default && one.gid_type == GidType::RoceV1;
                let has_address = host.addrs.contains(&one.gid.to_ip());
                prop_assert_eq!(one.owned, has_address || needs_no_address);
            }
            for addr in &host.addrs {
                let gid = Gid::from_ip(*addr);
                let count = wanted.iter().filter(|w| w.gid == gid).count();
                prop_assert_eq!(count, link.types().len());
            }
        }

        #[test]
        fn sync_reaches_what_is_wanted_and_moves_nothing(
            steps in prop::collection::vec(prop::collection::vec(address(), 0..8), 1..8),
            held in prop::collection::vec(0..16_u32, 0..4),
        ) {
            let mut table = GidTable::new(1, 64);
            for addrs in steps {
                let before: Vec<_> = table.entries().collect();
                let wanted = wanted_gids(&InterfaceInfo { addrs, ..interface(&[]) },
                    LinkGidTypes::V2);
                prop_assert_eq!(sync(&mut table, &wanted).refused, []);
                prop_assert_eq!(table.entries().count(), wanted.len());
                for want in &wanted {
                    let found = table.find(want.gid, want.gid_type).expect("was wanted");
                    prop_assert_eq!(found.owned, want.owned);
                    if let Some(old) = before.iter().find(|e| e.gid == want.gid) {
                        prop_assert_eq!(old.gid_index, found.gid_index);
                    }
                }
                for &index in &held {
                    // Holding makes tombstones in later steps; an empty index cannot be held.
                    let _ = table.hold(index);
                }
            }
        }
    }
}
