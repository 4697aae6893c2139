//! Conversations of connection management (`--cm`).

use rxe_wire::hdr::{Bth, Deth};
use rxe_wire::mad::cm::{
    AnsweredMessage, CmMessage, CommId, GSI_QKEY, PortSpace, Rej, RejReason, Rep, Req, Rtu,
    ServiceId, SidrRep, SidrReq, SidrStatus,
};
use rxe_wire::mad::{MAD_LEN, TransactionId};
use rxe_wire::net::{FrameBuilder, Ipv4, Net, Udp};
use rxe_wire::{Headers, Opcode, Psn, Qpn};

use crate::support::*;

/// Who sends a message.
#[derive(Clone, Copy)]
enum From {
    Requester,
    Responder,
}

/// A frame with a message, the `psn`-th of its sender.
fn said(from: From, psn: u32, tid: u64, message: CmMessage) -> Vec<u8> {
    let (own, peer) = ([10, 77, 0, 2].into(), [10, 77, 0, 1].into());
    let (source, destination) = match from {
        From::Requester => (own, peer),
        From::Responder => (peer, own),
    };
    let net = Net::V4 { ip: Ipv4::new(source, destination), udp: Udp::new(0xc001) };
    let bth =
        Bth { opcode: Opcode::new(100), dest_qpn: Qpn::GSI, psn: Psn::new(psn), ..Bth::default() };
    let deth = Some(Deth { qkey: GSI_QKEY, source_qpn: Qpn::GSI, reserved: 0 });
    let headers = Headers { deth, ..Headers::new(bth) };
    let mut bytes = vec![0; headers.len()];
    headers.write(&mut bytes).unwrap();
    let mut mad = [0; MAD_LEN];
    message.write_mad(TransactionId(tid), &mut mad);
    bytes.extend(mad);
    frame(&FrameBuilder::new(Some(link(None)), net), &bytes)
}

const OWN: CommId = CommId(0x0a00_0001);
const PEERS: CommId = CommId(0x0b00_0001);

fn req(id: CommId) -> CmMessage {
    let service_id = ServiceId::ip(PortSpace::Tcp, 7174);
    let local_qpn = Qpn::new(0x11);
    CmMessage::Req(Req { local_comm_id: id, service_id, local_qpn, ..Req::default() })
}

fn rep(to: CommId, id: CommId) -> CmMessage {
    let local_qpn = Qpn::new(0x12);
    CmMessage::Rep(Rep { local_comm_id: id, remote_comm_id: to, local_qpn, ..Rep::default() })
}

fn rej(local_comm_id: CommId, remote_comm_id: CommId, reason: RejReason) -> CmMessage {
    let message = AnsweredMessage::Req;
    CmMessage::Rej(Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() })
}

/// The first lines of the conversations, without their numbers.
fn told(frames: &[Vec<u8>]) -> Vec<String> {
    let run = dump(&["--cm", "-"], &pcap(frames));
    assert_eq!(run.status, 0, "{}", run.stdout);
    let first = run.lines().into_iter().filter_map(|line| line.strip_prefix("conversation "));
    first.map(|line| line.split_once(": ").unwrap().1.to_owned()).collect()
}

/// Captures of Linux's own programs.
#[test]
fn what_linux_says() {
    for name in ["rping", "rping6", "l_rping_loss", "ucmatose", "udaddy", "write_lat_cm"] {
        let path = golden(&format!("{name}.pcap"));
        let run = dump(&["--cm", path.to_str().unwrap()], &[]);
        insta::assert_snapshot!(format!("conversations_of_{name}"), run.stdout);
    }
}

#[test]
fn each_is_an_object_with_its_messages() {
    let json = dump(&["--cm", "--json", golden("rping.pcap").to_str().unwrap()], &[]).json();
    let [conversation, summary] = &json[..] else { panic!("{json:?}") };
    assert_eq!(
        (&conversation["kind"], &summary["kind"]),
        (&"conversation".into(), &"summary".into())
    );
    let first = &conversation["messages"][0];
    assert_eq!((&first["from"], &first["again"]), (&"requester".into(), &false.into()));
    assert_eq!(first["cm"]["message"], "REQ");
    assert_eq!(conversation["requester"]["id"], first["cm"]["local_comm_id"]);
}

#[test]
fn messages_find_their_conversation() {
    let (other, others) = (CommId(0x0a00_0002), CommId(0x0b00_0002));
    let rtu = CmMessage::Rtu(Rtu { local_comm_id: OWN, remote_comm_id: PEERS, ..Rtu::default() });
    let all = told(&[
        said(From::Requester, 1, 1, req(OWN)),
        said(From::Requester, 2, 2, req(other)),
        // In the capture of a host that talks to itself each packet is twice.
        said(From::Requester, 2, 2, req(other)),
        said(From::Responder, 1, 2, rep(other, others)),
        said(From::Requester, 3, 1, req(OWN)),
        said(From::Responder, 2, 1, rep(OWN, PEERS)),
        said(From::Requester, 4, 1, rtu),
    ]);
    assert_eq!(
        all,
        [
            "10.77.0.2 (id 0x0a000001, qpn 0x000011) connects to 10.77.0.1 (id 0x0b000001, qpn \
             0x000012) TCP:7174: connected in 6.0s, not ended; 4 messages, 1 of them again",
            "10.77.0.2 (id 0x0a000002, qpn 0x000011) connects to 10.77.0.1 (id 0x0b000002, qpn \
             0x000012) TCP:7174: accepted, and not confirmed; 2 messages",
        ]
    );
}

#[test]
fn what_came_of_it() {
    let nobody = CommId(0);
    let request = SidrReq { request_id: OWN, ..SidrReq::default() };
    let status = SidrStatus::UNSUPPORTED;
    let reply = SidrRep { request_id: OWN, status, ..SidrRep::default() };
    let ends = [
        (
            From::Responder,
            rej(nobody, OWN, RejReason::INVALID_SERVICE_ID),
            "refused by the responder: 8 ",
        ),
        (From::Requester, rej(OWN, nobody, RejReason::TIMEOUT), "given up by the requester;"),
    ];
    for (from, message, outcome) in ends {
        let all = told(&[said(From::Requester, 1, 1, req(OWN)), said(from, 2, 1, message)]);
        let [one] = &all[..] else { panic!("{all:?}") };
        assert!(one.contains(outcome), "{one}");
    }
    let lookup = told(&[
        said(From::Requester, 1, 1, CmMessage::SidrReq(request)),
        said(From::Responder, 1, 1, CmMessage::SidrRep(reply)),
        said(From::Requester, 2, 2, req(OWN)),
    ]);
    assert!(lookup[0].contains(" looks up 10.77.0.1") && lookup[0].contains("not found: 1 "));
    assert!(lookup[1].contains("not answered; 1 messages"), "{lookup:?}");
}
