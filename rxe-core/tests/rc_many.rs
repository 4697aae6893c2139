//! Ten thousand queue pairs in one shard: each connects, and moves data.

#![allow(clippy::unwrap_used)] // a test may fail

mod common;

use std::sync::Arc;

use common::Host;
use rxe_core::QueuePair;
use rxe_core::qp::{AddressVector, Mtu, QpAttr, QpCaps, QpInit, QpType, RC_TO_RTS};
use rxe_core::wc::WcStatus;
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr};

const MANY: usize = 10_000;
/// Bytes that each queue pair writes, to a place of its own.
const LEN: usize = 8;
/// Queue pairs whose completions fit the queue at once.
const AT_ONCE: usize = 4_000;

fn create(host: &mut Host) -> Vec<Arc<QueuePair>> {
    let init = || QpInit {
        caps: QpCaps { max_send_wr: 4, max_recv_wr: 4, ..QpCaps::default() },
        ..QpInit::new(QpType::Rc, host.pd, &host.cq)
    };
    let inits: Vec<_> = (0..MANY).map(|_| init()).collect();
    inits.into_iter().map(|init| host.shard.create_qp(init).unwrap()).collect()
}

fn connect(host: &mut Host, peer: &Host, own: &[Arc<QueuePair>], other: &[Arc<QueuePair>]) {
    for (qp, peer_qp) in own.iter().zip(other) {
        let attr = QpAttr {
            dest_qpn: peer_qp.qpn(),
            av: AddressVector::new(peer.gid, 0),
            ..host.attr(peer, 1, Mtu::M256)
        };
        // Both directions count from the same PSN.
        let attr = QpAttr { sq_psn: attr.rq_psn, ..attr };
        for (state, mask) in RC_TO_RTS {
            let attr = QpAttr { state, ..attr };
            host.shard.modify_qp(host.now, qp.qpn(), &attr, mask).unwrap();
        }
    }
}

#[test]
fn ten_thousand_queue_pairs_connect_and_each_moves_data() {
    let (mut one, mut two) = (Host::new(1), Host::new(2));
    let (near, far) = (create(&mut one), create(&mut two));
    connect(&mut one, &two, &near, &far);
    connect(&mut two, &one, &far, &near);
    let bytes_of = |number: usize| (number as u64 ^ 0xa5a5_5a5a_1234_0000).to_le_bytes();
    for first in (0..MANY).step_by(AT_ONCE) {
        let numbers = first..MANY.min(first + AT_ONCE);
        for number in numbers.clone() {
            let op = SendOp::Write { remote: two.remote(number * LEN), imm: None };
            let bytes = bytes_of(number);
            let (flags, data) = (SendFlags::SIGNALED, SendData::Inline(&bytes));
            near[number]
                .post_send(&SendWr { wr_id: number as u64, op, flags, data, srq_number: None })
                .unwrap();
            one.shard.kick(one.now, near[number].qpn());
        }
        common::exchange(&mut one, &mut two);
        let mut done = one.completions();
        done.sort_by_key(|wc| wc.wr_id);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
        assert!(done.iter().map(|wc| wc.wr_id as usize).eq(numbers));
    }
    for number in 0..MANY {
        assert_eq!(two.bytes(number * LEN, LEN), bytes_of(number), "of queue pair {number}");
    }
}
