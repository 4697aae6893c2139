//! What processes of a host write to each other: packets that came to the wrong one, and a few
//! words about the sockets of an address.
//!
//! Numbers are in the byte order of the host, as both ends are on it. A letter that is not of these
//! forms is dropped. The version is in the names of the inboxes.

use std::net::SocketAddr;

use gid_table::{Gid, GidType};
use rxe_core::path::Path;

/// Bytes of a letter at most: less than what a socket's send buffer holds by default, several
/// times.
pub(crate) const MAX_LETTER: usize = 48 << 10;

/// Bytes of a path in a letter.
const PATH_LEN: usize = 42;
/// Bytes in front of a packet: its length, and its path.
const PACKET_HEAD: usize = 2 + PATH_LEN;

const PACKETS: u8 = 1;
const ANSWER: u8 = 2;
const RENEW: u8 = 3;

/// A letter as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Letter<'a> {
    /// Packets for the reader.
    Packets(PacketList<'a>),
    /// A member of the group of an address tells where the kernel sees it.
    Answer(Answer),
    /// The sockets of this address are not in the order that the program thinks.
    Renew(SocketAddr),
}

/// A member's answer to a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// The number of the survey, which was in the probe.
    pub(crate) survey: u64,
    /// The index that the probe was for.
    pub(crate) index: u8,
    /// The slot of the socket that it came to.
    pub(crate) slot: u8,
}

impl<'a> Letter<'a> {
    /// Reads a letter; `None` when it is none.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            PACKETS => Some(Self::Packets(PacketList(rest))),
            ANSWER => {
                let survey = u64::from_ne_bytes(*rest.first_chunk()?);
                let &[index, slot] = rest.get(8..)? else { return None };
                Some(Self::Answer(Answer { survey, index, slot }))
            }
            RENEW => {
                let gid = Gid::from_raw(*rest.first_chunk()?);
                let port = u16::from_ne_bytes(*rest.get(16..)?.first_chunk()?);
                let scope_id = u32::from_ne_bytes(*rest.get(18..)?.first_chunk()?);
                let ip = gid.to_ip();
                Some(Self::Renew(crate::udp::socket_address(ip, port, scope_id)))
            }
            _ => None,
        }
    }
}

impl Answer {
    /// The letter that says so.
    pub(crate) fn write(self) -> Vec<u8> {
        let mut bytes = vec![ANSWER];
        bytes.extend(self.survey.to_ne_bytes());
        bytes.extend([self.index, self.slot]);
        bytes
    }
}

/// The letter that asks for a survey of an address.
pub(crate) fn write_renew(address: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![RENEW];
    bytes.extend(Gid::from_ip(address.ip()).raw());
    bytes.extend(address.port().to_ne_bytes());
    let scope_id = match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    bytes.extend(scope_id.to_ne_bytes());
    bytes
}

/// A letter of packets while it is being written.
#[derive(Debug, Default)]
pub(crate) struct PacketLetter {
    bytes: Vec<u8>,
    count: usize,
}

impl PacketLetter {
    /// Adds a packet, `packet` from BTH to pad; false when there is no room for it.
    #[must_use]
    pub(crate) fn push(&mut self, path: &Path, packet: &[u8]) -> bool {
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(MAX_LETTER);
            self.bytes.push(PACKETS);
        }
        let Ok(len) = u16::try_from(packet.len()) else { return false };
        if self.bytes.len() + PACKET_HEAD + packet.len() > MAX_LETTER {
            return false;
        }
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(path_bytes(path));
        self.bytes.extend(packet);
        self.count += 1;
        true
    }

    /// The letter.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many packets it has.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Forgets all packets.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

/// The packets of a letter, each from BTH to pad. Ends where the rest is no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PacketList<'a>(&'a [u8]);

impl<'a> Iterator for PacketList<'a> {
    type Item = (Path, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16::from_ne_bytes(*self.0.first_chunk()?));
        let path = read_path(self.0.get(2..)?.first_chunk()?)?;
        let packet = self.0.get(PACKET_HEAD..PACKET_HEAD + len)?;
        self.0 = &self.0[PACKET_HEAD + len..];
        Some((path, packet))
    }
}

fn path_bytes(path: &Path) -> [u8; PATH_LEN] {
    let mut bytes = [0; PATH_LEN];
    bytes[..16].copy_from_slice(&path.source.raw());
    bytes[16..32].copy_from_slice(&path.destination.raw());
    bytes[32] = path.gid_type as u8;
    bytes[33] = path.traffic_class;
    bytes[34] = path.hop_limit;
    bytes[35] = path.vlan.is_some().into();
    bytes[36..38].copy_from_slice(&path.vlan.unwrap_or_default().to_ne_bytes());
    bytes[38..].copy_from_slice(&path.flow_label.to_ne_bytes());
    bytes
}

fn read_path(bytes: &[u8; PATH_LEN]) -> Option<Path> {
    let gid_type = match bytes[32] {
        1 => GidType::RoceV1,
        2 => GidType::RoceV2,
        _ => return None,
    };
    let vlan = u16::from_ne_bytes([bytes[36], bytes[37]]);
    Some(Path {
        source: Gid::from_raw(*bytes.first_chunk()?),
        destination: Gid::from_raw(*bytes[16..].first_chunk()?),
        gid_type,
        traffic_class: bytes[33],
        hop_limit: bytes[34],
        vlan: (bytes[35] != 0).then_some(vlan),
        flow_label: u32::from_ne_bytes(*bytes[38..].first_chunk()?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_path() -> impl Strategy<Value = Path> {
        let vlan = proptest::option::of(any::<u16>());
        (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<(u8, u8, u32, bool)>(), vlan).prop_map(
            |(from, to, (traffic_class, hop_limit, flow_label, is_v1), vlan)| Path {
                source: Gid::from_raw(from),
                destination: Gid::from_raw(to),
                gid_type: if is_v1 { GidType::RoceV1 } else { GidType::RoceV2 },
                traffic_class,
                hop_limit,
                flow_label,
                vlan,
            },
        )
    }

    proptest! {
        #[test]
        fn packets_arrive_as_they_were(
            packets in prop::collection::vec(
                (any_path(), prop::collection::vec(any::<u8>(), 0..5000)), 0..9),
        ) {
            let mut letter = PacketLetter::default();
            for (path, bytes) in &packets {
                prop_assert!(letter.push(path, bytes));
            }
            prop_assert_eq!(letter.count(), packets.len());
            if !packets.is_empty() {
                let Some(Letter::Packets(list)) = Letter::read(letter.bytes()) else {
                    panic!("no packets")
                };
                let read: Vec<_> = list.map(|(path, bytes)| (path, bytes.to_vec())).collect();
                prop_assert_eq!(read, packets);
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(Letter::Packets(list)) = Letter::read(&bytes) {
                prop_assert!(list.count() * PACKET_HEAD <= bytes.len());
            }
        }
    }

    #[test]
    fn a_letter_has_an_end() {
        let path = Path::new(Gid::ZERO, Gid::ZERO);
        let mut letter = PacketLetter::default();
        while letter.push(&path, &[7; 1000]) {}
        assert!(letter.bytes().len() <= MAX_LETTER);
        assert_eq!(letter.count(), (MAX_LETTER - 1) / (PACKET_HEAD + 1000));
        letter.clear();
        assert!(!letter.push(&path, &[0; 1 << 16]));
        assert_eq!(letter.count(), 0);
    }

    #[test]
    fn words_are_read_as_written() {
        let answer = Answer { survey: 0x1234_5678_9abc_def0, index: 3, slot: 254 };
        assert_eq!(Letter::read(&answer.write()), Some(Letter::Answer(answer)));
        assert_eq!(Letter::read(&answer.write()[..10]), None);
        for text in ["127.0.0.1:4791", "[::1]:4791", "[fe80::1%7]:4791"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(Letter::read(&write_renew(address)), Some(Letter::Renew(address)));
        }
        assert_eq!(Letter::read(&[]), None);
        assert_eq!(Letter::read(&[99]), None);
    }
}
