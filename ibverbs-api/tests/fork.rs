//! fork(2) in a program with devices. A binary of its own: the child is a copy of all of it.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::*;
use ibverbs_api::*;

#[test]
fn a_child_leaves_the_parents_devices_alone_and_opens_its_own() {
    let (one, two) = pair(&Setup::default());
    exchange(&one, &two, 10);
    let srq = one.pd.create_srq(SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 }).unwrap();
    // Not polled before the fork.
    two.recv(8, &[]);
    one.qp.post_send(&wr(8, SEND, SendFlags::SIGNALED, SendData::Inline(&[]))).unwrap();
    two.done();
    std::thread::sleep(std::time::Duration::from_millis(20));
    // SAFETY: the child uses nothing that other threads may have locked at this moment: none but
    // ours and the sleeping threads of the devices are there, and the C library sees to its own.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let result = catch_unwind(AssertUnwindSafe(|| in_the_child(one, two, &srq)));
        // SAFETY: ends this process, without running what the parent has registered for its end.
        unsafe { libc::_exit(if result.is_ok() { 0 } else { 1 }) };
    }
    one.done();
    // The parent goes on while the child drops its copies of everything.
    let mut status = 0;
    loop {
        exchange(&one, &two, 10);
        // SAFETY: the kernel writes the status during the call.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        assert!(ended >= 0);
        if ended == child {
            break;
        }
    }
    assert_eq!(status, 0, "the child says what went wrong");
    exchange(&one, &two, 10);
    // Timers and sockets of the parent still wake its threads: nobody polls here.
    let to = two.register(8);
    let word = 7_u64.to_le_bytes();
    let write = SendOp::Write { remote: to.remote_addr(0), imm: None };
    std::thread::sleep(std::time::Duration::from_millis(10));
    one.qp.post_send(&wr(9, write, SendFlags::SIGNALED, SendData::Inline(&word))).unwrap();
    eventually("a WRITE arrives", || to.buffer().load_u64(0).unwrap() == 7);
}

fn exchange(one: &End, two: &End, count: u64) {
    let buffer = two.register(64);
    for number in 0..count {
        two.recv(number, &[buffer.sge(0..64)]);
        let data = pattern(64, number);
        let request = wr(number, SEND, SendFlags::SIGNALED, SendData::Inline(&data));
        one.qp.post_send(&request).unwrap();
        one.done();
        two.done();
        assert_same(&read(buffer.buffer(), 0, 64), &data, "a message");
    }
}

fn in_the_child(one: End, two: End, srq: &SharedReceiveQueue) {
    after_fork_in_child();
    assert_eq!(sockets(), 0, "the parent's sockets are the parent's");
    assert!(!one.context.is_ours() && !two.context.is_ours());
    // Every handle says so, or does nothing.
    let lost = Err(PostSendError::DeviceLost);
    assert_eq!(one.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, SendData::Inline(&[1]))), lost);
    let lost = Err(PostRecvError::DeviceLost);
    assert_eq!(one.qp.post_recv(RecvWr { wr_id: 1, sges: &[] }), lost);
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    let error = one.qp.modify(&attr, QpAttrMask::STATE).unwrap_err();
    assert!(matches!(error, ModifyError::Forked), "{error}");
    assert_eq!(error.errno(), 5, "EIO");
    let error = one.pd.create_qp(QpInit::new(QpType::Rc, &one.cq, &one.cq)).unwrap_err();
    assert!(matches!(error, CreateQpError::DeviceLost), "{error}");
    assert!(one.qp.query().is_err());
    assert_eq!(one.cq.poll(1, &mut Vec::new()), 0);
    assert_eq!(one.cq.poll_stamped(1, |_, _| ()), 0, "what the parent has not polled is its own");
    let error = srq.post_recv(RecvWr { wr_id: 1, sges: &[] }).unwrap_err();
    assert_eq!(error, PostRecvError::DeviceLost);
    one.context.flush(std::time::Duration::ZERO);
    one.cq.req_notify(false);
    assert_eq!(one.context.take_event(), None);
    drop((one, two));
    // The child has slots and sockets of its own.
    let (one, two) = pair(&Setup::default());
    assert!(one.context.is_ours() && sockets() > 0);
    exchange(&one, &two, 100);
}

/// Sockets that this process has open.
fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}
