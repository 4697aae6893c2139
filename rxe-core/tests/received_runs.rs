//! Packets taken in together have the effects of packets taken in one by one.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::{BUF_LEN, Host, pair};
use proptest::prelude::*;
use rxe_core::mem::AccessFlags;
use rxe_core::qp::{Mtu, QpAttr, QpAttrMask};
use rxe_core::wc::{WcStatus, WorkCompletion};
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr};
use rxe_core::{Counter, PacketRun, Path, Transmit};

type Sent = Vec<(Transmit, Vec<u8>)>;

/// Bytes between two packets of a run.
const GAP: usize = 4;
/// Where each message lies, and the longest one.
const PLACE: usize = 40_000;

/// Gives packets to a host by runs of at most `most`, as a link makes them: of one length, but that
/// the last may be shorter.
fn receive_runs(host: &mut Host, packets: &[(Transmit, Vec<u8>)], most: usize) {
    let mut rest = packets;
    while let Some((first, bytes)) = rest.first() {
        let is_full = |(_, packet): &&(Transmit, Vec<u8>)| packet.len() == bytes.len();
        let full = rest.iter().take(most).take_while(is_full).count();
        let is_shorter = |(_, packet): &&(Transmit, Vec<u8>)| packet.len() < bytes.len();
        let count =
            full + usize::from(full < most && rest.get(full).as_ref().is_some_and(is_shorter));
        let mut buf = Vec::new();
        for (_, packet) in &rest[..count] {
            buf.extend_from_slice(packet);
            buf.extend_from_slice(&[0xee; GAP]);
        }
        let run = PacketRun::new(&buf[..buf.len() - GAP], bytes.len(), GAP);
        host.shard.handle_packets(host.now, &first.path, run);
        rest = &rest[count..];
    }
}

/// Two connected hosts, with receives posted, of which the first has posted messages of all kinds.
fn begin(lengths: &[u32], mtu: Mtu) -> (Host, Host) {
    let (mut host, mut peer) = pair(mtu);
    host.pattern(0, BUF_LEN / 2, 5);
    peer.pattern(0, BUF_LEN / 2, 99);
    for (wr_id, &length) in lengths.iter().enumerate() {
        // Cut in the midst of a packet: what lies in two pieces goes the long way.
        peer.post_recv(wr_id as u64, BUF_LEN / 2 + wr_id * PLACE, PLACE as u32);
        let op = match wr_id % 4 {
            0 => SendOp::Read { remote: peer.remote(wr_id * 100) },
            1 => SendOp::Write { remote: peer.remote(BUF_LEN / 2 + wr_id * PLACE), imm: None },
            2 => SendOp::Write { remote: peer.remote(BUF_LEN / 2 + wr_id * PLACE), imm: Some(7) },
            _ => SendOp::Send { imm: Some(9) },
        };
        let place = BUF_LEN / 2 + wr_id * PLACE;
        let (half, is_read) = (length / 2 + 3, wr_id % 4 == 0);
        let place = if is_read { place } else { wr_id * 77 };
        let sges = match length {
            8.. if wr_id % 3 == 1 => {
                vec![host.sge(place, half), host.sge(place + half as usize, length - half)]
            }
            _ => vec![host.sge(place, length)],
        };
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&sges));
        host.post_wr(&SendWr { wr_id: wr_id as u64, op, flags, data, srq_number: None });
    }
    (host, peer)
}

fn essence_of_completions(host: &Host) -> Vec<(u64, WcStatus, u32)> {
    let of = |wc: &WorkCompletion| (wc.wr_id, wc.status, wc.byte_len);
    host.completions().iter().map(of).collect()
}

/// The packets that arrive of those sent: `faults` says of each in turn whether it is lost (1), comes
/// twice (2), behind the next one (3), or asks for congestion to be told of (4).
fn arriving(sent: &Sent, faults: &[u8], at: &mut usize) -> Sent {
    let mut arriving: Sent = Vec::new();
    let mut late = None;
    for packet in sent {
        let fault = faults.get(*at).copied().unwrap_or_default();
        *at += 1;
        match fault {
            1 => {}
            2 => arriving.extend([packet.clone(), packet.clone()]),
            3 if late.is_none() => {
                late = Some(packet.clone());
                continue;
            }
            4 => {
                let mut marked = packet.clone();
                marked.1[4] |= 0x80;
                arriving.push(marked);
            }
            _ => arriving.push(packet.clone()),
        }
        arriving.extend(late.take());
    }
    arriving.extend(late);
    arriving
}

/// Carries packets both ways until all is quiet, by runs of at most `most` or, where that is 0, one by
/// one.
fn carry(host: &mut Host, peer: &mut Host, most: usize, faults: &[u8]) {
    let (mut at, mut quiet) = (0, 0);
    // What is lost is sent again when timers say so.
    while quiet < 40 {
        quiet += 1;
        for is_back in [false, true] {
            let (from, to) =
                if is_back { (&mut *peer, &mut *host) } else { (&mut *host, &mut *peer) };
            let sent = from.transmit();
            if !sent.is_empty() {
                quiet = 0;
            }
            let arriving = arriving(&sent, faults, &mut at);
            match most {
                0 => arriving.iter().for_each(|packet| to.receive(packet)),
                most => receive_runs(to, &arriving, most),
            }
        }
        for host in [&mut *host, &mut *peer] {
            host.now = host.now.plus_nanos(50_000);
            host.shard.handle_timeout(host.now);
        }
    }
}

/// By runs, the same completes and memory holds the same as one by one. Windows may be moved at other
/// moments, so that not all packets are the same.
fn check(lengths: &[u32], mtu: Mtu, most: usize, faults: &[u8]) -> Result<(), TestCaseError> {
    let (mut one, mut many) = (begin(lengths, mtu), begin(lengths, mtu));
    carry(&mut one.0, &mut one.1, 0, faults);
    carry(&mut many.0, &mut many.1, most, faults);
    for (one, many) in [(&one.0, &many.0), (&one.1, &many.1)] {
        let completed = essence_of_completions(one);
        prop_assert!(completed.iter().all(|&(_, status, _)| status == WcStatus::Success));
        prop_assert_eq!(completed, essence_of_completions(many));
        prop_assert!(one.bytes(0, BUF_LEN) == many.bytes(0, BUF_LEN), "other bytes in memory");
    }
    Ok(())
}

proptest! {
    #[test]
    fn runs_have_the_effects_of_their_packets(
        lengths in prop::collection::vec(0_u32..PLACE as u32, 1..9),
        mtu in prop::sample::select(&[Mtu::M256, Mtu::M1024, Mtu::M4096][..]),
        most in 2_usize..70,
    ) {
        check(&lengths, mtu, most, &[])?;
    }

    #[test]
    fn so_have_runs_of_which_packets_are_lost_repeated_and_swapped(
        lengths in prop::collection::vec(0_u32..PLACE as u32, 1..9),
        mtu in prop::sample::select(&[Mtu::M256, Mtu::M1024][..]),
        most in 2_usize..70,
        faults in prop::collection::vec(prop_oneof![12 => Just(0_u8), 1 => 1..5_u8], 0..300),
    ) {
        check(&lengths, mtu, most, &faults)?;
    }
}

/// A path on which a router has met congestion.
fn marked(path: &Path) -> Path {
    Path { traffic_class: 3, ..*path }
}

/// The packets of a WRITE of 16 KiB in one buffer, to a host that is ready for it.
fn write_of_16k() -> (Host, Host, Sent) {
    let (mut host, mut peer) = pair(Mtu::M1024);
    host.pattern(0, 16 << 10, 5);
    peer.pattern(0, 16 << 10, 99);
    host.post(1, SendOp::Write { remote: peer.remote(0), imm: None }, 0, 16 << 10);
    let mut sent = host.transmit();
    assert_eq!(sent.len(), 16);
    let first = sent.remove(0);
    peer.receive(&first);
    (host, peer, sent)
}

#[test]
fn each_marked_packet_of_a_run_is_counted() {
    let (_, mut peer, mut sent) = write_of_16k();
    for (transmit, _) in &mut sent {
        transmit.path = marked(&transmit.path);
    }
    receive_runs(&mut peer, &sent, 64);
    let counted = peer.shard.counters().get(Counter::np_ecn_marked_roce_packets);
    assert_eq!(counted, 15);
}

#[test]
fn r32_a_run_writes_nothing_once_the_key_is_gone() {
    let (_, mut peer, sent) = write_of_16k();
    let before = peer.bytes(0, 16 << 10);
    peer.device.memory().deregister(peer.keys).unwrap();
    receive_runs(&mut peer, &sent, 64);
    assert_eq!(peer.bytes(0, 16 << 10), before);
    let answers = peer.transmit();
    assert_eq!(answers.len(), 1, "a NAK");
    // AETH: a remote access error (IBA volume 1, 9.7.5.2.8).
    assert_eq!(answers[0].1[12], 0x62);
}

#[test]
fn a_run_to_a_queue_pair_that_takes_no_writes_any_more_is_refused() {
    let (_, mut peer, sent) = write_of_16k();
    let access = AccessFlags::LOCAL_WRITE;
    let qpn = peer.qp.qpn();
    let attr = QpAttr { access, ..peer.shard.query_qp(qpn).unwrap() };
    peer.modify(attr, QpAttrMask::ACCESS_FLAGS);
    let before = peer.bytes(0, 16 << 10);
    receive_runs(&mut peer, &sent, 64);
    assert_eq!(peer.bytes(0, 16 << 10), before);
    assert_eq!(peer.transmit()[0].1[12], 0x61, "a NAK: an invalid request");
}
