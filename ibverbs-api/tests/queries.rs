//! What a device tells of itself.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use common::*;
use ibverbs_api::*;

#[test]
fn the_loopback_interface_is_a_device() {
    let names: Vec<_> = devices().unwrap().iter().map(|d| d.name().to_owned()).collect();
    assert!(names.contains(&"rxe_lo".to_owned()), "{names:?}");
    let device = Device::by_name("rxe_lo").unwrap();
    assert_eq!(device.interface().name, "lo");
    assert_ne!(device.guid(), 0);
}

#[test]
fn query_device() {
    let mut options = options();
    options.shards = 3;
    options.limits.max_mr = 77;
    let context = open_with(options);
    let attr = context.query_device();
    assert_eq!(attr.fw_ver, env!("CARGO_PKG_VERSION"));
    assert_eq!(attr.node_guid, context.device().guid());
    assert_eq!(attr.sys_image_guid, attr.node_guid);
    assert_eq!(attr.phys_port_cnt, 1);
    assert_eq!(attr.max_pkeys, 1);
    assert_eq!(attr.num_comp_vectors, 3);
    assert_eq!(attr.limits.max_mr, 77);
    assert!(attr.max_mr_size >= 1 << 40);
    assert_eq!(attr.vendor_id, 0xff_ffff, "Linux's own says so too");
    assert_eq!(attr.capabilities.bits(), 0x0132_3880);
    assert_eq!(attr.atomic_cap as u32, 1, "IBV_ATOMIC_HCA");
    assert!(attr.on_demand.rc.is_all() && !attr.on_demand.ud.contains(OnDemandOps::READ));
    let before = Context::clock_nanos();
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert!(Context::clock_nanos() - before >= attr.clock_khz, "ticks of a millisecond");
}

#[test]
fn query_port() {
    let context = open();
    let attr = context.query_port(1).unwrap();
    assert_eq!(attr.state, PortState::Active);
    assert_eq!(attr.max_mtu, Mtu::M4096);
    assert_eq!(attr.active_mtu, Mtu::M4096, "the MTU of lo is 65536");
    assert_eq!(attr.max_msg_sz, 1 << 31, "R53");
    assert_eq!(attr.pkey_tbl_len, 1);
    assert_eq!(attr.lid, 0);
    assert_eq!(attr.link_layer, LinkLayer::Ethernet);
    assert!(attr.gid_tbl_len >= 16);
    assert_eq!(attr.capabilities.bits(), 0x0401_0000);
    assert_eq!((attr.phys_state, attr.grh_required), (PhysState::LinkUp, true));
    let rate = (attr.active_width, attr.active_speed);
    assert_eq!(rate, (LinkWidth::X1, LinkSpeed::Sdr), "lo has no speed");
    for port in [0, 2, 255] {
        let error = context.query_port(port).unwrap_err();
        assert_eq!(error, QueryError::Port { port, ports: 1 });
        assert_eq!(error.errno(), 22);
    }
}

#[test]
fn query_gid_in_its_three_forms() {
    let context = open();
    let length = context.query_port(1).unwrap().gid_tbl_len;
    let table = context.query_gid_table().unwrap();
    let (v4, v6) = (gid(&context, Family::V4), gid(&context, Family::V6));
    assert_eq!(v4.gid.to_string(), "::ffff:127.0.0.1");
    assert_eq!(v6.gid.to_string(), "::1");
    let mut found = Vec::new();
    for index in 0..length {
        match context.query_gid_ex(1, index) {
            Ok(entry) => {
                assert_eq!(entry.gid_index, index);
                assert_eq!(entry.port_num, 1);
                assert_eq!(entry.gid_type, GidType::RoceV2, "a UDP link sends nothing else");
                assert_eq!(entry.ifindex, context.device().interface().ifindex);
                assert_eq!(context.query_gid(1, index).unwrap(), entry.gid);
                found.push(entry);
            }
            Err(error) => {
                assert_eq!(error.errno(), 61, "ENODATA: {error}");
                assert_eq!(context.query_gid(1, index).unwrap(), Gid::ZERO);
            }
        }
    }
    assert_eq!(found, table);
    for index in [length, u32::MAX] {
        assert_eq!(context.query_gid_ex(1, index).unwrap_err().errno(), 22);
        assert_eq!(context.query_gid(1, index).unwrap_err().errno(), 22);
    }
    assert_eq!(context.query_gid_ex(2, 0).unwrap_err().errno(), 22);
}

#[test]
fn query_pkey() {
    let context = open();
    assert_eq!(context.query_pkey(1, 0).unwrap().get(), 0xffff);
    assert_eq!(context.query_pkey(1, 1).unwrap_err(), QueryError::PKeyIndex { index: 1 });
    assert!(context.query_pkey(0, 0).is_err());
}

#[test]
fn r53_query_qp_tells_the_state_and_what_was_set() {
    let setup = Setup::default();
    let context = open();
    let end = End::new(&context, &setup, None);
    let attr = end.qp.query().unwrap();
    assert_eq!((attr.state, attr.cur_state), (QpState::Reset, QpState::Reset));
    let peer = Qpn::new(0x0c_0ffe);
    let wanted = ConnectAttr {
        max_rd_atomic: 5,
        sq_psn: Psn::new(0x12_3456),
        rq_psn: Psn::new(0x65_4321),
        ..attr_to(&setup, &context, gid(&context, Family::V4).gid, peer)
    };
    end.qp.connect(&wanted).unwrap();
    let attr = end.qp.query().unwrap();
    assert_eq!((attr.state, attr.cur_state), (QpState::Rts, QpState::Rts));
    assert_eq!(end.qp.state(), QpState::Rts);
    assert_eq!(attr.dest_qpn, peer);
    assert_eq!((attr.sq_psn, attr.rq_psn), (wanted.sq_psn, wanted.rq_psn));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (5, 5));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (18, 7, 7));
    assert_eq!((attr.path_mtu, attr.min_rnr_timer), (Mtu::M1024, 1));
    assert_eq!(
        (attr.av, attr.access, attr.port_num),
        (wanted.av, ALL | AccessFlags::FLUSH_GLOBAL, 1)
    );
    let to_error = QpAttr { state: QpState::Err, ..attr };
    end.qp.modify(&to_error, QpAttrMask::STATE).unwrap();
    let attr = end.qp.query().unwrap();
    assert_eq!((attr.state, attr.cur_state), (QpState::Err, QpState::Err));
}

#[test]
fn numbers_of_queue_pairs_differ_and_name_their_slot() {
    let (one, two) = (open(), open());
    let setup = Setup::default();
    let ends: Vec<_> =
        (0..20).map(|i| End::new(if i % 2 == 0 { &one } else { &two }, &setup, None)).collect();
    let mut qpns: Vec<_> = ends.iter().map(|end| end.qp.qpn()).collect();
    assert_ne!(qpns[0].slot(), qpns[1].slot());
    assert!(qpns.iter().all(|qpn| !matches!(qpn.slot(), 0 | 255)));
    qpns.sort_unstable_by_key(|qpn| qpn.get());
    qpns.dedup();
    assert_eq!(qpns.len(), 20);
}

#[test]
fn counters_of_a_device_and_of_a_queue_pair() {
    let (one, two) = pair(&Setup::default());
    let (from, to) = (one.register(4096), two.register(4096));
    let write = SendOp::Write { remote: to.remote_addr(0), imm: None };
    one.post(1, write, &[from.sge(0..4096)]);
    one.done();
    let (own, all) = (one.qp.counters().unwrap(), one.context.counters());
    // A packet may be sent again where threads are late, and the last answer be still on its way.
    assert!(own.get(Counter::sent_pkts) >= 4, "{own}");
    assert!(own.get(Counter::rcvd_pkts) >= 1, "{own}");
    assert_eq!(own.get(Counter::rdma_sends), 1);
    assert_eq!(all.get(Counter::rdma_sends), 1);
    assert_eq!(two.qp.counters().unwrap().get(Counter::rdma_recvs), 1);
    // One that does nothing counts nothing, and shares the counters of the device.
    let idle = End::new(&one.context, &Setup::default(), None);
    assert_eq!(idle.qp.counters().unwrap(), CounterValues::default());
}
