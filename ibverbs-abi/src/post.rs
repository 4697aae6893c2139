//! Posting: the calls of the data path. Each request goes from the program's form straight into the
//! queue.

use ibverbs_api::{
    MwType, PostRecvError, PostSendError, QKey, QpType, Qpn, RKey, RecvWr, RemoteAddr, SendData,
    SendFlags, SendOp, SendPoster, SendWr, Sge, SrqId,
};
use std::ffi::c_int;
use std::mem::offset_of;
use std::{ptr, slice};

use crate::ah::Ah;
use crate::call::{Positive, answer_fast};
use crate::handles::Object;
use crate::mw::Mw;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::types::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};

// The program's list of pieces is the engine's: it is read where it is.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// Values of `enum ibv_wr_opcode`.
mod opcode {
    pub(super) const RDMA_WRITE: u32 = 0;
    pub(super) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(super) const SEND: u32 = 2;
    pub(super) const SEND_WITH_IMM: u32 = 3;
    pub(super) const RDMA_READ: u32 = 4;
    pub(super) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(super) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(super) const LOCAL_INV: u32 = 7;
    pub(super) const BIND_MW: u32 = 8;
    pub(super) const SEND_WITH_INV: u32 = 9;
    pub(super) const ATOMIC_WRITE: u32 = 15;
}

/// `IBV_SEND_INLINE`; the flags before it are the facade's.
const SEND_INLINE: u32 = 1 << 3;

/// `ibv_post_send(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> Positive {
    answer_fast("ibv_post_send", || {
        // SAFETY: the program posts to a queue pair that is there.
        let qp = unsafe { Qp::trusted(qp) };
        let mut next = wr;
        let posted = qp.facade.post_sends(|poster| {
            while !next.is_null() {
                // SAFETY: the program has a list of requests, which nobody changes meanwhile.
                let request = unsafe { &*next };
                // SAFETY: as above, and what the request points to is there.
                unsafe { post_one(qp, poster, request) }?;
                next = request.next;
            }
            Ok(())
        });
        let posted = posted.unwrap_or_else(|error| Err(error.errno()));
        if posted.is_err() {
            // R13: the first one that was not taken.
            // SAFETY: the program wants it there.
            unsafe { bad_wr.write(next) };
        }
        posted
    })
}

/// Posts one request.
///
/// # Safety
///
/// The lists and the objects that it names are there; inline data can be read.
unsafe fn post_one(qp: &Qp, poster: &mut SendPoster<'_>, wr: &ibv_send_wr) -> Result<(), c_int> {
    let known = SendFlags::all().bits() | SEND_INLINE;
    if wr.send_flags & !known != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's.
    let (op, sges) = unsafe { (operation(qp, wr)?, pieces(wr.sg_list, wr.num_sge)?) };
    // SAFETY: what the opcode and the type of the queue pair do not use is ignored.
    let srq_number = Some(SrqId(unsafe { wr.qp_type.remote_srqn }));
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    let data = if wr.send_flags & SEND_INLINE == 0 {
        SendData::Sges(sges)
    } else {
        // SAFETY: the caller's; whoever has a poster has the lock.
        SendData::Inline(unsafe { inline_data(qp, sges) }?)
    };
    let request = SendWr { wr_id: wr.wr_id, op, flags, data, srq_number };
    poster.post(&request).map_err(|error| send_refused(qp, &error))?;
    if wr.opcode == opcode::BIND_MW {
        // SAFETY: the window that was just bound.
        unsafe { Mw::trusted(wr.bind_mw.bind_mw.mw).show_rkey(wr.bind_mw.bind_mw.rkey) };
    }
    Ok(())
}

/// What a request asks for.
///
/// # Safety
///
/// An address handle, or a memory window and its region, that it names is there.
unsafe fn operation(qp: &Qp, wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    let imm = || u32::from_be(wr.imm_data);
    // SAFETY: every member of the union is numbers and pointers, for which any bytes will do.
    let (rdma, atomic, ud) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
    let remote = RemoteAddr { addr: rdma.remote_addr, rkey: RKey::new(rdma.rkey) };
    let word = RemoteAddr { addr: atomic.remote_addr, rkey: RKey::new(atomic.rkey) };
    let send = |imm: Option<u32>| match qp.facade.qp_type() {
        QpType::Ud | QpType::Gsi => {
            if ud.ah.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: the caller's.
            let ah = unsafe { Ah::trusted(ud.ah) };
            let to = ah.facade.to(Qpn::new(ud.remote_qpn), QKey::new(ud.remote_qkey));
            Ok(SendOp::SendTo { to, imm })
        }
        _ => Ok(SendOp::Send { imm }),
    };
    Ok(match wr.opcode {
        opcode::SEND => send(None)?,
        opcode::SEND_WITH_IMM => send(Some(imm()))?,
        opcode::RDMA_WRITE => SendOp::Write { remote, imm: None },
        opcode::RDMA_WRITE_WITH_IMM => SendOp::Write { remote, imm: Some(imm()) },
        opcode::RDMA_READ => SendOp::Read { remote },
        opcode::ATOMIC_CMP_AND_SWP => {
            let (compare, swap) = (atomic.compare_add, atomic.swap);
            SendOp::CompareSwap { remote: word, compare, swap }
        }
        opcode::ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: word, add: atomic.compare_add },
        opcode::BIND_MW => {
            // SAFETY: the caller's; the opcode says which member it is.
            unsafe {
                let bind = wr.bind_mw.bind_mw;
                let mw = if bind.mw.is_null() { None } else { Some(Mw::trusted(bind.mw)) };
                let mw = mw.ok_or(libc::EINVAL)?;
                mw.binding(qp, MwType::Type2, bind.rkey, &bind.bind_info)?
            }
        }
        opcode::LOCAL_INV => SendOp::LocalInvalidate { key: RKey::new(wr.imm_data) },
        opcode::SEND_WITH_INV => SendOp::SendInvalidate { rkey: RKey::new(wr.imm_data) },
        opcode::ATOMIC_WRITE => SendOp::AtomicWrite { remote },
        _ => return Err(libc::EINVAL),
    })
}

/// The pieces of a request.
///
/// # Safety
///
/// The list has as many, unless there are none; nobody changes it while the result is in use.
unsafe fn pieces<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if !list.is_null() => {
            // SAFETY: the caller's; the two forms are the same, as is asserted above.
            Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count) })
        }
        _ => Err(libc::EINVAL),
    }
}

/// The bytes of inline data, in one piece: where they are, if they are in one, or copied.
///
/// # Safety
///
/// The bytes of the pieces can be read, and nobody changes them while the result is in use. This
/// thread has the queue pair's lock for posting as long.
unsafe fn inline_data<'a>(qp: &'a Qp, sges: &[Sge]) -> Result<&'a [u8], c_int> {
    let at = |sge: &Sge| ptr::with_exposed_provenance::<u8>(sge.addr as usize);
    let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if length > qp.max_inline_data as u64 {
        return Err(libc::EINVAL);
    }
    match sges {
        _ if length == 0 => Ok(&[]),
        // SAFETY: the caller's.
        [one] => Ok(unsafe { slice::from_raw_parts(at(one), one.length as usize) }),
        _ => {
            // SAFETY: the caller's.
            let gathered = unsafe { qp.gathered.for_poster() };
            for sge in sges {
                // SAFETY: the caller's.
                unsafe { gathered.extend_from(at(sge), sge.length as usize) }?;
            }
            Ok(gathered.as_slice())
        }
    }
}

#[cold]
fn send_refused(qp: &Qp, error: &PostSendError) -> c_int {
    tracing::debug!(target: "rxe::abi", "ibv_post_send, QP {}: {error}", qp.facade.qpn());
    error.errno()
}

#[cold]
fn recv_refused(call: &str, error: &PostRecvError) -> c_int {
    tracing::debug!(target: "rxe::abi", "{call}: {error}");
    error.errno()
}

/// Posts a list of receives; where it ends early, tells the program at which.
///
/// # Safety
///
/// The list and its pieces are there, and nobody changes them meanwhile; `bad_wr` can be written.
unsafe fn post_recvs(
    call: &str,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(RecvWr<'_>) -> Result<(), PostRecvError>,
) -> Result<(), c_int> {
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the caller's.
        let request = unsafe { &*next };
        // SAFETY: the caller's.
        let sges = unsafe { pieces(request.sg_list, request.num_sge) };
        let posted = sges.and_then(|sges| {
            let wr = RecvWr { wr_id: request.wr_id, sges };
            post(wr).map_err(|error| recv_refused(call, &error))
        });
        if let Err(errno) = posted {
            // R13: the first one that was not taken.
            // SAFETY: the caller's.
            unsafe { bad_wr.write(next) };
            return Err(errno);
        }
        next = request.next;
    }
    Ok(())
}

/// `ibv_post_recv(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> Positive {
    const CALL: &str = "ibv_post_recv";
    answer_fast(CALL, || {
        // SAFETY: the program posts to a queue pair that is there.
        let qp = unsafe { Qp::trusted(qp) };
        let posted = qp.facade.post_recvs(|poster| {
            // SAFETY: the program has a list of requests, and wants to know where it ends early.
            unsafe { post_recvs(CALL, wr, bad_wr, |wr| poster.post(wr)) }
        });
        posted.unwrap_or_else(|error| {
            // SAFETY: as above.
            unsafe { bad_wr.write(wr) };
            Err(recv_refused(CALL, &error))
        })
    })
}

/// `ibv_post_srq_recv(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> Positive {
    const CALL: &str = "ibv_post_srq_recv";
    answer_fast(CALL, || {
        // SAFETY: the program posts to a queue that is there.
        let srq = unsafe { Srq::trusted(srq) };
        srq.facade.post_recvs(|poster| {
            // SAFETY: the program has a list of requests, and wants to know where it ends early.
            unsafe { post_recvs(CALL, wr, bad_wr, |wr| poster.post(wr)) }
        })
    })
}
