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

/// Where headers are in a frame: the kernel takes VLAN tags out before.
const ETHER_TYPE: u32 = 12;
const L3: u32 = 14;
/// Behind a header of 40 bytes, GRH or IPv6.
const L4: u32 = L3 + 40;
const UDP_LEN: u32 = 8;
/// The slot: the top byte of the destination QPN in BTH.
const SLOT: u32 = 5;

/// A part of the program: passed, or the frame is refused.
enum Check {
    Equal {
        load: u16,
        at: u32,
        value: u32,
    },
    /// None of these bits is set.
    Clear {
        load: u16,
        at: u32,
        bits: u32,
    },
    HeaderLen {
        at: u32,
    },
}

/// The program that accepts the packets for a slot of a GID, of RoCE v1 and v2, and nothing else.
pub(super) fn program(gid: Gid, slot: u8) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for (ether_type, checks) in branches(gid, slot) {
        let body = compile(&checks);
        program.push(instruction(LOAD_HALF, ETHER_TYPE));
        // Over the branch, where it is another EtherType. A branch is short.
        let over = u8::try_from(body.len()).unwrap_or(u8::MAX);
        program.push(libc::sock_filter { code: JUMP_EQUAL, jt: 0, jf: over, k: ether_type });
        program.extend(body);
    }
    program.push(instruction(RETURN, 0));
    program
}

/// What is checked of the frames of each EtherType.
fn branches(gid: Gid, slot: u8) -> Vec<(u32, Vec<Check>)> {
    let slot_at = |load, at| Check::Equal { load, at, value: slot.into() };
    let mut v1 = address(L3 + 24, &gid.raw());
    v1.push(slot_at(LOAD_BYTE, L4 + SLOT));
    let v2 = match gid.to_ip() {
        IpAddr::V4(v4) => {
            let mut checks = vec![
                Check::Equal { load: LOAD_BYTE, at: L3 + 9, value: UDP },
                // No fragment: neither more to come nor an offset.
                Check::Clear { load: LOAD_HALF, at: L3 + 6, bits: 0x3fff },
            ];
            checks.extend(address(L3 + 16, &v4.octets()));
            checks.push(Check::HeaderLen { at: L3 });
            let port = u32::from(ROCE_PORT);
            checks.push(Check::Equal { load: LOAD_HALF_INDEXED, at: L3 + 2, value: port });
            checks.push(slot_at(LOAD_BYTE_INDEXED, L3 + UDP_LEN + SLOT));
            (IPV4, checks)
        }
        IpAddr::V6(_) => {
            let mut checks = vec![Check::Equal { load: LOAD_BYTE, at: L3 + 6, value: UDP }];
            checks.extend(address(L3 + 24, &gid.raw()));
            let port = u32::from(ROCE_PORT);
            checks.push(Check::Equal { load: LOAD_HALF, at: L4 + 2, value: port });
            checks.push(slot_at(LOAD_BYTE, L4 + UDP_LEN + SLOT));
            (IPV6, checks)
        }
    };
    vec![(ROCE_V1, v1), v2]
}

fn address(at: u32, bytes: &[u8]) -> Vec<Check> {
    let words = bytes.as_chunks::<4>().0.iter().zip((at..).step_by(4));
    words
        .map(|(word, at)| Check::Equal { load: LOAD_WORD, at, value: u32::from_be_bytes(*word) })
        .collect()
}

/// The instructions of a branch: whatever fails goes to its second last one, which refuses; the
/// last one accepts the whole frame.
fn compile(checks: &[Check]) -> Vec<libc::sock_filter> {
    let lens = checks.iter().map(|check| match check {
        Check::HeaderLen { .. } => 1,
        Check::Equal { .. } | Check::Clear { .. } => 2,
    });
    let accept = lens.sum::<usize>();
    let mut program = Vec::with_capacity(accept + 2);
    for check in checks {
        let (load, at, jump, value) = match *check {
            Check::Equal { load, at, value } => (load, at, JUMP_EQUAL, value),
            Check::Clear { load, at, bits } => (load, at, JUMP_BITS, bits),
            Check::HeaderLen { at } => {
                program.push(instruction(LOAD_HEADER_LEN, at));
                continue;
            }
        };
        program.push(instruction(load, at));
        // To the refusal, behind the acceptance; a branch is short.
        let refuse = u8::try_from(accept - program.len()).unwrap_or(u8::MAX);
        let (jt, jf) = if jump == JUMP_BITS { (refuse, 0) } else { (0, refuse) };
        program.push(libc::sock_filter { code: jump, jt, jf, k: value });
    }
    program.push(instruction(RETURN, u32::MAX));
    program.push(instruction(RETURN, 0));
    program
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

    /// Runs a program on a frame as the kernel does; whether it accepts.
    fn accepts(program: &[libc::sock_filter], frame: &[u8]) -> bool {
        let load = |at: usize, len: usize| {
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

    #[test]
    fn only_packets_for_the_gid_and_slot_pass() {
        use GidType::{RoceV1, RoceV2};
        let (v4, v6) = ("10.0.0.2", "fd00::2");
        for own in [v4, v6] {
            let program = program(own.parse().expect("a GID"), 9);
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
        let program = program("10.0.0.2".parse().expect("a GID"), 9);
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
}
