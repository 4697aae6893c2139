//! The structs as bytes, and against a C compiler.

use std::io::Write;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::*;

#[test]
fn a_send_element_has_its_fields_in_place() {
    let mut wqe = RxeSendWqe::default();
    wqe.wr.wr_id = 0x0102_0304_0506_0708;
    wqe.wr.set_imm_data(0x1122_3344);
    wqe.wr.wr = RxeSendWrUnion::from_rdma(RdmaArm { remote_addr: 7, rkey: 9, padding: 0 });
    wqe.av.dgid_addr = RxeSockaddr::from_ip([10, 0, 0, 1].into());
    wqe.dma.num_sge = 2;
    let bytes = wqe.as_bytes();
    assert_eq!(bytes[..8], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(bytes[20..24], [0x11, 0x22, 0x33, 0x44]);
    assert_eq!(bytes[24..32], 7_u64.to_ne_bytes());
    assert_eq!(bytes[32..36], 9_u32.to_ne_bytes());
    assert_eq!(bytes[56 + 60..56 + 62], AF_INET.to_ne_bytes());
    assert_eq!(bytes[56 + 64..56 + 68], [10, 0, 0, 1]);
    assert_eq!(bytes[184 + 12..184 + 16], 2_u32.to_ne_bytes());
    assert_eq!(RxeSendWqe::read_from_bytes(bytes), Ok(wqe));
}

#[test]
fn each_arm_of_the_request_is_read_as_written() {
    let rdma = RdmaArm { remote_addr: u64::MAX, rkey: 1, padding: 0 };
    assert_eq!(RxeSendWrUnion::from_rdma(rdma).as_rdma(), rdma);
    let atomic = AtomicArm { remote_addr: 1, compare_add: 2, swap: 3, rkey: 4, padding: 0 };
    assert_eq!(RxeSendWrUnion::from_atomic(atomic).as_atomic(), atomic);
    let ud = UdArm { remote_qpn: 1, remote_qkey: 2, pkey_index: 3, padding: 0 };
    assert_eq!(RxeSendWrUnion::from_ud(ud).as_ud(), ud);
    let reg = RegArm { mr: 1, key: 2, access: -3 };
    assert_eq!(RxeSendWrUnion::from_reg(reg).as_reg(), reg);
    // The arms overlap: key and access of `reg` lie where `rdma` has key and padding.
    let overlaid = RxeSendWrUnion::from_reg(reg).as_rdma();
    assert_eq!((overlaid.remote_addr, overlaid.rkey), (1, 2));
}

#[test]
fn the_extra_word_is_one_of_two() {
    let mut wr = RxeSendWr::default();
    wr.set_imm_data(0x0102_0304);
    assert_eq!((wr.ex, wr.imm_data()), ([1, 2, 3, 4], 0x0102_0304));
    wr.set_invalidate_rkey(0x0102_0304);
    assert_eq!((wr.ex, wr.invalidate_rkey()), (0x0102_0304_u32.to_ne_bytes(), 0x0102_0304));
}

#[test]
fn socket_addresses_know_their_family() {
    let v6: Ipv6Addr = "fd00:77::1".parse().unwrap();
    for ip in [IpAddr::from([10, 77, 0, 1]), v6.into()] {
        assert_eq!(RxeSockaddr::from_ip(ip).ip(), Some(ip));
    }
    assert_eq!(RxeSockaddr::from_ip(v6.into()).as_in6().address, v6.octets());
    assert_eq!(RxeSockaddr::from_ip(v6.into()).as_sockaddr().family, AF_INET6);
    assert_eq!(RxeSockaddr { bytes: [0xff; 28] }.ip(), None);
}

#[test]
fn entries_and_inline_data_are_bounded_by_what_follows() {
    let sge = RxeSge { addr: 0x1000, length: 64, lkey: 7 };
    let following = [RxeSge::default(), sge];
    let bytes = following.as_bytes();
    assert_eq!(RxeDmaInfo::sge(1, bytes), Ok(sge));
    assert_eq!(RxeDmaInfo::sge(2, bytes), Err(DmaDataTooShort { needed: 48, have: 32 }));
    assert!(RxeDmaInfo::sge(u32::MAX, bytes).is_err());
    let dma = |length| RxeDmaInfo { length, ..RxeDmaInfo::default() };
    assert_eq!(dma(3).inline_data(&[1, 2, 3, 4]), Ok(&[1, 2, 3][..]));
    assert!(dma(u32::MAX).inline_data(&[1]).is_err());
}

#[test]
fn gid_entries_say_their_kind_and_interface() {
    let entry = IbUverbsGidEntry { gid_type: 2, netdev_ifindex: 3, ..Default::default() };
    assert_eq!((entry.known_type(), entry.ifindex()), (Some(UverbsGidType::RoceV2), Some(3)));
    let entry = IbUverbsGidEntry { gid_type: 3, netdev_ifindex: -19, ..entry };
    assert_eq!((entry.known_type(), entry.ifindex()), (None, None));
}

#[test]
fn a_gid_is_two_halves() {
    let gid = RxeGid { raw: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8] };
    assert_eq!(gid.subnet_prefix(), 0xfe80_0000_0000_0000);
    assert_eq!(gid.interface_id(), 0x0102_0304_0506_0708);
}

proptest! {
    #[test]
    fn any_bytes_are_a_send_element(
        bytes in proptest::collection::vec(any::<u8>(), size_of::<RxeSendWqe>()),
    ) {
        let wqe = RxeSendWqe::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(wqe.as_bytes(), &bytes[..]);
        let arms = wqe.wr.wr;
        prop_assert_eq!(RxeSendWrUnion::from_atomic(arms.as_atomic()), arms);
        let address = wqe.av.sgid_addr;
        prop_assert_eq!(RxeSockaddr::from_in6(address.as_in6()), address);
        let _ = (arms.as_rdma(), arms.as_ud(), arms.as_reg(), address.ip(), address.as_in());
    }
}

/// Definitions in C, written from the layout, and a program part that prints what a compiler makes
/// of them: one number per line, in the order of [`our_numbers`].
const C_STRUCTS: &str = r#"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <netinet/in.h>
#include <sys/socket.h>
union gid { uint8_t raw[16]; struct { uint64_t prefix, id; } global; };
struct route { union gid dgid; uint32_t flow; uint8_t index, hops, class; };
union address { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; };
struct av { uint8_t port, network; struct route grh; union address sgid, dgid; };
struct wr {
    uint64_t id; uint32_t sges, opcode, flags;
    union { uint32_t imm, rkey; } ex;
    union {
        struct { uint64_t addr; uint32_t rkey; } rdma;
        struct { uint64_t addr, compare, swap; uint32_t rkey; } atomic;
        struct { uint32_t qpn, qkey; uint16_t pkey; } ud;
        struct { void *mr; uint32_t key; int access; } reg;
    } wr;
};
struct sge { uint64_t addr; uint32_t length, lkey; };
struct dma {
    uint32_t length, resid, cur, count, offset;
    union { uint8_t data[0]; struct sge sge[0]; };
};
struct wqe {
    struct wr wr; struct av av; uint32_t status, state; uint64_t iova;
    uint32_t mask, first, last, acked, ssn, atomic; struct dma dma;
};
struct recv { uint64_t id; uint32_t sges, padding; struct dma dma; };
struct entry { uint8_t gid[16]; uint32_t index, port, type; int ifindex; };
int main(void) {
    size_t numbers[] = {
        sizeof(struct route), offsetof(struct route, class),
        sizeof(struct av), offsetof(struct av, grh), offsetof(struct av, sgid),
        offsetof(struct av, dgid),
        sizeof(struct wr), offsetof(struct wr, ex), offsetof(struct wr, wr),
        sizeof(struct dma), offsetof(struct dma, sge), offsetof(struct dma, offset),
        sizeof(struct wqe), offsetof(struct wqe, av), offsetof(struct wqe, status),
        offsetof(struct wqe, iova), offsetof(struct wqe, atomic), offsetof(struct wqe, dma),
        sizeof(struct recv), offsetof(struct recv, dma),
        sizeof(struct entry), offsetof(struct entry, ifindex), _Alignof(struct entry),
        sizeof(union address), _Alignof(union address), _Alignof(struct av),
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        printf("%zu\n", numbers[i]);
}
"#;

fn our_numbers() -> Vec<usize> {
    vec![
        size_of::<RxeGlobalRoute>(),
        offset_of!(RxeGlobalRoute, traffic_class),
        size_of::<RxeAv>(),
        offset_of!(RxeAv, grh),
        offset_of!(RxeAv, sgid_addr),
        offset_of!(RxeAv, dgid_addr),
        size_of::<RxeSendWr>(),
        offset_of!(RxeSendWr, ex),
        offset_of!(RxeSendWr, wr),
        size_of::<RxeDmaInfo>(),
        size_of::<RxeDmaInfo>(),
        offset_of!(RxeDmaInfo, sge_offset),
        size_of::<RxeSendWqe>(),
        offset_of!(RxeSendWqe, av),
        offset_of!(RxeSendWqe, status),
        offset_of!(RxeSendWqe, iova),
        offset_of!(RxeSendWqe, has_rd_atomic),
        offset_of!(RxeSendWqe, dma),
        size_of::<RxeRecvWqe>(),
        offset_of!(RxeRecvWqe, dma),
        size_of::<IbUverbsGidEntry>(),
        offset_of!(IbUverbsGidEntry, netdev_ifindex),
        align_of::<IbUverbsGidEntry>(),
        size_of::<RxeSockaddr>(),
        align_of::<RxeSockaddr>(),
        align_of::<RxeAv>(),
    ]
}

/// The layout asserted here is that of x86-64; so the comparison is made there.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_c_compiler_lays_the_structs_out_the_same() {
    let program = std::env::temp_dir().join(format!("rxe-wire-layout-{}", std::process::id()));
    let compiler = Command::new("gcc")
        .args(["-x", "c", "-", "-o"])
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut compiler) = compiler else {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "gcc is missing");
        // Not by a macro: what a test prints by one is seen only when it fails.
        let _ = std::io::stderr().write_all(b"left out: gcc is missing\n");
        return;
    };
    compiler.stdin.take().unwrap().write_all(C_STRUCTS.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success(), "the C program does not compile");
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(our_numbers(), theirs);
}
