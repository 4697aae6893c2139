//! Every message against its layout, written down a second time as a table of bits.

use proptest::prelude::*;

use super::*;
use crate::{PKey, Psn, QKey, Qpn};

/// Builds the bytes of a message from (byte, bit from the left, width, value), and sees to it that
/// every bit of the 232 bytes is given exactly once.
struct Table {
    bytes: [u8; MAD_DATA_LEN],
    taken: [u8; MAD_DATA_LEN],
}

impl Table {
    fn of(fields: &[(usize, usize, usize, u64)], blobs: &[(usize, &[u8])]) -> [u8; MAD_DATA_LEN] {
        let mut table = Self { bytes: [0; MAD_DATA_LEN], taken: [0; MAD_DATA_LEN] };
        for &(byte, bit, width, value) in fields {
            assert!(width == 64 || value < 1 << width, "{value} has more than {width} bits");
            for place in 0..width {
                table.set(byte * 8 + bit + place, value >> (width - 1 - place) & 1 != 0);
            }
        }
        for &(byte, blob) in blobs {
            for place in 0..blob.len() * 8 {
                table.set(byte * 8 + place, blob[place / 8] & 0x80 >> (place % 8) != 0);
            }
        }
        let missing = table.taken.iter().position(|&taken| taken != 0xff);
        assert_eq!(missing, None, "bits of this byte are in no field");
        table.bytes
    }

    fn set(&mut self, bit: usize, value: bool) {
        let (byte, mask) = (bit / 8, 0x80 >> (bit % 8));
        assert_eq!(self.taken[byte] & mask, 0, "bit {bit} is in two fields");
        self.taken[byte] |= mask;
        if value {
            self.bytes[byte] |= mask;
        }
    }
}

/// `N` bytes that count up from `first`.
fn counting<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|place| first.wrapping_add(place as u8))
}

/// The message must have these bytes, and the bytes be this message.
fn check(message: CmMessage, expected: [u8; MAD_DATA_LEN]) {
    let transaction_id = TransactionId(0x0102_0304_0506_0708);
    let mut bytes = [0xaa; MAD_LEN];
    message.write_mad(transaction_id, &mut bytes);
    let mad = Mad::parse(&bytes).unwrap();
    assert_eq!(mad.header, message.header(transaction_id));
    assert_eq!(mad.data, &expected, "written");
    assert_eq!(CmMessage::parse(&mad), Ok(message), "read");
}

fn path() -> Path {
    Path {
        local_lid: 0x1234,
        remote_lid: 0x5678,
        local_gid: counting(0x20),
        remote_gid: counting(0x40),
        flow_label: FlowLabel::new(0x98765),
        packet_rate: Bits::new(0x2a),
        traffic_class: 0xb1,
        hop_limit: 0x3f,
        service_level: Bits::new(0xa),
        subnet_local: true,
        local_ack_timeout: TimeoutExponent::new(0x12),
        reserved: FixedBytes([0x25, 0b101, 0b011]),
    }
}

/// The fields of [`req_value`] but for the GIDs and the private data.
const REQ_FIELDS: &[(usize, usize, usize, u64)] = &[
    (0, 0, 32, 0x1122_3344),
    (4, 0, 8, 0xe1),
    (5, 0, 24, 0x55_6677),
    (8, 0, 64, 0x0123_4567_89ab_cdef),
    (16, 0, 64, 0x5054_00ff_fe77_0002),
    (24, 0, 32, 0xe2e3_e4e5),
    (28, 0, 32, 0x8899_aabb),
    (32, 0, 24, 0x01_0203),
    (35, 0, 8, 0x0f),
    (36, 0, 24, 0x04_0506),
    (39, 0, 8, 0x10),
    (40, 0, 24, 0x07_0809),
    (43, 0, 5, 0x15),
    (43, 5, 2, 2),
    (43, 7, 1, 1),
    (44, 0, 24, 0x0a_0b0c),
    (47, 0, 5, 0x0b),
    (47, 5, 3, 5),
    (48, 0, 16, 0x8001),
    (50, 0, 4, 3),
    (50, 4, 1, 1),
    (50, 5, 3, 6),
    (51, 0, 4, 0xd),
    (51, 4, 1, 1),
    (51, 5, 3, 1),
    // Primary path.
    (52, 0, 16, 0x1234),
    (54, 0, 16, 0x5678),
    (88, 0, 20, 0x98765),
    (90, 4, 6, 0x25),
    (91, 2, 6, 0x2a),
    (92, 0, 8, 0xb1),
    (93, 0, 8, 0x3f),
    (94, 0, 4, 0xa),
    (94, 4, 1, 1),
    (94, 5, 3, 0b101),
    (95, 0, 5, 0x12),
    (95, 5, 3, 0b011),
    // Alternate path.
    (96, 0, 16, 0x1234),
    (98, 0, 16, 0x5678),
    (132, 0, 20, 0x12345),
    (134, 4, 6, 0x1a),
    (135, 2, 6, 0x15),
    (136, 0, 8, 0xb1),
    (137, 0, 8, 0x3f),
    (138, 0, 4, 0xa),
    (138, 4, 1, 0),
    (138, 5, 3, 0b010),
    (139, 0, 5, 0x12),
    (139, 5, 3, 0b100),
];

fn req_value() -> Req {
    let alternate_path = Path {
        local_gid: counting(0x60),
        flow_label: FlowLabel::new(0x12345),
        packet_rate: Bits::new(0x15),
        subnet_local: false,
        reserved: FixedBytes([0x1a, 0b010, 0b100]),
        ..path()
    };
    Req {
        local_comm_id: CommId(0x1122_3344),
        vendor_id: U24::new(0x55_6677),
        service_id: ServiceId(0x0123_4567_89ab_cdef),
        local_ca_guid: Guid(0x5054_00ff_fe77_0002),
        local_qkey: QKey::new(0x8899_aabb),
        local_qpn: Qpn::new(0x01_0203),
        responder_resources: 0x0f,
        local_eecn: U24::new(0x04_0506),
        initiator_depth: 0x10,
        remote_eecn: U24::new(0x07_0809),
        remote_response_timeout: TimeoutExponent::new(0x15),
        service: TransportService::Rd,
        flow_control: true,
        starting_psn: Psn::new(0x0a_0b0c),
        local_response_timeout: TimeoutExponent::new(0x0b),
        retry_count: Bits::new(5),
        pkey: PKey::new(0x8001),
        path_mtu: PathMtu(Bits::new(3)),
        rdc_exists: true,
        rnr_retry_count: Bits::new(6),
        max_cm_retries: Bits::new(0xd),
        srq: true,
        extended_transport: Bits::new(1),
        primary_path: path(),
        alternate_path,
        private_data: FixedBytes(counting(0x80)),
        reserved: FixedBytes([0xe1, 0xe2, 0xe3, 0xe4, 0xe5]),
    }
}

#[test]
fn req() {
    let blobs: [(usize, &[u8]); 5] = [
        (56, &counting::<16>(0x20)),
        (72, &counting::<16>(0x40)),
        (100, &counting::<16>(0x60)),
        (116, &counting::<16>(0x40)),
        (140, &counting::<92>(0x80)),
    ];
    check(CmMessage::Req(req_value()), Table::of(REQ_FIELDS, &blobs));
}

#[test]
fn mra() {
    let mra = Mra {
        local_comm_id: CommId(0x1122_3344),
        remote_comm_id: CommId(0x5566_7788),
        message: AnsweredMessage::Other,
        service_timeout: TimeoutExponent::new(0x18),
        private_data: FixedBytes(counting(7)),
        reserved: FixedBytes([0x2a, 0b101]),
    };
    let fields = [
        (0, 0, 32, 0x1122_3344),
        (4, 0, 32, 0x5566_7788),
        (8, 0, 2, 2),
        (8, 2, 6, 0x2a),
        (9, 0, 5, 0x18),
        (9, 5, 3, 0b101),
    ];
    check(CmMessage::Mra(mra), Table::of(&fields, &[(10, &counting::<222>(7))]));
}

#[test]
fn rej() {
    let rej = Rej {
        local_comm_id: CommId(0x1122_3344),
        remote_comm_id: CommId(0x5566_7788),
        message: AnsweredMessage::Rep,
        info_len: Bits::new(0x48),
        reason: RejReason::CONSUMER_DEFINED,
        info: FixedBytes(counting(0x30)),
        private_data: FixedBytes(counting(0x90)),
        reserved: FixedBytes([0x15, 1]),
    };
    let fields = [
        (0, 0, 32, 0x1122_3344),
        (4, 0, 32, 0x5566_7788),
        (8, 0, 2, 1),
        (8, 2, 6, 0x15),
        (9, 0, 7, 72),
        (9, 7, 1, 1),
        (10, 0, 16, 28),
    ];
    let blobs: [(usize, &[u8]); 2] = [(12, &counting::<72>(0x30)), (84, &counting::<148>(0x90))];
    check(CmMessage::Rej(rej), Table::of(&fields, &blobs));
}

#[test]
fn rep() {
    let rep = Rep {
        local_comm_id: CommId(0x1122_3344),
        remote_comm_id: CommId(0x5566_7788),
        local_qkey: QKey::new(0x99aa_bbcc),
        local_qpn: Qpn::new(0x01_0203),
        local_eecn: U24::new(0x04_0506),
        starting_psn: Psn::new(0x07_0809),
        vendor_id: U24::new(0xf1_f2f3),
        responder_resources: 0x10,
        initiator_depth: 0x20,
        target_ack_delay: TimeoutExponent::new(0x0f),
        failover_accepted: Bits::new(1),
        flow_control: true,
        rnr_retry_count: Bits::new(7),
        srq: false,
        local_ca_guid: Guid(0x5054_00ff_fe77_0001),
        private_data: FixedBytes(counting(3)),
        reserved: Bits::new(0b1001),
    };
    let fields = [
        (0, 0, 32, 0x1122_3344),
        (4, 0, 32, 0x5566_7788),
        (8, 0, 32, 0x99aa_bbcc),
        (12, 0, 24, 0x01_0203),
        (15, 0, 8, 0xf1),
        (16, 0, 24, 0x04_0506),
        (19, 0, 8, 0xf2),
        (20, 0, 24, 0x07_0809),
        (23, 0, 8, 0xf3),
        (24, 0, 8, 0x10),
        (25, 0, 8, 0x20),
        (26, 0, 5, 0x0f),
        (26, 5, 2, 1),
        (26, 7, 1, 1),
        (27, 0, 3, 7),
        (27, 3, 1, 0),
        (27, 4, 4, 0b1001),
        (28, 0, 64, 0x5054_00ff_fe77_0001),
    ];
    check(CmMessage::Rep(rep), Table::of(&fields, &[(36, &counting::<196>(3))]));
}

#[test]
fn rtu_and_drep() {
    let fields = [(0, 0, 32, 0x1122_3344), (4, 0, 32, 0x5566_7788)];
    let bytes = Table::of(&fields, &[(8, &counting::<224>(9))]);
    let [local_comm_id, remote_comm_id] = [CommId(0x1122_3344), CommId(0x5566_7788)];
    let private_data = FixedBytes(counting(9));
    check(CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data }), bytes);
    check(CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data }), bytes);
}

#[test]
fn dreq() {
    let dreq = Dreq {
        local_comm_id: CommId(0x1122_3344),
        remote_comm_id: CommId(0x5566_7788),
        remote_qpn: Qpn::new(0x01_0203),
        private_data: FixedBytes(counting(5)),
        reserved: FixedBytes([0xe7]),
    };
    let fields =
        [(0, 0, 32, 0x1122_3344), (4, 0, 32, 0x5566_7788), (8, 0, 24, 0x01_0203), (11, 0, 8, 0xe7)];
    check(CmMessage::Dreq(dreq), Table::of(&fields, &[(12, &counting::<220>(5))]));
}

#[test]
fn lap() {
    let lap = Lap {
        local_comm_id: CommId(0x1122_3344),
        remote_comm_id: CommId(0x5566_7788),
        remote_qpn: Qpn::new(0x01_0203),
        remote_response_timeout: TimeoutExponent::new(0x14),
        alternate_path: path(),
        private_data: FixedBytes(counting(0x50)),
        reserved: FixedBytes([1, 2, 3, 4, 0b110, 5, 6, 7, 8]),
    };
    let fields = [
        (0, 0, 32, 0x1122_3344),
        (4, 0, 32, 0x5566_7788),
        (8, 0, 32, 0x0102_0304),
        (12, 0, 24, 0x01_0203),
        (15, 0, 5, 0x14),
        (15, 5, 3, 0b110),
        (16, 0, 32, 0x0506_0708),
        (20, 0, 16, 0x1234),
        (22, 0, 16, 0x5678),
        (56, 0, 20, 0x98765),
        (58, 4, 4, 0x5),
        (59, 0, 8, 0xb1),
        (60, 0, 8, 0x3f),
        (61, 0, 2, 0b10),
        (61, 2, 6, 0x2a),
        (62, 0, 4, 0xa),
        (62, 4, 1, 1),
        (62, 5, 3, 0b101),
        (63, 0, 5, 0x12),
        (63, 5, 3, 0b011),
    ];
    let blobs: [(usize, &[u8]); 3] =
        [(24, &counting::<16>(0x20)), (40, &counting::<16>(0x40)), (64, &counting::<168>(0x50))];
    check(CmMessage::Lap(lap), Table::of(&fields, &blobs));
}

#[test]
fn apr() {
    let apr = Apr {
        local_comm_id: CommId(0x1122_3344),
        remote_comm_id: CommId(0x5566_7788),
        info_len: 0x48,
        status: AprStatus::INVALID_GID,
        info: FixedBytes(counting(0x30)),
        private_data: FixedBytes(counting(0x90)),
        reserved: FixedBytes([0xe1, 0xe2]),
    };
    let fields = [
        (0, 0, 32, 0x1122_3344),
        (4, 0, 32, 0x5566_7788),
        (8, 0, 8, 0x48),
        (9, 0, 8, 8),
        (10, 0, 16, 0xe1e2),
    ];
    let blobs: [(usize, &[u8]); 2] = [(12, &counting::<72>(0x30)), (84, &counting::<148>(0x90))];
    check(CmMessage::Apr(apr), Table::of(&fields, &blobs));
}

#[test]
fn sidr_req() {
    let sidr_req = SidrReq {
        request_id: CommId(0x1122_3344),
        pkey: PKey::new(0xffff),
        service_id: ServiceId::ip(PortSpace::Udp, 7174),
        private_data: FixedBytes(counting(0x21)),
        reserved: FixedBytes([0xe1, 0xe2]),
    };
    let fields = [
        (0, 0, 32, 0x1122_3344),
        (4, 0, 16, 0xffff),
        (6, 0, 16, 0xe1e2),
        (8, 0, 64, 0x0000_0000_0111_1c06),
    ];
    check(CmMessage::SidrReq(sidr_req), Table::of(&fields, &[(16, &counting::<216>(0x21))]));
}

#[test]
fn sidr_rep() {
    let sidr_rep = SidrRep {
        request_id: CommId(0x1122_3344),
        status: SidrStatus::NO_QP,
        info_len: 0x11,
        vendor_id: U24::new(0xf1_f2f3),
        qpn: Qpn::new(0x01_0203),
        service_id: ServiceId(0x0123_4567_89ab_cdef),
        qkey: QKey::new(0x0123_4567),
        info: FixedBytes(counting(0x31)),
        private_data: FixedBytes(counting(0x91)),
    };
    let fields = [
        (0, 0, 32, 0x1122_3344),
        (4, 0, 8, 3),
        (5, 0, 8, 0x11),
        (6, 0, 16, 0xf1f2),
        (8, 0, 24, 0x01_0203),
        (11, 0, 8, 0xf3),
        (12, 0, 64, 0x0123_4567_89ab_cdef),
        (20, 0, 32, 0x0123_4567),
    ];
    let blobs: [(usize, &[u8]); 2] = [(24, &counting::<72>(0x31)), (96, &counting::<136>(0x91))];
    check(CmMessage::SidrRep(sidr_rep), Table::of(&fields, &blobs));
}

#[test]
fn messages_of_ours_have_no_reserved_bits_set() {
    for message in [CmMessage::Mra(Mra::default()), CmMessage::Req(Req::default())] {
        let mut data = [0xff; MAD_DATA_LEN];
        message.write(&mut data);
        assert_eq!(data, [0; MAD_DATA_LEN]);
    }
}

#[test]
fn reject_reasons_have_the_numbers_of_the_verbs() {
    let known: Vec<u16> = RejReason::ALL.iter().map(|reason| reason.0).collect();
    assert_eq!(known, (1..=33).chain([35]).collect::<Vec<_>>());
    assert_eq!(RejReason::STALE_CONNECTION.to_string(), "10 (stale connection)");
    assert_eq!(RejReason(34).to_string(), "34 (unknown)");
}

#[test]
fn the_cma_header_belongs_to_port_spaces_only() {
    let header = CmaHeader::v4(9, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut bytes = [0; CMA_HEADER_LEN];
    header.write(&mut bytes);
    let private_data = FixedBytes::new(&bytes).unwrap();
    let service_id = ServiceId::ip(PortSpace::Tcp, 7471);
    let req = Req { service_id, private_data, ..Req::default() };
    assert_eq!(CmMessage::Req(req).cma_header(), Some(header));
    let foreign = Req { service_id: ServiceId(1 << 60), ..req };
    assert_eq!(CmMessage::Req(foreign).cma_header(), None);
    assert_eq!(CmMessage::Rtu(Rtu::default()).cma_header(), None);
}

#[test]
fn other_datagrams_are_not_taken_for_messages() {
    let mut bytes = [0; MAD_LEN];
    CmMessage::Rtu(Rtu::default()).write_mad(TransactionId(1), &mut bytes);
    let parse = |place: usize, value: u8| {
        let mut changed = bytes;
        changed[place] = value;
        CmMessage::parse(&Mad::parse(&changed).unwrap())
    };
    assert_eq!(parse(0, 2), Err(NotCm::Kind { base_version: 2, class: 7, method: 3 }));
    assert_eq!(parse(1, 3), Err(NotCm::Kind { base_version: 1, class: 3, method: 3 }));
    assert_eq!(parse(2, 1), Err(NotCm::ClassVersion(1)));
    assert_eq!(parse(3, 1), Err(NotCm::Kind { base_version: 1, class: 7, method: 1 }));
    assert_eq!(parse(17, 0x1b), Err(NotCm::Attribute(AttributeId(0x1b))));
    assert_eq!(parse(16, 1), Err(NotCm::Attribute(AttributeId(0x0114))));
}

proptest! {
    #[test]
    fn any_bytes_of_any_message_round_trip(
        attribute in 0x10u16..=0x1a,
        data in proptest::collection::vec(any::<u8>(), MAD_DATA_LEN),
    ) {
        let data: [u8; MAD_DATA_LEN] = data.try_into().unwrap();
        let header = MadHeader {
            attribute_id: AttributeId(attribute),
            ..CmMessage::Rtu(Rtu::default()).header(TransactionId(0))
        };
        let message = CmMessage::parse(&Mad { header, data: &data }).unwrap();
        prop_assert_eq!(message.attribute_id(), AttributeId(attribute));
        let mut out = [0; MAD_DATA_LEN];
        message.write(&mut out);
        prop_assert_eq!(out, data);
        prop_assert!(!message.to_string().is_empty());
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        match Mad::parse(&bytes) {
            Ok(mad) => drop(CmMessage::parse(&mad)),
            Err(_) => prop_assert!(bytes.len() < MAD_LEN),
        }
    }
}
