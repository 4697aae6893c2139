//! Addressing of a packet as data: what the link needs to send it, or learnt when it came.

use gid_table::{Gid, GidType};
use rxe_wire::{Psn, Qpn};

/// The addressing of one packet, below BTH.
///
/// The engine gives it with each packet to send, and the link with each packet received. `source`
/// and `destination` are those of the packet: on a received packet, `destination` is ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// GID of the sender.
    pub source: Gid,
    /// GID of the receiver; may be a multicast group.
    pub destination: Gid,
    /// RoCE v1 or v2. With v2, GIDs that are mapped IPv4 addresses travel over IPv4.
    pub gid_type: GidType,
    /// Traffic class (IPv4 TOS, ECN bits included).
    pub traffic_class: u8,
    /// Flow label, 20 bits; 0 if none was set. On v2 it also sets the UDP source port.
    pub flow_label: u32,
    /// Hop limit (IPv4 TTL).
    pub hop_limit: u8,
    /// VLAN identifier, where the packet has one.
    pub vlan: Option<u16>,
}

impl Path {
    /// The plain path of RoCE v2 packets: hop limit 64, and neither class, label nor VLAN.
    pub const fn new(source: Gid, destination: Gid) -> Self {
        let (gid_type, hop_limit) = (GidType::RoceV2, 64);
        let (traffic_class, flow_label, vlan) = (0, 0, None);
        Self { source, destination, gid_type, traffic_class, flow_label, hop_limit, vlan }
    }
}

/// A packet that the engine wrote, ready for the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Bytes written, from BTH to the last pad byte; the link appends the 4 bytes of the iCRC.
    pub len: usize,
    /// Where to.
    pub path: Path,
    /// Destination QP: its top byte is the slot, which decides what may travel in one batch.
    pub dest_qpn: Qpn,
}

/// Consecutive packets that the engine wrote, alike in addressing: what leaves in one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransmitRun {
    /// The first packet. All others are as long as it is, but the last may be shorter.
    pub first: Transmit,
    /// Number of packets, at least 1.
    pub count: u32,
    /// Bytes of the last packet, from BTH to the last pad byte.
    pub last_len: usize,
    /// So many packets behind the first one have their sum in the gap behind them: the CRC register
    /// after all their bytes, little-endian ([`Self::SUM_LEN`]).
    pub summed: u32,
}

impl TransmitRun {
    /// Bytes of a sum. It is the register of the CRC that the iCRC is made of, from a register of
    /// zero and without inversion, which the engine has where it copies: it saves the link a pass
    /// over the packet. Where the gap is shorter, there are no sums.
    pub const SUM_LEN: usize = 4;

    /// Bytes from the start of the first packet to the end of the last one, with `gap` bytes behind
    /// each.
    pub const fn len(&self, gap: usize) -> usize {
        (self.count as usize - 1) * (self.first.len + gap) + self.last_len + gap
    }
}

/// An ICMP error that quoted one of our packets: a hint of loss, never a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreachable {
    /// Destination of the quoted packet.
    pub destination: Gid,
    /// Destination QP in the quoted BTH, where the quote was long enough.
    pub dest_qpn: Qpn,
    /// PSN in the quoted BTH.
    pub psn: Psn,
}
