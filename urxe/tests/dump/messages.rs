//! Every message of connection management.

use rxe_wire::mad::cm::{
    AnsweredMessage, Apr, AprStatus, Bits, CMA_HEADER_LEN, CmMessage, CmaHeader, CommId, Drep,
    Dreq, FixedBytes, FlowLabel, Guid, Lap, Mra, Path, PathMtu, PortSpace, Rej, RejReason, Rep,
    Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TimeoutExponent, TransportService, U24,
};
use rxe_wire::mad::{MAD_LEN, TransactionId};
use rxe_wire::net::FrameBuilder;
use rxe_wire::{PKey, Psn, QKey, Qpn};

use crate::support::{dump, dump_bytes, filled, frame, link, pcap, to_gsi, v4_net};

/// A request with a value in every field.
fn cm_req() -> Req {
    let mut private_data = filled::<92>();
    let mut cma = [0; CMA_HEADER_LEN];
    CmaHeader::v4(0x1234, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()).write(&mut cma);
    private_data.0[..CMA_HEADER_LEN].copy_from_slice(&cma);
    let path = Path {
        local_lid: 1,
        remote_lid: 2,
        local_gid: [3; 16],
        remote_gid: [4; 16],
        flow_label: FlowLabel::new(5),
        packet_rate: Bits::new(6),
        traffic_class: 7,
        hop_limit: 8,
        service_level: Bits::new(9),
        subnet_local: true,
        local_ack_timeout: TimeoutExponent::new(10),
        reserved: FixedBytes([1, 2, 3]),
    };
    Req {
        local_comm_id: CommId(11),
        vendor_id: U24::new(12),
        service_id: ServiceId::ip(PortSpace::Tcp, 13),
        local_ca_guid: Guid(14),
        local_qkey: QKey::new(15),
        local_qpn: Qpn::new(16),
        responder_resources: 17,
        local_eecn: U24::new(18),
        initiator_depth: 19,
        remote_eecn: U24::new(20),
        remote_response_timeout: TimeoutExponent::new(21),
        service: TransportService::Uc,
        flow_control: true,
        starting_psn: Psn::new(22),
        local_response_timeout: TimeoutExponent::new(23),
        retry_count: Bits::new(4),
        pkey: PKey::new(25),
        path_mtu: PathMtu(Bits::new(5)),
        rdc_exists: true,
        rnr_retry_count: Bits::new(6),
        max_cm_retries: Bits::new(7),
        srq: true,
        extended_transport: Bits::new(1),
        primary_path: path,
        alternate_path: Path { local_lid: 26, ..path },
        private_data,
        reserved: FixedBytes([5; 5]),
    }
}

fn cm_rep() -> Rep {
    Rep {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        local_qkey: QKey::new(3),
        local_qpn: Qpn::new(4),
        local_eecn: U24::new(5),
        starting_psn: Psn::new(6),
        vendor_id: U24::new(7),
        responder_resources: 8,
        initiator_depth: 9,
        target_ack_delay: TimeoutExponent::new(10),
        failover_accepted: Bits::new(1),
        flow_control: true,
        rnr_retry_count: Bits::new(2),
        srq: true,
        local_ca_guid: Guid(11),
        private_data: filled(),
        reserved: Bits::new(3),
    }
}

/// One message of each kind, with a value in every field.
fn cm_messages() -> [CmMessage; 11] {
    let (local_comm_id, remote_comm_id) = (CommId(1), CommId(2));
    let remote_qpn = Qpn::new(3);
    let message = AnsweredMessage::Rep;
    let service_id = ServiceId::ip(PortSpace::Udp, 4);
    let Req { alternate_path, .. } = cm_req();
    let timeout = TimeoutExponent::new(24);
    let status = AprStatus::INVALID_GID;
    let private_data = filled();
    let rej = Rej {
        local_comm_id,
        remote_comm_id,
        message,
        info_len: Bits::new(5),
        reason: RejReason::STALE_CONNECTION,
        info: filled(),
        private_data: filled(),
        reserved: FixedBytes([6, 1]),
    };
    let mra = Mra {
        local_comm_id,
        remote_comm_id,
        message,
        service_timeout: timeout,
        private_data: filled(),
        reserved: FixedBytes([7, 1]),
    };
    let lap = Lap {
        local_comm_id,
        remote_comm_id,
        remote_qpn,
        remote_response_timeout: timeout,
        alternate_path,
        private_data: filled(),
        reserved: FixedBytes([1; 9]),
    };
    let apr = Apr {
        local_comm_id,
        remote_comm_id,
        info_len: 8,
        status,
        info: filled(),
        private_data: filled(),
        reserved: FixedBytes([9, 9]),
    };
    let sidr_req = SidrReq {
        request_id: local_comm_id,
        pkey: PKey::new(0x8001),
        service_id,
        private_data: filled(),
        reserved: FixedBytes([10, 10]),
    };
    let sidr_rep = SidrRep {
        request_id: local_comm_id,
        status: SidrStatus::NO_QP,
        info_len: 11,
        vendor_id: U24::new(12),
        qpn: remote_qpn,
        service_id,
        qkey: QKey::new(13),
        info: filled(),
        private_data: filled(),
    };
    let dreq = Dreq {
        local_comm_id,
        remote_comm_id,
        remote_qpn,
        private_data: filled(),
        reserved: FixedBytes([14]),
    };
    [
        CmMessage::Req(cm_req()),
        CmMessage::Mra(mra),
        CmMessage::Rej(rej),
        CmMessage::Rep(cm_rep()),
        CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data }),
        CmMessage::Dreq(dreq),
        CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data }),
        CmMessage::SidrReq(sidr_req),
        CmMessage::SidrRep(sidr_rep),
        CmMessage::Lap(lap),
        CmMessage::Apr(apr),
    ]
}

#[test]
fn every_cm_message_looks_like_this() {
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let mut frames = Vec::new();
    for message in cm_messages() {
        let mut mad = [0; MAD_LEN];
        message.write_mad(TransactionId(0x1122_3344_5566_7788), &mut mad);
        frames.push(frame(&builder, &to_gsi(&mad)));
    }
    let capture = pcap(&frames);
    insta::assert_snapshot!("every_cm_message_text", dump_bytes(&capture).stdout);
    insta::assert_snapshot!("every_cm_message_json", dump(&["--json", "-"], &capture).stdout);
}
