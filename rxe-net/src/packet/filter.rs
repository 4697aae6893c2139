//! What a packet socket is to receive: a classic BPF program.

use std::net::IpAddr;

use gid_table::Gid;

use crate::udp::ROCE_PORT;

/// Instructions of classic BPF (`<linux/bpf_common.h>`), as `code`.
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE_INDEXED: u16 = 0x50;
const LOAD_HALF_INDEXED: u16 = 0x48;
/// X = 4 * (low half of the byte): the length of an IPv4 header.
const LOAD_HEADER_LEN: u16 = 0xb1;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_BITS: u16 = 0x45;
const RETURN: u16 = 0x06;

/// EtherTypes.
const ROCE_V1: u32 = 0x8915;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
/// IP's number of UDP.
const UDP: u32 = 17;

/// Where the EtherType is in a frame, or that of the tag that stands before it.
const ETHER_TYPE: u32 = 12;
const ETHERNET_LEN: u32 = 14;
/// EtherType and length of a VLAN tag (IEEE 802.1Q).
const VLAN: u32 = 0x8100;
const TAG_LEN: u32 = 4;
/// Lengths of headers; 40 bytes are those of GRH and of IPv6.
const HEADER_LEN: u32 = 40;
const UDP_LEN: u32 = 8;
/// The slot: the top byte of the destination QPN in BTH.
const SLOT: u32 = 5;

/// What the kernel knows of a frame beside its bytes (`SKF_AD_OFF`, and from there `SKF_AD_PKTTYPE`
/// and `SKF_AD_IFINDEX` of `<linux/filter.h>`), loaded as a word.
const BESIDE: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = BESIDE + 4;
const IFINDEX: u32 = BESIDE + 8;
/// `PACKET_OTHERHOST`: to the Ethernet address of another host, seen since the interface, or a
/// bridge, hears all.
const OTHER_HOST: u32 = 3;

/// What a socket receives: RoCE v1 and v2, to one GID or group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Accepted<'a> {
    /// The GID, or the group.
    pub gid: Gid,
    /// The slots of the destination QPNs.
    pub slots: &'a [u8],
    /// The interfaces that they come by.
    pub ifindexes: &'a [u32],
    /// Also frames in which a VLAN tag stands. The kernel takes tags out of what comes, but not out
    /// of what a packet socket of this host sends.
    pub tag_may_stand: bool,
}

/// A part of the program: passed, or the frame is refused.
enum Check {
    /// It is one of these.
    AnyOf {
        load: u16,
        at: u32,
        values: Vec<u32>,
    },
    /// None of these bits is set.
    Clear {
        load: u16,
        at: u32,
        bits: u32,
    },
    /// It is another one.
    Not {
        load: u16,
        at: u32,
        value: u32,
    },
    HeaderLen {
        at: u32,
    },
}

impl Check {
    fn equal(load: u16, at: u32, value: u32) -> Self {
        Self::AnyOf { load, at, values: vec![value] }
    }

    /// The number of instructions.
    fn len(&self) -> usize {
        match self {
            Self::HeaderLen { .. } => 1,
            Self::AnyOf { values, .. } => 1 + values.len(),
            Self::Clear { .. } | Self::Not { .. } => 2,
        }
    }
}

/// The program that accepts these packets, and nothing else.
pub(super) fn program(accepted: &Accepted<'_>) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    push_branches(&mut program, accepted, 0);
    if accepted.tag_may_stand {
        program.push(instruction(LOAD_HALF, ETHER_TYPE));
        // Over the refusal, where there is a tag.
        program.push(libc::sock_filter { code: JUMP_EQUAL, jt: 1, jf: 0, k: VLAN });
        program.push(instruction(RETURN, 0));
        push_branches(&mut program, accepted, TAG_LEN);
    }
    program.push(instruction(RETURN, 0));
    program
}

/// Appends what accepts frames in which tags of so many bytes stand; others fall through.
fn push_branches(program: &mut Vec<libc::sock_filter>, accepted: &Accepted<'_>, tags: u32) {
    for (ether_type, checks) in branches(accepted, ETHERNET_LEN + tags) {
        let body = compile(&checks);
        program.push(instruction(LOAD_HALF, ETHER_TYPE + tags));
        // Over the branch, where it is another EtherType. A branch is short.
        let over = u8::try_from(body.len()).unwrap_or(u8::MAX);
        program.push(libc::sock_filter { code: JUMP_EQUAL, jt: 0, jf: over, k: ether_type });
        program.extend(body);
    }
}

/// What is checked of the frames of each EtherType, whose network header is at `l3`.
fn branches(accepted: &Accepted<'_>, l3: u32) -> Vec<(u32, Vec<Check>)> {
    let Accepted { gid, slots, ifindexes, .. } = *accepted;
    let l4 = l3 + HEADER_LEN;
    let way = || {
        let values = ifindexes.to_vec();
        vec![
            Check::AnyOf { load: LOAD_WORD, at: IFINDEX, values },
            Check::Not { load: LOAD_WORD, at: PACKET_TYPE, value: OTHER_HOST },
        ]
    };
    let slot_at = |load, at| {
        let values = slots.iter().copied().map(u32::from).collect();
        Check::AnyOf { load, at, values }
    };
    let mut v1 = way();
    v1.extend(address(l3 + 24, &gid.raw()));
    v1.push(slot_at(LOAD_BYTE, l4 + SLOT));
    let port = u32::from(ROCE_PORT);
    let mut v2 = way();
    let ether_type = match gid.to_ip() {
        IpAddr::V4(v4) => {
            v2.push(Check::equal(LOAD_BYTE, l3 + 9, UDP));
            // No fragment: neither more to come nor an offset.
            v2.push(Check::Clear { load: LOAD_HALF, at: l3 + 6, bits: 0x3fff });
            v2.extend(address(l3 + 16, &v4.octets()));
            v2.push(Check::HeaderLen { at: l3 });
            v2.push(Check::equal(LOAD_HALF_INDEXED, l3 + 2, port));
            v2.push(slot_at(LOAD_BYTE_INDEXED, l3 + UDP_LEN + SLOT));
            IPV4
        }
        IpAddr::V6(_) => {
            v2.push(Check::equal(LOAD_BYTE, l3 + 6, UDP));
            v2.extend(address(l3 + 24, &gid.raw()));
            v2.push(Check::equal(LOAD_HALF, l4 + 2, port));
            v2.push(slot_at(LOAD_BYTE, l4 + UDP_LEN + SLOT));
            IPV6
        }
    };
    vec![(ROCE_V1, v1), (ether_type, v2)]
}

fn address(at: u32, bytes: &[u8]) -> Vec<Check> {
    let words = bytes.as_chunks::<4>().0.iter().zip((at..).step_by(4));
    words.map(|(word, at)| Check::equal(LOAD_WORD, at, u32::from_be_bytes(*word))).collect()
}

/// The instructions of a branch: whatever fails goes to its last one, which refuses; the second last
/// one accepts the whole frame.
fn compile(checks: &[Check]) -> Vec<libc::sock_filter> {
    let accept = checks.iter().map(Check::len).sum::<usize>();
    let mut program = Vec::with_capacity(accept + 2);
    for check in checks {
        match check {
            Check::HeaderLen { at } => program.push(instruction(LOAD_HEADER_LEN, *at)),
            Check::AnyOf { load, at, values } => {
                program.push(instruction(*load, *at));
                for (left, value) in (0..values.len()).rev().zip(values) {
                    // To what follows the last of them; where the last one fails too, to the end.
                    let jt = u8::try_from(left).unwrap_or(u8::MAX);
                    let jf = if left == 0 { to_refusal(&program, accept) } else { 0 };
                    program.push(libc::sock_filter { code: JUMP_EQUAL, jt, jf, k: *value });
                }
            }
            Check::Clear { load, at, bits: k } => {
                program.push(instruction(*load, *at));
                let jt = to_refusal(&program, accept);
                program.push(libc::sock_filter { code: JUMP_BITS, jt, jf: 0, k: *k });
            }
            Check::Not { load, at, value: k } => {
                program.push(instruction(*load, *at));
                let jt = to_refusal(&program, accept);
                program.push(libc::sock_filter { code: JUMP_EQUAL, jt, jf: 0, k: *k });
            }
        }
    }
    program.push(instruction(RETURN, u32::MAX));
    program.push(instruction(RETURN, 0));
    program
}

/// How far the next instruction has to jump, to behind the acceptance. A branch is short.
fn to_refusal(program: &[libc::sock_filter], accept: usize) -> u8 {
    u8::try_from(accept - program.len()).unwrap_or(u8::MAX)
}

const fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use rxe_core::path::Path;

    use super::*;
    use crate::frame::{FrameHeaders, write};
    use gid_table::GidType;

    /// Runs a program on a frame that comes to this host by the interface 2; whether it accepts.
    fn accepts(program: &[libc::sock_filter], frame: &[u8]) -> bool {
        accepts_by(program, frame, 2, 0)
    }

    /// As the kernel does, of a frame that comes by an interface and is of a packet type.
    fn accepts_by(
        program: &[libc::sock_filter],
        frame: &[u8],
        ifindex: u32,
        packet_type: u32,
    ) -> bool {
        let load = |at: usize, len: usize| {
            match u32::try_from(at) {
                Ok(IFINDEX) => return Some(ifindex),
                Ok(PACKET_TYPE) => return Some(packet_type),
                _ => {}
            }
            let bytes = frame.get(at..at + len)?;
            Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        let (mut a, mut x, mut pc) = (0_u32, 0_usize, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[pc];
            let at = k as usize;
            pc += 1;
            let loaded = match code {
                LOAD_BYTE => load(at, 1),
                LOAD_HALF => load(at, 2),
                LOAD_WORD => load(at, 4),
                LOAD_BYTE_INDEXED => load(x + at, 1),
                LOAD_HALF_INDEXED => load(x + at, 2),
                LOAD_HEADER_LEN => {
                    let Some(byte) = load(at, 1) else { return false };
                    x = 4 * (byte & 0xf) as usize;
                    continue;
                }
                JUMP_EQUAL => {
                    pc += usize::from(if a == k { jt } else { jf });
                    continue;
                }
                JUMP_BITS => {
                    pc += usize::from(if a & k != 0 { jt } else { jf });
                    continue;
                }
                RETURN => return k != 0,
                other => panic!("an instruction {other:#x}"),
            };
            // The kernel refuses what is too short.
            let Some(loaded) = loaded else { return false };
            a = loaded;
        }
    }

    fn frame(from: &str, to: &str, gid_type: GidType, slot: u8) -> Vec<u8> {
        let gid = |text: &str| text.parse().expect("a GID");
        let path = Path { gid_type, ..Path::new(gid(from), gid(to)) };
        let headers = FrameHeaders {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            source_port: 0xc123,
            identification: 7,
            dont_fragment: true,
        };
        let mut packet = [0; 12];
        packet[5] = slot;
        let mut frame = Vec::new();
        write(&mut frame, &path, &headers, &packet, None).expect("fits");
        frame
    }

    fn of(gid: &str, slots: &[u8]) -> Vec<libc::sock_filter> {
        let gid = gid.parse().expect("a GID");
        program(&Accepted { gid, slots, ifindexes: &[2, 1], tag_may_stand: false })
    }

    #[test]
    fn only_packets_for_the_gid_and_slot_pass() {
        use GidType::{RoceV1, RoceV2};
        let (v4, v6) = ("10.0.0.2", "fd00::2");
        for own in [v4, v6] {
            let program = of(own, &[9]);
            let from = if own == v4 { "10.0.0.1" } else { "fd00::1" };
            for gid_type in [RoceV1, RoceV2] {
                let good = frame(from, own, gid_type, 9);
                assert!(accepts(&program, &good), "{own} {gid_type}");
                assert!(!accepts(&program, &frame(from, own, gid_type, 8)), "another slot");
                assert!(!accepts(&program, &frame(own, from, gid_type, 9)), "another GID");
                assert!(!accepts(&program, &good[..40]), "too short");
            }
            let other = if own == v4 { v6 } else { v4 };
            let from = if other == v4 { "10.0.0.1" } else { "fd00::1" };
            assert!(!accepts(&program, &frame(from, other, RoceV2, 9)), "another family");
        }
    }

    #[test]
    fn other_ports_fragments_and_options() {
        let program = of("10.0.0.2", &[9]);
        let good = frame("10.0.0.1", "10.0.0.2", GidType::RoceV2, 9);
        let changed = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            accepts(&program, &frame)
        };
        assert!(!changed(37, 0xb8), "another port");
        assert!(!changed(20, 0x20), "more fragments");
        assert!(!changed(21, 1), "a fragment");
        assert!(!changed(23, 6), "TCP");
        assert!(changed(20, 0), "without DF");
        // Options: the rest is four bytes later.
        let mut options = good.clone();
        options[14] = 0x46;
        options.splice(34..34, [1, 1, 1, 1]);
        assert!(accepts(&program, &options));
    }

    #[test]
    fn a_tag_may_stand_where_that_is_said() {
        use GidType::{RoceV1, RoceV2};
        for (from, own, gid_type) in [
            ("10.0.0.1", "10.0.0.2", RoceV1),
            ("10.0.0.1", "10.0.0.2", RoceV2),
            ("fd00::1", "fd00::2", RoceV2),
        ] {
            let gid = own.parse().expect("a GID");
            let accepted = Accepted { gid, slots: &[9], ifindexes: &[2], tag_may_stand: true };
            let (with, without) = (program(&accepted), of(own, &[9]));
            let plain = frame(from, own, gid_type, 9);
            let mut tagged = plain.clone();
            tagged.splice(12..12, [0x81, 0, 0, 7]);
            assert!(accepts(&with, &plain) && accepts(&with, &tagged), "{own} {gid_type}");
            assert!(accepts(&without, &plain) && !accepts(&without, &tagged), "{own} {gid_type}");
            let mut other = frame(from, own, gid_type, 8);
            other.splice(12..12, [0x81, 0, 0, 7]);
            assert!(!accepts(&with, &other), "another slot");
        }
    }

    #[test]
    fn several_slots_and_interfaces() {
        for gid_type in [GidType::RoceV1, GidType::RoceV2] {
            for (from, own) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
                let program = of(own, &[9, 0]);
                let pass = |slot, ifindex, packet_type| {
                    let frame = frame(from, own, gid_type, slot);
                    accepts_by(&program, &frame, ifindex, packet_type)
                };
                for (slot, ifindex, packet_type, expected) in [
                    (9, 2, 0, true),
                    (0, 2, 0, true),
                    (9, 1, 0, true),
                    (1, 2, 0, false),
                    (9, 3, 0, false),
                    // To a group; to another host; outgoing.
                    (9, 2, 2, true),
                    (9, 2, 3, false),
                    (9, 2, 4, true),
                ] {
                    assert_eq!(pass(slot, ifindex, packet_type), expected, "{slot} {ifindex}");
                }
            }
        }
    }
}
