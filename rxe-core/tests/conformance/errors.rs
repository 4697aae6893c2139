//! Every error of modify_qp: what it says, and its errno.

use gid_table::{Gid, GidType, WantedGid};
use rxe_core::ModifyQpError;
use rxe_core::qp::{Mtu, QpAttr, QpAttrMask, QpState};
use rxe_wire::Qpn;

use crate::common::{init_mask, rtr_mask, rts_mask};
use crate::script::Script;

/// The error of a call that must fail, and must have changed nothing.
fn refused(s: &mut Script, qpn: Qpn, attr: &QpAttr, mask: QpAttrMask) -> ModifyQpError {
    let before = s.host.shard.query_qp(s.qpn());
    let error = s.host.shard.modify_qp(s.host.now, qpn, attr, mask).unwrap_err();
    assert_eq!(s.host.shard.query_qp(s.qpn()), before, "{error}");
    error
}

/// A script in INIT, with a third GID that the host does not own and an IPv6 one that it does.
fn init() -> Script {
    let mut s = Script::reset(|_| {});
    s.enter_init();
    {
        let mut gids = s.host.device.port(1).unwrap().gids.write();
        let foreign = Gid::from_ip([0xfe80, 0, 0, 0, 0, 0, 0, 1].into());
        let owned = Gid::from_ip([0xfd00, 0, 0, 0, 0, 0, 0, 1].into());
        for (gid, owned) in [(foreign, false), (owned, true)] {
            gids.add(WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned }).unwrap();
        }
    }
    s
}

#[test]
fn every_error_says_what_is_wrong_and_what_would_be_right() {
    let mut lines = Vec::new();
    let mut note = |case: &str, error: ModifyQpError| {
        lines.push(format!("{case}\n  errno {}: {error}", error.errno()));
    };
    let mut s = Script::reset(|_| {});
    let qpn = s.qpn();
    let to = |s: &Script, state| QpAttr { state, ..s.attr };

    let attr = to(&s, QpState::Init);
    note("no such QP", refused(&mut s, Qpn::new(0x01_0000), &attr, init_mask()));
    let attr = to(&s, QpState::Rts);
    note("RESET to RTS", refused(&mut s, qpn, &attr, rts_mask()));
    let attr = to(&s, QpState::Init);
    let mask = QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::AV;
    note("RESET to INIT, masks", refused(&mut s, qpn, &attr, mask));
    let attr = QpAttr { port_num: 2, ..attr };
    note("port 2", refused(&mut s, qpn, &attr, init_mask()));
    let attr = QpAttr { port_num: 1, pkey_index: 1, ..attr };
    note("pkey index 1", refused(&mut s, qpn, &attr, init_mask()));

    let mut s = init();
    let qpn = s.qpn();
    let rtr = to(&s, QpState::Rtr);
    let mask = rtr_mask() | QpAttrMask::CUR_STATE;
    let attr = QpAttr { cur_state: QpState::Rts, ..rtr };
    note("current state", refused(&mut s, qpn, &attr, mask));
    let attr = QpAttr { min_rnr_timer: 32, ..rtr };
    note("min_rnr_timer 32", refused(&mut s, qpn, &attr, rtr_mask()));
    let attr = QpAttr { max_dest_rd_atomic: 129, ..rtr };
    note("max_dest_rd_atomic 129", refused(&mut s, qpn, &attr, rtr_mask()));
    let mut attr = rtr;
    attr.av.flow_label = 1 << 20;
    note("flow label", refused(&mut s, qpn, &attr, rtr_mask()));
    let mut attr = rtr;
    attr.av.port_num = 0;
    note("port 0 in the address vector", refused(&mut s, qpn, &attr, rtr_mask()));
    let mut attr = rtr;
    attr.av.dgid = Gid::ZERO;
    note("no destination", refused(&mut s, qpn, &attr, rtr_mask()));
    let mut attr = rtr;
    attr.av.sgid_index = 9;
    note("empty GID index", refused(&mut s, qpn, &attr, rtr_mask()));
    attr.av.sgid_index = 99;
    note("GID index beyond the table", refused(&mut s, qpn, &attr, rtr_mask()));
    attr.av.sgid_index = 1;
    note("GID not owned", refused(&mut s, qpn, &attr, rtr_mask()));
    attr.av.sgid_index = 2;
    note("IPv6 to IPv4", refused(&mut s, qpn, &attr, rtr_mask()));
    let mut attr = rtr;
    attr.av.dgid = Gid::from_ip([0xfd00, 0, 0, 0, 0, 0, 0, 2].into());
    note("IPv4 to IPv6", refused(&mut s, qpn, &attr, rtr_mask()));
    s.host.device.port(1).unwrap().set_active_mtu(Mtu::M1024);
    let attr = QpAttr { path_mtu: Mtu::M4096, ..rtr };
    note("path MTU", refused(&mut s, qpn, &attr, rtr_mask()));

    s.enter_rtr();
    for (what, attr) in [
        ("timeout 32", QpAttr { timeout: 32, ..to(&s, QpState::Rts) }),
        ("retry_cnt 8", QpAttr { retry_cnt: 8, ..to(&s, QpState::Rts) }),
        ("rnr_retry 8", QpAttr { rnr_retry: 8, ..to(&s, QpState::Rts) }),
        ("max_rd_atomic 129", QpAttr { max_rd_atomic: 129, ..to(&s, QpState::Rts) }),
    ] {
        note(what, refused(&mut s, qpn, &attr, rts_mask()));
    }
    s.enter_rts();
    for (what, state) in [("RTS to INIT", QpState::Init), ("RTS to SQE", QpState::Sqe)] {
        let attr = to(&s, state);
        note(what, refused(&mut s, qpn, &attr, QpAttrMask::STATE));
    }
    let attr = to(&s, QpState::Err);
    let mask = QpAttrMask::STATE | QpAttrMask::TIMEOUT;
    note("RTS to ERR, masks", refused(&mut s, qpn, &attr, mask));
    s.host.modify(attr, QpAttrMask::STATE);
    let attr = to(&s, QpState::Rts);
    note("ERR to RTS", refused(&mut s, qpn, &attr, QpAttrMask::STATE));
    // RoCE addresses in the messages are the same everywhere; numbers of QPs are seeded.
    insta::assert_snapshot!(lines.join("\n"));
}
