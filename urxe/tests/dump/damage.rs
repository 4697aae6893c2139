//! Damaged, truncated and cut captures, garbage, closed pipes, wrong use.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use pcap_file::DataLink;
use pcap_file::pcap::{PcapPacket, PcapWriter, RawPcapPacket};
use proptest::prelude::*;

use crate::support::{dump, dump_bytes, frames_of, golden, header, pcap};

#[test]
fn a_flipped_bit_makes_the_exit_status_1() {
    let frames: Vec<Vec<u8>> =
        frames_of("rping.pcap").into_iter().map(|(_, frame)| frame).collect();
    // The last byte before the iCRC, one in the middle, one of the iCRC itself, the UDP port.
    for (index, from_end) in [(0, 5), (3, 10), (6, 1), (9, 4)] {
        let mut changed = frames.clone();
        let place = changed[index].len() - from_end;
        changed[index][place] ^= 0x10;
        let run = dump_bytes(&pcap(&changed));
        assert_eq!(run.status, 1, "{}", run.stdout);
        let bad: Vec<_> = run.lines().into_iter().filter(|line| line.contains("BAD")).collect();
        assert_eq!(bad.len(), 1, "{}", run.stdout);
        assert!(bad[0].starts_with(&format!("{} ", index + 1)), "{}", bad[0]);
        let good = frames.len() - 1;
        assert!(run.last().contains(&format!("iCRC {good} good 1 bad")), "{}", run.last());
    }
}

#[test]
fn a_truncated_file_tells_how_far_it_got() {
    let capture =
        pcap(&frames_of("rdma_client.pcap").into_iter().map(|it| it.1).collect::<Vec<_>>());
    let whole = dump_bytes(&capture);
    for len in (0..capture.len()).step_by(23) {
        let run = dump_bytes(&capture[..len]);
        let shown = run.lines().len();
        match run.status {
            // Cut between two frames: nothing tells that something is missing.
            0 => assert!(shown >= 1 && run.stderr.is_empty(), "{len}: {}", run.stderr),
            2 if len < 4 => assert!(run.stderr.contains("not a capture"), "{}", run.stderr),
            2 if len < 24 => {
                assert!(run.stderr.contains("inside its own header"), "{}", run.stderr)
            }
            2 => {
                let frames = shown - 1;
                let expected = format!("in the middle of a record, {frames} frames are whole");
                assert!(run.stderr.contains(&expected), "{len}: {}", run.stderr);
                assert_eq!(run.lines()[..frames], whole.lines()[..frames], "{len}");
                assert!(run.last().starts_with(&format!("{frames} packets")), "{}", run.last());
            }
            other => panic!("exit status {other} at {len}: {}", run.stderr),
        }
    }
}

#[test]
fn frames_that_the_capture_cut_are_told() {
    let cut = |len: usize| {
        let mut writer = PcapWriter::with_header(Vec::new(), header(DataLink::ETHERNET)).unwrap();
        for (time, frame) in frames_of("rping.pcap") {
            let data = &frame[..len.min(frame.len())];
            writer.write_packet(&PcapPacket::new(time, frame.len() as u32, data)).unwrap();
        }
        dump_bytes(&writer.into_writer())
    };
    for len in 0..100 {
        let run = cut(len);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{len}");
        assert!(run.stdout.contains("truncated: "), "{len} {}", run.stdout);
        assert!(!run.stdout.contains("BAD"), "{len}");
    }
    // Ethernet, IPv4, UDP, BTH and DETH are 62 bytes: enough for the headers of the first packet.
    let first = "UD SEND_ONLY qp 0x000001 psn 0 pkey 0xffff ackreq | DETH qkey 0x80010000 from \
        0x000001 | payload 256 | icrc not captured | truncated: 62 of 322 bytes captured";
    assert!(cut(62).lines()[0].ends_with(first), "{}", cut(62).lines()[0]);
    let first = "1 20:34:15.594475 truncated: 61 of 322 bytes captured";
    assert_eq!(cut(61).lines()[0], first);
    let run = cut(321);
    assert!(run.lines()[0].ends_with("not captured | truncated: 321 of 322 bytes captured"));
    assert!(!run.lines()[0].contains(" CM "), "half a message is not read");
    assert!(run.last().ends_with("5 cut before the iCRC"), "{}", run.last());
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_urxe"))
        .args(["dump", golden("l_atomic_loss.pcap").to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut stdout = BufReader::with_capacity(64, child.stdout.take().unwrap());
    stdout.read_line(&mut first).unwrap();
    assert!(first.starts_with("1 "), "{first}");
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn wrong_use_is_exit_status_2() {
    assert_eq!(dump(&[], b"").status, 2);
    assert_eq!(dump(&["--no-such-option", "-"], b"").status, 2);
    let run = dump(&["/no/such/file.pcap"], b"");
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("/no/such/file.pcap: cannot open the file"), "{}", run.stderr);
    let run = dump_bytes(b"");
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("the file is empty"), "{}", run.stderr);
    let run = dump_bytes(b"this is a letter to the editor");
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("not a capture"), "{}", run.stderr);
}

/// Frames with arbitrary bytes in them, in a capture that is well-formed itself.
fn raw_pcap(link: u32, frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut writer = PcapWriter::with_header(Vec::new(), header(link.into())).unwrap();
    for (orig_len, data) in frames {
        let packet = RawPcapPacket {
            ts_sec: u32::MAX,
            ts_frac: u32::MAX,
            incl_len: data.len() as u32,
            orig_len: *orig_len,
            data: data.into(),
        };
        writer.write_raw_packet(&packet).unwrap();
    }
    writer.into_writer()
}

proptest! {
    // Each case is a run of the program.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn garbage_never_crashes_it(
        magic in prop::sample::select(vec![
            vec![],
            vec![0xd4, 0xc3, 0xb2, 0xa1],
            vec![0x0a, 0x0d, 0x0d, 0x0a, 0x1c, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a],
        ]),
        garbage in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let run = dump_bytes(&[magic, garbage].concat());
        prop_assert!([0, 1, 2].contains(&run.status), "{} {}", run.status, run.stderr);
        prop_assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    }

    #[test]
    fn garbage_in_frames_never_crashes_it(
        link in prop::sample::select(vec![1_u32, 101, 113, 276, 228, 12, 0xf000_0001]),
        frames in prop::collection::vec(
            (any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)),
            0..20,
        ),
    ) {
        let run = dump_bytes(&raw_pcap(link, &frames));
        prop_assert_eq!(run.status & !1, 0, "{}", &run.stderr);
        prop_assert_eq!(run.lines().len(), frames.len() + 1);
    }

    #[test]
    fn damaged_frames_never_crash_it(
        flips in prop::collection::vec(
            (0_usize..65, any::<prop::sample::Index>(), any::<u8>()),
            1..30,
        ),
    ) {
        let mut frames: Vec<Vec<u8>> =
            frames_of("rping6.pcap").into_iter().map(|(_, frame)| frame).collect();
        for (index, place, value) in flips {
            let frame = &mut frames[index];
            let place = place.index(frame.len());
            frame[place] = value;
        }
        let capture = pcap(&frames);
        for arguments in [&["-v", "-"][..], &["--json", "-"]] {
            let run = dump(arguments, &capture);
            prop_assert_eq!(run.status & !1, 0, "{}", &run.stderr);
            prop_assert!(run.lines().len() > frames.len());
        }
    }
}
