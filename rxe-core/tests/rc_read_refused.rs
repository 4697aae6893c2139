//! A READ that is refused while an old one is asked for again: the peer hears of the refusal.

mod common;

use common::{exchange, pair};
use rxe_core::qp::{Mtu, QpState};
use rxe_core::wc::WcStatus;
use rxe_core::wq::SendOp;

/// The region goes between a READ and its duplicate, which waits in front of the next READ.
#[test]
fn r24_a_duplicate_whose_memory_is_gone_does_not_hide_the_refusal_behind_it() {
    let (mut a, mut b) = pair(Mtu::M256);
    let read = SendOp::Read { remote: b.remote(0) };
    a.post(1, read, 4096, 1000);
    let first = a.transmit();
    first.iter().for_each(|packet| b.receive(packet));
    exchange(&mut a, &mut b);
    assert_eq!(a.completions()[0].status, WcStatus::Success);

    b.device.memory().deregister(b.keys).unwrap();
    a.post(2, read, 4096, 1000);
    let second = a.transmit();
    first.iter().chain(&second).for_each(|packet| b.receive(packet));
    exchange(&mut a, &mut b);
    let [refused] = a.completions()[..] else { panic!("the refusal did not come") };
    assert_eq!((refused.wr_id, refused.status), (2, WcStatus::RemAccessErr));
}

/// A copy that the network made breaks nothing.
#[test]
fn r24_a_duplicate_whose_memory_is_gone_breaks_no_connection() {
    let (mut a, mut b) = pair(Mtu::M256);
    a.post(1, SendOp::Read { remote: b.remote(0) }, 4096, 1000);
    let request = a.transmit();
    request.iter().for_each(|packet| b.receive(packet));
    exchange(&mut a, &mut b);
    b.device.memory().deregister(b.keys).unwrap();
    request.iter().for_each(|packet| b.receive(packet));
    exchange(&mut a, &mut b);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    b.qp.post_recv(rxe_core::wq::RecvWr { wr_id: 9, sges: &[] }).expect("a free entry");
    a.post(2, SendOp::Send { imm: None }, 0, 0);
    exchange(&mut a, &mut b);
    assert_eq!(a.completions().last().map(|done| done.status), Some(WcStatus::Success));
}

/// A READ whose answer was lost, and whose memory is gone when it is asked for again, fails.
#[test]
fn r31_a_read_that_is_asked_for_again_in_vain_fails() {
    let (mut a, mut b) = pair(Mtu::M256);
    a.post(1, SendOp::Read { remote: b.remote(0) }, 4096, 1000);
    let request = a.transmit();
    request.iter().for_each(|packet| b.receive(packet));
    assert_eq!(b.transmit().len(), 4, "lost");
    b.device.memory().deregister(b.keys).unwrap();
    request.iter().for_each(|packet| b.receive(packet));
    exchange(&mut a, &mut b);
    let [failed] = a.completions()[..] else { panic!("nobody told of the failure") };
    assert_eq!((failed.wr_id, failed.status), (1, WcStatus::RemOpErr));
}
