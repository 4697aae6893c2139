//! Every packet that Linux's rdma_rxe sent in testdata/golden: read field by field as tshark read
//! it, with a good iCRC, and written again to the same bytes.
#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use common::{Reading, Value};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use rxe_wire::Qpn;
use rxe_wire::icrc::Identified;
use rxe_wire::net::{Frame, FrameBuilder};

/// The captures, sorted by name.
fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden");
    let mut captures: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    captures.sort();
    // As many as the README of that folder lists: none may get lost unseen.
    assert_eq!(captures.len(), 24);
    captures
}

/// The frames of a capture, whole.
fn frames(capture: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(capture).unwrap()).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!(packet.orig_len as usize, packet.data.len(), "{}", capture.display());
        frames.push(packet.data.into_owned());
    }
    frames
}

/// Calls `check` with each frame of each capture and a name for it.
fn for_each_frame(mut check: impl FnMut(&str, &[u8], &Frame<'_>)) {
    for capture in captures() {
        for (index, bytes) in frames(&capture).iter().enumerate() {
            let name = format!("{} frame {}", capture.display(), index + 1);
            let frame =
                Frame::parse_ethernet(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            check(&name, bytes, &frame);
        }
    }
}

#[test]
fn every_field_is_what_tshark_says() {
    for capture in captures() {
        let table = fs::read_to_string(capture.with_extension("tsv")).unwrap();
        let mut rows = table.lines();
        let fields: Vec<_> = rows.next().unwrap().split('\t').collect();
        assert!(fields.len() > 20);
        let frames = frames(&capture);
        assert_eq!(rows.clone().count(), frames.len());
        for (row, bytes) in rows.zip(&frames) {
            let name = format!("{} row {row}", capture.display());
            let frame = Frame::parse_ethernet(bytes).unwrap();
            let values: Vec<_> = row.split('\t').collect();
            assert_eq!(values.len(), fields.len(), "{name}");
            let pairs = fields.iter().copied().zip(values);
            Reading::of(&frame)
                .assert_equals(&name, pairs.filter(|&(field, _)| field != "frame.number"));
        }
    }
}

#[test]
fn what_the_tables_leave_out_is_what_linux_sends() {
    for_each_frame(|name, _, frame| {
        let reading = Reading::of(frame);
        let bth = frame.packet().unwrap().bth();
        // R17: reserved bits are 0. The congestion bits stay clear between two quiet hosts.
        assert_eq!((bth.tver, bth.reserved6, bth.reserved7), (0, 0, 0), "{name}");
        assert!(!bth.fecn && !bth.becn, "{name}");
        assert_eq!(reading.get("udp.dstport"), Some(&Value::Number(4791)), "{name}");
        let known = ["10.77.0.1", "10.77.0.2", "fd00:77::1", "fd00:77::2"];
        for field in ["ip.src", "ipv6.src"] {
            if let Some(Value::Text(address)) = reading.get(field) {
                assert!(known.contains(&address.as_str()), "{name}: {address}");
            }
        }
        if reading.get("ip.src").is_some() {
            assert_eq!(reading.get("ip.checksum.status"), Some(&Value::Number(1)), "{name}");
            assert_eq!(reading.get("ip.flags.df"), Some(&Value::Number(1)), "{name}");
        }
        assert_eq!(frame.trailing, [], "{name}");
    });
}

#[test]
fn every_icrc_is_good() {
    let mut count = 0;
    for_each_frame(|name, _, frame| {
        let check = frame.icrc().unwrap();
        assert!(check.is_good(), "{name}: {check:x?}");
        let (flow, identification) = (frame.net.icrc_flow(), frame.net.identification());
        assert_eq!(flow.icrc(identification, frame.roce), check.carried, "{name}");
        // What a UDP socket would have to find out.
        let found = flow.identify(frame.roce, check.carried);
        assert_eq!(found, Some(Identified { identification, dont_fragment: true }), "{name}");
        count += 1;
    });
    // As many as the tables have rows.
    assert_eq!(count, 4883);
}

#[test]
fn every_flipped_bit_is_found_unless_it_is_masked() {
    // One packet of each capture is enough: iCRC over IPv4 and IPv6, all kinds of headers.
    for capture in captures() {
        let mut bytes = frames(&capture).swap_remove(0);
        let l3 = bytes.split_off(14);
        let v4 = l3[0] >> 4 == 4;
        let bth = if v4 { 28 } else { 48 };
        let masked: &[usize] =
            if v4 { &[1, 8, 10, 11, 26, 27, 32] } else { &[1, 2, 3, 7, 46, 47, 52] };
        for bit in 0..l3.len() * 8 {
            let mut flipped = l3.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let good = rxe_wire::icrc::check_l3(&flipped).is_ok_and(|check| check.is_good());
            let half = !v4 && bit < 4;
            assert_eq!(
                good,
                masked.contains(&(bit / 8)) || half,
                "{}: bit {bit}, BTH at {bth}",
                capture.display()
            );
        }
    }
}

#[test]
fn every_packet_and_frame_is_written_again_to_the_same_bytes() {
    for_each_frame(|name, bytes, frame| {
        let packet = frame.packet().unwrap();
        let mut again = vec![0; frame.roce.len()];
        let headers_len = packet.headers().write(&mut again).unwrap();
        assert_eq!(headers_len, packet.headers().len(), "{name}");
        again[headers_len..][..packet.payload().len()].copy_from_slice(packet.payload());
        // Linux pads with zeros, as `again` was filled.
        assert_eq!(again, frame.roce, "{name}");

        let mut again = vec![0; bytes.len()];
        assert_eq!(frame.write(&mut again), Ok(bytes.len()), "{name}");
        assert_eq!(again, bytes, "{name}");

        // Built anew, lengths, checksum and iCRC come out the same.
        let mut built = vec![0; bytes.len()];
        let builder = FrameBuilder::new(frame.link, frame.net);
        assert_eq!(builder.write(frame.roce, &mut built), Ok(bytes.len()), "{name}");
        assert_eq!(built, bytes, "{name}");
    });
}

#[test]
fn r29_every_payload_obeys_the_rule_at_one_path_mtu() {
    for capture in captures() {
        let frames = frames(&capture);
        let packets: Vec<_> = frames
            .iter()
            .map(|bytes| Frame::parse_ethernet(bytes).unwrap().packet().unwrap())
            .collect();
        let fits = |mtu: usize| {
            packets.iter().all(|packet| {
                packet.bth().dest_qpn == Qpn::GSI
                    || packet.info().payload.check(packet.payload().len(), mtu)
            })
        };
        let count = [256, 512, 1024, 2048, 4096].into_iter().filter(|&mtu| fits(mtu)).count();
        assert!(count > 0, "{}", capture.display());
        // Where a message has a first packet, only one MTU fits.
        if packets.iter().any(|packet| packet.info().position == rxe_wire::Position::First) {
            assert_eq!(count, 1, "{}", capture.display());
        }
    }
}
