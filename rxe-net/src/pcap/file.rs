//! The pcap file format, as far as it is written here.
//!
//! A file header and, before each frame, a record header, all little-endian: the format of
//! pcap-savefile(5). Written by hand because the records of a batch are gathered in memory and
//! handed to the system in one piece, which a writer of single packets does not allow.

use std::time::Duration;

/// Says that the file is little-endian with nanoseconds.
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
/// Version 2.4, the only one in use.
const VERSION: [u16; 2] = [2, 4];
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// The longest frame there can be in the file, in bytes: as in Wireshark, beyond all there are.
pub(super) const SNAPLEN: u32 = 262_144;

/// The header of a file of Ethernet frames with times in nanoseconds.
pub(super) fn file_header() -> [u8; 24] {
    let [major, minor] = VERSION.map(u16::to_le_bytes);
    let mut header = [0; 24];
    let (time_zone, accuracy) = ([0; 4], [0; 4]);
    let parts: [&[u8]; 7] = [
        &MAGIC_NANOS.to_le_bytes(),
        &major,
        &minor,
        &time_zone,
        &accuracy,
        &SNAPLEN.to_le_bytes(),
        &ETHERNET.to_le_bytes(),
    ];
    let bytes = parts.into_iter().flatten();
    for (place, &byte) in header.iter_mut().zip(bytes) {
        *place = byte;
    }
    header
}

/// Appends a record: its header and the frame, cut off where it is longer than [`SNAPLEN`].
///
/// `time` counts from the Unix epoch. The format ends in the year 2106; later times stay there.
pub(super) fn append_record(out: &mut Vec<u8>, time: Duration, frame: &[u8]) {
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let captured = &frame[..frame.len().min(SNAPLEN as usize)];
    out.extend_from_slice(&seconds.to_le_bytes());
    out.extend_from_slice(&time.subsec_nanos().to_le_bytes());
    // `captured` is at most SNAPLEN long, and no frame is longer than a u32 can say.
    out.extend_from_slice(&(captured.len() as u32).to_le_bytes());
    out.extend_from_slice(&u32::try_from(frame.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(captured);
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;
    use pcap_file::{DataLink, TsResolution};

    use super::*;

    #[test]
    fn an_independent_reader_reads_it() {
        let frames = [vec![1; 60], vec![2; 1], vec![3; 65_553]];
        let mut file = file_header().to_vec();
        for (index, frame) in (0..).zip(&frames) {
            append_record(&mut file, Duration::new(1_700_000_000 + index, 123_456_789), frame);
        }
        let mut reader = PcapReader::new(file.as_slice()).expect("a right header");
        let header = reader.header();
        assert_eq!(header.datalink, DataLink::ETHERNET);
        assert_eq!(header.ts_resolution, TsResolution::NanoSecond);
        for (index, frame) in (0..).zip(&frames) {
            let packet = reader.next_packet().expect("a packet").expect("a right one");
            assert_eq!(packet.timestamp, Duration::new(1_700_000_000 + index, 123_456_789));
            assert_eq!(packet.orig_len as usize, frame.len());
            assert_eq!(packet.data, frame.as_slice());
        }
        assert!(reader.next_packet().is_none());
    }

    #[test]
    fn a_frame_too_long_for_the_format_is_cut() {
        let mut record = Vec::new();
        append_record(&mut record, Duration::ZERO, &[0; 300_000]);
        assert_eq!(record.len(), 16 + 262_144);
        let lengths: Vec<_> =
            [262_144_u32, 300_000].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(record[8..16], lengths);
    }
}
