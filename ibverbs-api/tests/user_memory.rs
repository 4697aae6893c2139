//! Memory that the program owns, and takes away while it is registered, over real sockets: each
//! request ends in an error, and the program goes on.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;
#[path = "../../rxe-core/tests/common/pages.rs"]
mod pages;

use common::*;
use ibverbs_api::*;
use pages::{PAGE, Pages};

/// Two connected ends; the second one has registered three pages, of which it has unmapped one.
struct Torn {
    one: End,
    two: End,
    local: MemoryRegion,
    pages: Pages,
    far: MemoryRegion,
}

impl Torn {
    fn new() -> Self {
        let (one, two) = pair(&Setup::default());
        let pages = Pages::anonymous(3);
        let far = two.pd.register(pages.user_memory(), ALL | AccessFlags::ON_DEMAND).unwrap();
        pages.unmap(1, 1);
        let local = one.register(3 * PAGE);
        Self { one, two, local, pages, far }
    }

    /// How a request of the first end about the second one's memory ends.
    fn status(&self, op: SendOp, len: usize) -> WcStatus {
        self.one.post(1, op, &[self.local.sge(0..len)]);
        self.one.cq.wait_one(LONG).unwrap().status
    }

    /// How a request of the second end itself ends.
    fn own_status(&self, op: SendOp, range: std::ops::Range<usize>) -> WcStatus {
        self.two.post(1, op, &[self.far.sge(range)]);
        self.two.cq.wait_one(LONG).unwrap().status
    }
}

#[test]
fn memory_of_the_program_is_memory() {
    let t = Torn::new();
    t.local.buffer().write_at(0, b"to a page").unwrap();
    let write = SendOp::Write { remote: t.far.remote_addr(5), imm: None };
    assert_eq!(t.status(write, 9), WcStatus::Success);
    assert_eq!((t.pages.byte(5), t.pages.byte(13)), (b't', b'e'));
    let read_op = SendOp::Read { remote: t.far.remote_addr(8) };
    assert_eq!(t.status(read_op, 6), WcStatus::Success);
    assert_eq!(read(t.local.buffer(), 0, 6), b"a page");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn atomics_work_on_memory_of_the_program() {
    let t = Torn::new();
    let add = SendOp::FetchAdd { remote: t.far.remote_addr(16), add: 7 };
    assert_eq!(t.status(add, 8), WcStatus::Success);
    assert_eq!(t.pages.byte(16), 7);
}

#[test]
fn what_a_peer_does_to_memory_that_is_gone_is_refused() {
    type Make = fn(RemoteAddr) -> SendOp;
    let cases: [(Make, usize, usize, WcStatus); 6] = [
        (|remote| SendOp::Write { remote, imm: None }, PAGE + 9, 100, WcStatus::RemAccessErr),
        (|remote| SendOp::Write { remote, imm: None }, 100, 3 * PAGE - 100, WcStatus::RemAccessErr),
        (|remote| SendOp::Read { remote }, PAGE, 100, WcStatus::RemOpErr),
        (|remote| SendOp::Read { remote }, 100, 3 * PAGE - 100, WcStatus::RemOpErr),
        (|remote| SendOp::FetchAdd { remote, add: 1 }, PAGE, 8, WcStatus::RemAccessErr),
        (
            |remote| SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            2 * PAGE - 8,
            8,
            WcStatus::RemAccessErr,
        ),
    ];
    for (make, offset, len, expected) in cases {
        let t = Torn::new();
        let op = make(t.far.remote_addr(offset));
        assert_eq!(t.status(op, len), expected, "{op:?}");
    }
}

#[test]
fn own_requests_about_memory_that_is_gone_fail() {
    for range in [PAGE..PAGE + 100, 0..3 * PAGE] {
        let t = Torn::new();
        t.one.recv(5, &[t.local.sge(0..3 * PAGE)]);
        assert_eq!(t.own_status(SEND, range.clone()), WcStatus::LocProtErr);
        let t = Torn::new();
        let write = SendOp::Write { remote: t.local.remote_addr(0), imm: None };
        assert_eq!(t.own_status(write, range.clone()), WcStatus::LocProtErr);
        let t = Torn::new();
        let read = SendOp::Read { remote: t.local.remote_addr(0) };
        assert_eq!(t.own_status(read, range), WcStatus::LocProtErr);
    }
    let t = Torn::new();
    let add = SendOp::FetchAdd { remote: t.local.remote_addr(0), add: 1 };
    assert_eq!(t.own_status(add, PAGE..PAGE + 8), WcStatus::LocProtErr);
}

#[test]
fn a_receive_in_memory_that_is_gone_fails_at_both_ends() {
    let t = Torn::new();
    t.two.recv(5, &[t.far.sge(PAGE - 50..PAGE + 50)]);
    assert_eq!(t.status(SEND, 100), WcStatus::RemOpErr);
    let completion = t.two.cq.wait_one(LONG).unwrap();
    assert_eq!((completion.wr_id, completion.status), (5, WcStatus::LocProtErr));
}

#[test]
fn memory_that_may_only_be_read_is_only_read() {
    let t = Torn::new();
    t.pages.protect(0, 1, libc::PROT_READ);
    assert_eq!(t.status(SendOp::Read { remote: t.far.remote_addr(0) }, 64), WcStatus::Success);
    let write = SendOp::Write { remote: t.far.remote_addr(0), imm: None };
    assert_eq!(t.status(write, 64), WcStatus::RemAccessErr);
}

#[test]
fn a_file_that_is_truncated_is_memory_that_is_gone() {
    let (one, two) = pair(&Setup::default());
    let (pages, local) = (Pages::of_file(2), one.register(PAGE));
    let far = two.pd.register(pages.user_memory(), ALL).unwrap();
    pages.truncate(1);
    let write = |offset| SendOp::Write { remote: far.remote_addr(offset), imm: None };
    one.post(1, write(0), &[local.sge(0..PAGE)]);
    one.done();
    one.post(2, write(PAGE), &[local.sge(0..1)]);
    assert_eq!(one.cq.wait_one(LONG).unwrap().status, WcStatus::RemAccessErr);
}

#[test]
fn advice_about_memory_that_is_gone_is_an_error() {
    let t = Torn::new();
    let advise = |range| t.two.pd.advise(Advice::PrefetchWrite, &[t.far.sge(range)]);
    assert_eq!(advise(0..PAGE), Ok(()));
    assert_eq!(advise(0..PAGE + 1).unwrap_err().errno(), libc::EFAULT);
    assert_eq!(advise(2 * PAGE..3 * PAGE), Ok(()));
}
