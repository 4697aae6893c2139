//! Marked packets are answered by CNPs, and CNPs slow a queue pair down (DCQCN).

use rxe_core::{CongestionConfig, Counter};
use rxe_wire::hdr::Bth;

use crate::script::*;

const US: u64 = 1_000;
/// The ECN bits of a packet that met congestion.
const CE: u8 = 3;
/// A WRITE MIDDLE or LAST, and a READ response MIDDLE, in bytes from BTH on.
const DATA_LEN: u64 = (Bth::LEN + MTU) as u64;

/// 1 byte a microsecond after the first CNP, for ever.
fn slow() -> CongestionConfig {
    CongestionConfig {
        line_rate: 2_000_000,
        min_rate: 1_000_000,
        rate_timer_nanos: u64::MAX,
        byte_counter: u64::MAX,
        ..CongestionConfig::default()
    }
}

#[test]
fn a_marked_packet_gives_one_cnp_an_interval() {
    let mut s = Script::rts();
    s.recv(1, 64).recv(2, 64).recv(3, 64);
    s.path.traffic_class = CE;
    s.rx(&send_only(0, &[1])).tx([cnp()]);
    s.wait(49 * US).rx(&send_only(1, &[1])).quiet();
    s.wait(US).rx(&send_only(2, &[1]).a()).tx([cnp(), ack(2, 3)]);
    s.wait(49 * US).quiet();
    assert_eq!(s.count(Counter::np_ecn_marked_roce_packets), 3);
    assert_eq!(s.count(Counter::np_cnp_sent), 2);
}

#[test]
fn queue_pairs_count_for_themselves() {
    let mut s = Script::rts();
    s.recv(1, 64).rx(&send_only(0, &[1]).fecn()).tx([cnp()]);
    // For this queue pair, but not of its service.
    let mut bytes = s.request_bytes(&send_only(0, &[]));
    bytes[0] = 0x24;
    s.rx_bytes(&bytes);
    // For none.
    bytes[7] ^= 1;
    s.rx_bytes(&bytes);
    let own = s.host.shard.qp_counters(s.qpn()).unwrap();
    let expected = "sent_pkts 1\nrcvd_pkts 1\nnp_ecn_marked_roce_packets 1\nnp_cnp_sent 1\n\
        rdma_recvs 1\ndrop_wrong_service 1\n";
    assert_eq!(own.to_string(), expected);
    let all = s.host.device.counters();
    assert_eq!((all.get(Counter::rcvd_pkts), all.get(Counter::drop_no_such_qp)), (3, 1));
    assert_eq!(s.host.shard.qp_counters(rxe_wire::Qpn::new(0)), None);
}

#[test]
fn other_ecn_bits_are_no_mark() {
    let mut s = Script::rts();
    for (number, traffic_class) in [0, 1, 2, 0xfc].into_iter().enumerate() {
        s.recv(1, 64);
        s.path.traffic_class = traffic_class;
        s.rx(&send_only(number as i32, &[1])).quiet();
    }
    assert_eq!(s.count(Counter::np_ecn_marked_roce_packets), 0);
}

#[test]
fn fecn_is_a_mark_on_responses_too() {
    let mut s = Script::rts();
    s.read(1, 100).tx([read(0, far(0), 100)]);
    s.rx(&resp_only(0, 1, &bytes(100, 1)).fecn()).done([(1, Success)]).tx([cnp()]);
}

#[test]
fn the_interval_can_be_set() {
    let mut s = Script::with_congestion(CongestionConfig {
        cnp_interval_nanos: 0,
        ..CongestionConfig::default()
    });
    for psn in 0..3 {
        s.recv(1, 64).rx(&send_only(psn, &[1]).fecn()).tx([cnp()]);
    }
}

#[test]
fn marks_that_come_before_the_cnp_has_left_give_one() {
    let mut s = Script::with_congestion(CongestionConfig {
        cnp_interval_nanos: 0,
        ..CongestionConfig::default()
    });
    s.recv(1, 64).recv(2, 64);
    s.rx(&send_only(0, &[1]).fecn()).rx(&send_only(1, &[1]).fecn()).tx([cnp()]);
}

#[test]
fn a_cnp_has_its_own_traffic_class_and_says_it_is_not_ecn_capable() {
    let mut s = Script::with(|attr| attr.av.traffic_class = 2);
    s.recv(1, 64).rx(&send_only(0, &[1]).a().fecn());
    let classes: Vec<u8> =
        s.host.transmit().iter().map(|(transmit, _)| transmit.path.traffic_class).collect();
    assert_eq!(classes, [48 << 2, 2], "the acknowledgement has the queue pair's");
}

#[test]
fn a_marked_cnp_is_not_answered() {
    let mut s = Script::rts();
    s.path.traffic_class = CE;
    s.rx(&cnp().fecn()).quiet();
    assert_eq!(s.count(Counter::np_ecn_marked_roce_packets), 0);
    assert_eq!(s.count(Counter::rp_cnp_handled), 1);
}

#[test]
fn a_device_that_does_not_notify_counts_marks_only() {
    let config = CongestionConfig { notify: false, ..CongestionConfig::default() };
    let mut s = Script::with_congestion(config);
    s.recv(1, 64).rx(&send_only(0, &[1]).fecn()).quiet();
    assert_eq!(s.count(Counter::np_ecn_marked_roce_packets), 1);
}

#[test]
fn a_cnp_spaces_out_what_is_sent() {
    let mut s = Script::with_congestion(slow());
    s.rx(&cnp()).quiet();
    let len = 4 * MTU as u32;
    let mut data = s.mem(0, 4 * MTU);
    let parts: Vec<Vec<u8>> = (0..4).map(|_| data.drain(..MTU).collect()).collect();
    // The first one at once, the next when it is over: 16 bytes of RETH make it longer.
    s.write(1, len).tx([write_first(0, far(0), len, &parts[0])]);
    s.wait((DATA_LEN + 15) * US).quiet();
    s.wait(US).tx([write_middle(1, &parts[1])]);
    s.wait((DATA_LEN - 1) * US).quiet();
    s.wait(US).tx([write_middle(2, &parts[2])]);
    assert_eq!(s.host.shard.poll_timeout(), Some(s.host.now.plus_nanos(DATA_LEN * US)));
    s.wait(DATA_LEN * US).tx([write_last(3, &parts[3]).a()]);
    s.rx(&ack(3, 1)).done([(1, Success)]);
}

#[test]
fn a_late_wake_up_is_made_up_for_but_not_a_long_silence() {
    let mut s = Script::with_congestion(CongestionConfig {
        catch_up_nanos: (2 * DATA_LEN + 16) * US,
        ..slow()
    });
    s.rx(&cnp()).quiet();
    s.wait(100 * MS);
    s.write(1, 8 * MTU as u32);
    // What is due now, and two that could have left before.
    assert_eq!(s.sent().len(), 3);
    s.wait(4 * DATA_LEN * US);
    assert_eq!(s.sent().len(), 3, "of the four that were due, two were late by too much");
}

#[test]
fn read_responses_are_paced_and_acknowledgements_are_not() {
    let mut s = Script::with_congestion(slow());
    s.host.pattern(0, 1 << 16, 0x5a);
    let from = s.host.remote(0);
    let data = s.mem(0, 3 * MTU);
    s.rx(&cnp()).quiet();
    s.rx(&read(0, from, 3 * MTU as u32)).tx([resp_first(0, 1, &data[..MTU])]);
    s.wait((DATA_LEN + 3) * US).quiet();
    // 4 bytes of AETH.
    s.wait(US).tx([resp_middle(1, &data[MTU..2 * MTU])]);
    s.wait(DATA_LEN * US).tx([resp_last(2, 1, &data[2 * MTU..])]);
    s.recv(1, 64).rx(&send_only(3, &[1]).a()).tx([ack(3, 2)]);
    s.rx(&nak_seq(0, 0)).quiet();
}

#[test]
fn each_cnp_cuts_deeper_and_time_heals() {
    let config = CongestionConfig {
        line_rate: 8_000_000,
        min_rate: 1,
        byte_counter: u64::MAX,
        ..CongestionConfig::default()
    };
    let mut s = Script::with_congestion(config);
    // Half, a quarter, an eighth of 8 bytes a microsecond, since alpha is 1 all the time.
    s.rx(&cnp()).rx(&cnp()).rx(&cnp());
    s.write(1, 3 * MTU as u32);
    assert_eq!(s.sent().len(), 1);
    let due = s.host.shard.poll_timeout().unwrap().nanos_since(s.host.now);
    assert_eq!(due, (DATA_LEN + 16) * US);
    // A second later the average of marks is nothing, and the rate that of the line.
    s.wait(due);
    assert_eq!(s.sent().len(), 1);
    s.wait(1_000 * MS);
    s.sent();
    s.rx(&ack(2, 1)).done([(1, Success)]);
    s.write(2, 10 * MTU as u32);
    assert_eq!(s.sent().len(), 10, "at once");
    assert_eq!(s.count(Counter::rp_cnp_handled), 3);
}

#[test]
fn a_cnp_that_means_nothing_is_counted() {
    let config = CongestionConfig { react: false, ..CongestionConfig::default() };
    let mut s = Script::with_congestion(config);
    s.rx(&cnp());
    s.write(1, 10 * MTU as u32);
    assert_eq!(s.sent().len(), 10);
    assert_eq!(s.count(Counter::rp_cnp_ignored), 1);
}

#[test]
fn r57_a_cnp_from_a_stranger_slows_nobody() {
    let mut s = Script::with_congestion(slow());
    let path = s.path;
    s.path.source = gid_table::Gid::from_ip([10, 0, 0, 77].into());
    s.rx(&cnp()).quiet();
    assert_eq!(s.count(Counter::drop_wrong_address), 1);
    s.path = path;
    s.write(1, 10 * MTU as u32);
    assert_eq!(s.sent().len(), 10);
}

#[test]
fn the_pace_ends_with_the_connection() {
    let mut s = Script::with_congestion(slow());
    s.rx(&cnp());
    s.write(1, 10 * MTU as u32);
    assert_eq!(s.sent().len(), 1);
    let reset = rxe_core::qp::QpAttr { state: rxe_core::qp::QpState::Reset, ..s.attr };
    s.host.modify(reset, rxe_core::qp::QpAttrMask::STATE);
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
    s.write(2, 10 * MTU as u32);
    assert_eq!(s.sent().len(), 10);
}

#[test]
fn a_port_that_goes_down_is_counted() {
    let s = Script::rts();
    s.host.device.raise(rxe_core::AsyncEvent::PortErr(1));
    s.host.device.raise(rxe_core::AsyncEvent::PortActive(1));
    assert_eq!(s.host.device.counter(Counter::link_downed), 1);
}
