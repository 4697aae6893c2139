//! What an end owes leaves before it goes.
//!
//! In a program of its own: tests beside it open and close sockets of the same address, and while
//! the kernel renumbers those, an acknowledgement may come to one that is just being closed. That
//! is loss, which a resend repairs, but not from a peer that is gone.

mod common;

use std::time::Duration;

use common::{SEND, Setup, pair};
use ibverbs_api::WcStatus;

#[test]
fn a_peer_that_closes_sends_what_it_owes_first() {
    // Both ends know the message as delivered, however soon the receiver goes.
    for _ in 0..50 {
        let (one, two) = pair(&Setup { timeout: 21, ..Setup::default() });
        two.recv(1, &[]);
        one.post(2, SEND, &[]);
        two.done();
        drop(two);
        let done = one.cq.wait_one(Duration::from_secs(7)).expect("the acknowledgement");
        assert_eq!(done.status, WcStatus::Success);
    }
}
