//! Packets taken by the run are those taken one by one.
#![allow(clippy::unwrap_used)] // a test

mod common;

use common::{Host, exchange, pair};
use proptest::prelude::*;
use rxe_core::qp::{Mtu, QpAttr};
use rxe_core::wq::SendOp;
use rxe_core::{Shard, TransmitRun};

const GAP: usize = 4;

/// All packets that a host has to send, taken by runs of at most `max` that fit into `room` bytes.
fn transmit_runs(host: &mut Host, max: u32, room: usize) -> Vec<Vec<u8>> {
    let mut buf = vec![0; room.max(Shard::MAX_PACKET)];
    let mut packets = Vec::new();
    while let Some(run) = host.shard.poll_transmit_run(host.now, &mut buf, GAP, max) {
        let TransmitRun { first, count, last_len, .. } = run;
        assert!((1..=max).contains(&count) && last_len <= first.len);
        assert!(run.len(GAP) <= buf.len() + GAP);
        for index in 0..count {
            let len = if index + 1 == count { last_len } else { first.len };
            let at = index as usize * (first.len + GAP);
            packets.push(buf[at..at + len].to_vec());
        }
    }
    packets
}

fn post(host: &mut Host, peer: &Host, lengths: &[u32]) {
    for (wr_id, &length) in lengths.iter().enumerate() {
        let op = match wr_id % 4 {
            0 => SendOp::Write { remote: peer.remote(0), imm: None },
            1 => SendOp::Write { remote: peer.remote(0), imm: Some(7) },
            2 => SendOp::Read { remote: peer.remote(0) },
            _ => SendOp::Send { imm: Some(9) },
        };
        host.post(wr_id as u64, op, 0, length);
    }
}

/// Carries what two hosts have to send, one's singly and many's by runs, to their peers, and
/// compares it; returns how many packets each had.
fn carry(
    one: &mut Host,
    one_peer: &mut Host,
    many: &mut Host,
    many_peer: &mut Host,
    max: u32,
    room: usize,
) -> Result<usize, TestCaseError> {
    // Addresses differ from host to host, and keys.
    let essence = |bytes: &[u8]| (bytes[0], bytes[8..12].to_vec(), bytes.get(28..).map(Vec::from));
    let singly = one.transmit();
    let runs = transmit_runs(many, max, room);
    prop_assert_eq!(
        singly.iter().map(|(_, bytes)| essence(bytes)).collect::<Vec<_>>(),
        runs.iter().map(|bytes| essence(bytes)).collect::<Vec<_>>()
    );
    for packet in &singly {
        one_peer.receive(packet);
    }
    let path = singly.first().map(|(transmit, _)| transmit.path);
    for bytes in &runs {
        many_peer.shard.handle_packet(many_peer.now, &path.unwrap(), bytes);
    }
    Ok(singly.len())
}

/// Requests of these lengths, by runs, take the packets that they take one by one.
fn check(lengths: &[u32], max: u32, room: usize, mtu: Mtu) -> Result<(), TestCaseError> {
    let (mut one, mut one_peer) = pair(mtu);
    let (mut many, mut many_peer) = pair(mtu);
    for host in [&mut one_peer, &mut many_peer] {
        for wr_id in 0..lengths.len() as u64 {
            host.post_recv(wr_id, 0, 40_000);
        }
    }
    for (host, peer) in [(&mut one, &one_peer), (&mut many, &many_peer)] {
        host.pattern(0, 40_000, 5);
        post(host, peer, lengths);
    }
    loop {
        let there = carry(&mut one, &mut one_peer, &mut many, &mut many_peer, max, room)?;
        let back = carry(&mut one_peer, &mut one, &mut many_peer, &mut many, max, room)?;
        if there + back == 0 {
            break;
        }
    }
    exchange(&mut one, &mut one_peer);
    exchange(&mut many, &mut many_peer);
    prop_assert_eq!(one.completions().len(), lengths.len());
    prop_assert_eq!(many.completions().len(), lengths.len());
    Ok(())
}

proptest! {
    #[test]
    fn runs_are_packets_in_a_row(
        lengths in prop::collection::vec(0_u32..40_000, 1..6),
        max in 1_u32..80,
        room in 0_usize..70_000,
        mtu in prop::sample::select(&[Mtu::M256, Mtu::M1024, Mtu::M4096][..]),
    ) {
        check(&lengths, max, room, mtu)?;
    }

    #[test]
    fn messages_of_one_packet_are_packets_in_a_row(
        lengths in prop::collection::vec(0_u32..40, 1..12),
        max in 1_u32..80,
    ) {
        check(&lengths, max, 70_000, Mtu::M1024)?;
    }
}

#[test]
fn messages_of_one_packet_and_one_length_make_a_run() {
    let (mut host, peer) = pair(Mtu::M1024);
    for (wr_id, length) in [8, 8, 8, 4, 8, 8, 2000, 8].into_iter().enumerate() {
        let op = SendOp::Write { remote: peer.remote(0), imm: None };
        host.post(wr_id as u64, op, 0, length);
    }
    let mut buf = vec![0; 70_000];
    let mut counts = Vec::new();
    while let Some(run) = host.shard.poll_transmit_run(host.now, &mut buf, GAP, 64) {
        counts.push(run.count);
    }
    // A shorter one ends a run, and so does a longer one; the two packets of the long message.
    assert_eq!(counts, [4, 2, 2, 1]);
}

/// Two hosts of which one may have 16 READs outstanding.
fn pair_with_16_reads() -> (Host, Host) {
    let (mut host, mut peer) = (Host::new(1), Host::new(2));
    let outstanding = |attr| QpAttr { max_rd_atomic: 16, max_dest_rd_atomic: 16, ..attr };
    let of_host = outstanding(host.attr(&peer, 1, Mtu::M1024));
    let of_peer = outstanding(peer.attr(&host, 2, Mtu::M1024));
    host.connect(of_host);
    peer.connect(of_peer);
    (host, peer)
}

/// Also where the program posts no more than may be outstanding.
#[test]
fn one_read_posted_for_each_that_is_answered_leaves_with_the_next_ones() {
    let (mut host, mut peer) = pair_with_16_reads();
    for wr_id in 0..16 {
        host.post(wr_id, SendOp::Read { remote: peer.remote(0) }, 0, 8);
    }
    host.transmit().iter().for_each(|packet| peer.receive(packet));
    for (index, answer) in peer.transmit().iter().enumerate() {
        host.receive(answer);
        host.post(16, SendOp::Read { remote: peer.remote(0) }, 0, 8);
        let count = if (index + 1) % 4 == 0 { 4 } else { 0 };
        assert_eq!(host.transmit().len(), count, "after answer {index}");
    }
}

#[test]
fn who_has_asked_for_as_much_as_may_be_waits_until_a_quarter_has_come() {
    let (most, quarter) = (16, 4);
    let (mut host, mut peer) = pair_with_16_reads();
    for wr_id in 0..2 * most as u64 {
        host.post(wr_id, SendOp::Read { remote: peer.remote(0) }, 0, 8);
    }
    let asked = host.transmit();
    assert_eq!(asked.len(), most);
    asked.iter().for_each(|packet| peer.receive(packet));
    let answers = peer.transmit();
    assert_eq!(answers.len(), most);
    for (index, answer) in answers.iter().enumerate() {
        host.receive(answer);
        let count = if (index + 1) % quarter == 0 { quarter } else { 0 };
        assert_eq!(host.transmit().len(), count, "after answer {index}");
    }
}

/// READs leave the window less room than the SEND's second block needs: a run that ends with the
/// first block does not go on into it.
#[test]
fn a_run_begins_no_block_that_has_no_room() {
    check(&[8449, 24_065, 28_929, 24_833], 3, 0, Mtu::M256).unwrap();
}

/// Messages of 64 packets, where 62 fill a send: what the window has no room for waits until there is
/// a full send of it, also where that begins in the midst of a message and ends in the next.
#[test]
fn sends_are_full_through_all_messages() {
    let (mut host, mut peer) = pair(Mtu::M1024);
    let (messages, full) = (60, 62);
    for wr_id in 0..messages {
        peer.post_recv(wr_id, 0, 1 << 16);
        host.post(wr_id, SendOp::Send { imm: None }, 0, 1 << 16);
    }
    let (mut left, mut counts) = (64 * messages as usize, Vec::new());
    while left > 0 {
        let packets = host.transmit();
        left -= packets.len();
        counts.push(packets.len());
        packets.iter().for_each(|packet| peer.receive(packet));
        peer.transmit().iter().for_each(|packet| host.receive(packet));
    }
    // At first the window is smaller than some full sends, and the last packets wait for nobody.
    let middle = &counts[4..counts.len() - 1];
    assert!(middle.len() > 3 && middle.iter().all(|count| count % full == 0), "{counts:?}");
    exchange(&mut host, &mut peer);
    assert_eq!(host.completions().len(), messages as usize);
}
