//! A path between two ports, as REQ carries two of them and LAP one.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{Bits, FixedBytes, FlowLabel, TimeoutExponent};

/// A path as it lies in a REQ.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ReqPathBytes {
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// 20 bits flow label, 6 reserved, 6 packet rate.
    flow_rate: U32,
    traffic_class: u8,
    hop_limit: u8,
    /// 4 bits service level, 1 subnet local, 3 reserved.
    level_local: u8,
    /// 5 bits local ACK timeout, 3 reserved.
    ack_timeout: u8,
}

/// A path as it lies in a LAP: traffic class and hop limit stand before the packet rate.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct LapPathBytes {
    local_lid: U16,
    remote_lid: U16,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    /// 20 bits flow label, 4 reserved, 8 traffic class.
    flow_class: U32,
    hop_limit: u8,
    /// 2 bits reserved, 6 packet rate.
    rate: u8,
    /// 4 bits service level, 1 subnet local, 3 reserved.
    level_local: u8,
    /// 5 bits local ACK timeout, 3 reserved.
    ack_timeout: u8,
}

const _: () = assert!(size_of::<ReqPathBytes>() == 44);
const _: () = assert!(size_of::<LapPathBytes>() == 44);

/// A path between two ports (facts.md section 2).
///
/// RoCE has no LIDs; Linux fills both with `0xffff`, and the GIDs say who is meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Path {
    /// LID of the sender's port.
    pub local_lid: u16,
    /// LID of the receiver's port.
    pub remote_lid: u16,
    /// GID of the sender's port; an IPv4 address is `::ffff:a.b.c.d`.
    pub local_gid: [u8; 16],
    /// GID of the receiver's port.
    pub remote_gid: [u8; 16],
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Packet rate, a code of the verbs' `ibv_rate`.
    pub packet_rate: Bits<6>,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: Bits<4>,
    /// Whether both ports are on one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout that the receiver should use; 0 is no timer.
    pub local_ack_timeout: TimeoutExponent,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<3>,
}

impl Path {
    pub(super) fn from_req(raw: &ReqPathBytes) -> Self {
        let flow_rate = raw.flow_rate.get();
        Self {
            local_lid: raw.local_lid.get(),
            remote_lid: raw.remote_lid.get(),
            local_gid: raw.local_gid,
            remote_gid: raw.remote_gid,
            flow_label: FlowLabel::new(flow_rate >> 12),
            packet_rate: Bits::new((flow_rate & 0x3f) as u8),
            traffic_class: raw.traffic_class,
            hop_limit: raw.hop_limit,
            service_level: Bits::new(raw.level_local >> 4),
            subnet_local: raw.level_local & 0b1000 != 0,
            local_ack_timeout: TimeoutExponent::new(raw.ack_timeout >> 3),
            reserved: FixedBytes([
                (flow_rate >> 6 & 0x3f) as u8,
                raw.level_local & 0b111,
                raw.ack_timeout & 0b111,
            ]),
        }
    }

    pub(super) fn to_req(self) -> ReqPathBytes {
        let [between, after_local, after_timeout] = self.reserved.0;
        let flow_rate = self.flow_label.get() << 12
            | u32::from(between & 0x3f) << 6
            | u32::from(self.packet_rate.get());
        ReqPathBytes {
            local_lid: self.local_lid.into(),
            remote_lid: self.remote_lid.into(),
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_rate: flow_rate.into(),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            level_local: self.level_local(after_local),
            ack_timeout: self.local_ack_timeout.get() << 3 | after_timeout & 0b111,
        }
    }

    pub(super) fn from_lap(raw: &LapPathBytes) -> Self {
        let flow_class = raw.flow_class.get();
        Self {
            local_lid: raw.local_lid.get(),
            remote_lid: raw.remote_lid.get(),
            local_gid: raw.local_gid,
            remote_gid: raw.remote_gid,
            flow_label: FlowLabel::new(flow_class >> 12),
            packet_rate: Bits::new(raw.rate),
            traffic_class: (flow_class & 0xff) as u8,
            hop_limit: raw.hop_limit,
            service_level: Bits::new(raw.level_local >> 4),
            subnet_local: raw.level_local & 0b1000 != 0,
            local_ack_timeout: TimeoutExponent::new(raw.ack_timeout >> 3),
            reserved: FixedBytes([
                // Four bits before the traffic class and two before the rate make the six of REQ.
                (flow_class >> 8 & 0xf) as u8 | (raw.rate >> 6) << 4,
                raw.level_local & 0b111,
                raw.ack_timeout & 0b111,
            ]),
        }
    }

    pub(super) fn to_lap(self) -> LapPathBytes {
        let [between, after_local, after_timeout] = self.reserved.0;
        let flow_class = self.flow_label.get() << 12
            | u32::from(between & 0xf) << 8
            | u32::from(self.traffic_class);
        LapPathBytes {
            local_lid: self.local_lid.into(),
            remote_lid: self.remote_lid.into(),
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_class: flow_class.into(),
            hop_limit: self.hop_limit,
            rate: (between >> 4 & 0b11) << 6 | self.packet_rate.get(),
            level_local: self.level_local(after_local),
            ack_timeout: self.local_ack_timeout.get() << 3 | after_timeout & 0b111,
        }
    }

    fn level_local(&self, reserved: u8) -> u8 {
        self.service_level.get() << 4 | u8::from(self.subnet_local) << 3 | reserved & 0b111
    }
}
