//! Memory of a program that takes it away: completions and NAKs, as for any key that is wrong.

use std::ptr;
use std::sync::Arc;

use rxe_core::AsyncEvent;
use rxe_core::mem::{
    AccessFault, AccessFlags, Advice, AdviseMrError, Backing, Fault, MrKeys, UserMemory,
    catch_faults,
};
use rxe_core::qp::QpState;
use rxe_core::wq::{RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};

use crate::pages::{PAGE, Pages};
use crate::script::*;

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::ON_DEMAND);

/// Pages registered under their own addresses.
fn register(s: &Script, pages: &Pages) -> MrKeys {
    let memory = pages.backing();
    let (length, iova) = (memory.len() as u64, pages.addr());
    s.memory().register(s.host.pd, memory, 0, length, iova, ALL).unwrap()
}

/// Three pages, of which the second one is gone.
fn holed(s: &Script) -> (Pages, MrKeys) {
    let pages = Pages::anonymous(3);
    let keys = register(s, &pages);
    pages.unmap(1, 1);
    (pages, keys)
}

fn remote(pages: &Pages, keys: MrKeys, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: pages.addr() + offset as u64, rkey: keys.rkey }
}

fn sge(pages: &Pages, keys: MrKeys, offset: usize, length: u32) -> Sge {
    Sge { addr: pages.addr() + offset as u64, length, lkey: keys.lkey }
}

fn post(s: &mut Script, wr_id: u64, op: SendOp, sge: Sge) {
    let (flags, sges) = (SendFlags::SIGNALED, [sge]);
    s.host.post_wr(&SendWr { wr_id, op, flags, data: SendData::Sges(&sges), srq_number: None });
}

#[test]
fn r08_data_that_is_gone_fails_its_request() {
    for op in [SendOp::Send { imm: None }, SendOp::Write { remote: far(0), imm: None }] {
        let mut s = Script::rts();
        let (pages, keys) = holed(&s);
        post(&mut s, 1, op, sge(&pages, keys, PAGE, 8));
        s.send(2, 8).quiet().done([(1, LocProtErr), (2, WrFlushErr)]);
        assert_eq!(s.state(), QpState::Err);
    }
}

/// What goes out by the run ends where the memory does.
#[test]
fn r08_data_that_is_gone_in_the_middle_fails_its_request() {
    let mut s = Script::rts();
    let (pages, keys) = holed(&s);
    post(&mut s, 1, SendOp::Send { imm: None }, sge(&pages, keys, PAGE - 3 * MTU, 2000));
    let sent = s.sent();
    assert_eq!(sent.len(), 3, "{sent:?}");
    s.rx(&ack(2, 0)).quiet().done([(1, LocProtErr)]);
}

#[test]
fn r11_an_answer_to_memory_that_is_gone_fails_its_request() {
    for offset in [PAGE, PAGE - 4] {
        let mut s = Script::rts();
        let (pages, keys) = holed(&s);
        post(&mut s, 1, SendOp::Read { remote: far(0) }, sge(&pages, keys, offset, 8));
        s.sent();
        s.rx(&resp_only(0, 1, &[7; 8])).quiet().done([(1, LocProtErr)]);
        assert_eq!(s.state(), QpState::Err);
        let mut s = Script::rts();
        let (pages, keys) = holed(&s);
        let op = SendOp::FetchAdd { remote: far(0), add: 1 };
        post(&mut s, 1, op, sge(&pages, keys, offset, 8));
        s.sent();
        s.rx(&atomic_ack(0, 1, 7)).quiet().done([(1, LocProtErr)]);
    }
}

#[test]
fn r20_a_write_to_memory_that_is_gone_is_refused() {
    let mut s = Script::rts();
    let (pages, keys) = holed(&s);
    s.rx(&write_only(0, remote(&pages, keys, 0), b"here").a()).tx([ack(0, 1)]);
    assert_eq!(pages.byte(3), b'e');
    s.rx(&write_only(1, remote(&pages, keys, PAGE + 5), b"gone").a()).tx([nak(1, ACCESS, 1)]);
    let qpn = s.qpn();
    s.events([AsyncEvent::QpAccessErr(qpn)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn r20_a_write_is_refused_where_its_memory_ends() {
    let mut s = Script::rts();
    let (pages, keys) = holed(&s);
    let (start, data) = (PAGE - 2 * MTU, [7; MTU]);
    s.rx(&write_first(0, remote(&pages, keys, start), 1000, &data)).quiet();
    s.rx(&write_middle(1, &data)).quiet();
    s.rx(&write_middle(2, &data)).tx([nak(2, ACCESS, 0)]);
    assert!((start..PAGE).all(|offset| pages.byte(offset) == 7));
    assert_eq!(pages.byte(2 * PAGE), 0);
}

#[test]
fn r20_a_write_to_memory_that_may_only_be_read_is_refused() {
    let mut s = Script::rts();
    let pages = Pages::anonymous(1);
    let keys = register(&s, &pages);
    pages.protect(0, 1, libc::PROT_READ);
    s.rx(&read(0, remote(&pages, keys, 0), 4)).tx([resp_only(0, 1, &[0; 4])]);
    s.rx(&write_only(1, remote(&pages, keys, 0), b"text").a()).tx([nak(1, ACCESS, 1)]);
    assert_eq!(pages.byte(0), 0);
}

#[test]
fn r20_a_write_behind_the_end_of_a_file_is_refused() {
    let mut s = Script::rts();
    let pages = Pages::of_file(2);
    let keys = register(&s, &pages);
    pages.truncate(1);
    s.rx(&write_only(0, remote(&pages, keys, 9), b"text").a()).tx([ack(0, 1)]);
    s.rx(&write_only(1, remote(&pages, keys, PAGE), b"text").a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn r31_a_read_of_memory_that_is_gone_ends_in_a_nak() {
    let mut s = Script::rts();
    let (pages, keys) = holed(&s);
    let from = PAGE - 2 * MTU;
    s.rx(&read(0, remote(&pages, keys, from), 1000)).tx([
        resp_first(0, 1, &[0; MTU]),
        resp_middle(1, &[0; MTU]),
        nak(2, OPERATION, 1),
    ]);
    assert_eq!(s.state(), QpState::Err);
    let mut s = Script::rts();
    let (pages, keys) = holed(&s);
    s.rx(&read(0, remote(&pages, keys, PAGE - 1), 2)).tx([nak(0, OPERATION, 1)]);
}

#[test]
fn r20_an_atomic_on_memory_that_is_gone_is_refused() {
    for offset in [PAGE, 2 * PAGE - 8] {
        for atomic in [faa(0, far(0), 1), cas(0, far(0), 0, 1), atomic_write(0, far(0), &[1; 8])] {
            let mut s = Script::rts();
            let (pages, keys) = holed(&s);
            s.rx(&atomic.moved(far(0), remote(&pages, keys, offset))).tx([nak(0, ACCESS, 0)]);
            assert_eq!(s.state(), QpState::Err);
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", not(rxe_strict_mem)))]
fn an_atomic_on_memory_that_is_there_is_the_processors() {
    let mut s = Script::rts();
    let (pages, keys) = holed(&s);
    s.rx(&faa(0, remote(&pages, keys, 8), 0x0102)).tx([atomic_ack(0, 1, 0)]);
    s.rx(&cas(1, remote(&pages, keys, 8), 0x0102, 9)).tx([atomic_ack(1, 2, 0x0102)]);
    assert_eq!(pages.byte(8), 9);
}

#[test]
fn a_receive_in_memory_that_is_gone_fails_at_both_ends() {
    for offset in [PAGE, PAGE - 2] {
        let mut s = Script::rts();
        let (pages, keys) = holed(&s);
        let sges = [sge(&pages, keys, offset, 8)];
        s.host.qp.post_recv(rxe_core::wq::RecvWr { wr_id: 5, sges: &sges }).unwrap();
        s.rx(&send_only(0, b"text").a()).tx([nak(0, OPERATION, 0)]).done([(5, LocProtErr)]);
        assert_eq!(s.state(), QpState::Err);
    }
}

#[test]
fn all_of_memory_is_judged_by_faults_alone() {
    catch_faults().unwrap();
    // SAFETY: faults are caught, and this test writes to its own pages alone.
    let all = unsafe { UserMemory::new(ptr::null_mut(), usize::MAX) }.unwrap();
    let mut s = Script::rts();
    let all: Arc<dyn Backing> = Arc::new(all);
    let keys = s.memory().register(s.host.pd, all, 0, u64::MAX, 0, ALL).unwrap();
    let pages = Pages::anonymous(3);
    s.rx(&write_only(0, remote(&pages, keys, 9), b"here").a()).tx([ack(0, 1)]);
    assert_eq!(pages.byte(9), b'h');
    pages.unmap(1, 1);
    post(&mut s, 1, SendOp::Send { imm: None }, sge(&pages, keys, 9, 4));
    s.tx([send_only(0, b"here").a()]);
    s.rx(&write_only(1, remote(&pages, keys, PAGE), b"gone").a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn advice_is_followed_or_refused() {
    let s = Script::rts();
    let (pages, keys) = holed(&s);
    let pd = s.host.pd;
    let advise = |advice, sge: Sge| s.memory().advise(pd, advice, &[sge]);
    let whole = |count: usize| sge(&pages, keys, 0, (count * PAGE) as u32);
    for advice in [Advice::Prefetch, Advice::PrefetchWrite] {
        assert_eq!(advise(advice, whole(1)), Ok(()));
        // What is not part of the address space; the first page that is not there is told.
        let fault = Fault::Unmapped { addr: pages.addr() + PAGE as u64, len: PAGE };
        let error = advise(advice, whole(3)).unwrap_err();
        assert_eq!(error, AdviseMrError::Access(AccessFault::Fault(fault)));
        assert_eq!(error.errno(), libc::EFAULT);
        let beyond = advise(advice, sge(&pages, keys, 2 * PAGE, PAGE as u32 + 1)).unwrap_err();
        assert!(matches!(beyond, AdviseMrError::Access(AccessFault::OutOfRange { .. })));
    }
    assert_eq!(advise(Advice::PrefetchNoFault, whole(3)), Ok(()), "nothing is touched");
    // Keys that are wrong, or not for that.
    let nobodys = Sge { lkey: rxe_wire::LKey::new(keys.lkey.get() ^ 1), ..whole(1) };
    assert!(matches!(
        advise(Advice::Prefetch, nobodys),
        Err(AdviseMrError::Access(AccessFault::NoSuchKey { .. }))
    ));
    let plain = s.host.sge(0, 8);
    let error = advise(Advice::Prefetch, plain).unwrap_err();
    assert_eq!(error, AdviseMrError::NotOnDemand { key: plain.lkey.get() });
    let access = AccessFlags::ON_DEMAND | AccessFlags::REMOTE_READ;
    let (memory, addr) = (pages.backing(), pages.addr());
    let keys = s.memory().register(pd, memory, 0, PAGE as u64, addr, access).unwrap();
    assert_eq!(advise(Advice::Prefetch, sge(&pages, keys, 0, 8)), Ok(()));
    let error = advise(Advice::PrefetchWrite, sge(&pages, keys, 0, 8)).unwrap_err();
    assert!(matches!(error, AdviseMrError::Access(AccessFault::NotAllowed { .. })));
}
