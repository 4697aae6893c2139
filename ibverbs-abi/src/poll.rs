//! Polling: the calls of the data path. Each completion goes from the queue straight into the
//! program's form.

use std::ffi::c_int;

use ibverbs_api::{NetworkType, WcFlags, WorkCompletion};

use crate::call::{Count, Positive, answer_fast};
use crate::cq::Cq;
use crate::handles::Object;
use crate::types::{ibv_cq, ibv_wc};

/// Immediate data is in network order, an invalidated key in that of the host.
#[inline]
pub(crate) fn imm_data(from: &WorkCompletion) -> u32 {
    if from.flags.contains(WcFlags::WITH_IMM) { from.imm.to_be() } else { from.imm }
}

/// RoCE has no service level. As ConnectX adapters do, the field says what stands before the data of
/// a datagram (bits 0 to 2: 1 for IPv6, 2 for IPv4), and that UDP was below (bit 3): UCX reads it,
/// and drops datagrams over IPv4 without.
#[inline]
pub(crate) fn sl(from: &WorkCompletion) -> u8 {
    match from.network_type {
        NetworkType::Ipv6 => 0b1001,
        NetworkType::Ipv4 => 0b1010,
        _ => 0,
    }
}

/// A completion for the program.
#[inline]
fn wc(from: &WorkCompletion) -> ibv_wc {
    ibv_wc {
        wr_id: from.wr_id,
        status: from.status as u32,
        opcode: from.opcode as u32,
        vendor_err: from.vendor_err,
        byte_len: from.byte_len,
        imm_data: imm_data(from),
        qp_num: from.qpn.get(),
        src_qp: from.source_qpn.get(),
        wc_flags: from.flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: sl(from),
        dlid_path_bits: 0,
    }
}

/// `ibv_poll_cq(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    to: *mut ibv_wc,
) -> Count {
    answer_fast("ibv_poll_cq", || {
        let max = usize::try_from(num_entries).map_err(|_| libc::EINVAL)?;
        // SAFETY: the program polls a queue that is there.
        let cq = unsafe { Cq::trusted(cq) };
        let mut to = to;
        let count = cq.facade.poll_each(max, |from| {
            // SAFETY: there is room for as many as are polled at most.
            unsafe {
                to.write(wc(&from));
                to = to.add(1);
            }
        });
        // Fits: no more than asked for.
        Ok(count as c_int)
    })
}

/// `ibv_req_notify_cq(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> Positive {
    answer_fast("ibv_req_notify_cq", || {
        // SAFETY: the program asks a queue that is there.
        unsafe { Cq::trusted(cq) }.facade.req_notify(solicited_only != 0);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use ibverbs_api::{Qpn, WcOpcode, WcStatus};

    use super::*;

    #[test]
    fn immediate_data_is_in_network_order_and_keys_are_not() {
        let completion = |flags| WorkCompletion {
            wr_id: 7,
            status: WcStatus::RnrRetryExcErr,
            opcode: WcOpcode::RecvRdmaWithImm,
            vendor_err: 0,
            byte_len: 5,
            imm: 0x0102_0304,
            qpn: Qpn::new(0x11),
            source_qpn: Qpn::new(0x22),
            flags,
            network_type: NetworkType::None,
        };
        let shown = wc(&completion(WcFlags::WITH_IMM | WcFlags::GRH));
        assert_eq!(shown.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!((shown.wr_id, shown.byte_len, shown.wc_flags), (7, 5, 3));
        assert_eq!((shown.status, shown.opcode), (13, 129));
        assert_eq!((shown.qp_num, shown.src_qp), (0x11, 0x22));
        assert_eq!(wc(&completion(WcFlags::WITH_INV)).imm_data, 0x0102_0304);
        // Service levels as UCX reads them.
        let datagram = |network_type| WorkCompletion { network_type, ..completion(WcFlags::GRH) };
        let levels = [NetworkType::None, NetworkType::RoceV1, NetworkType::Ipv6, NetworkType::Ipv4];
        assert_eq!(levels.map(|level| wc(&datagram(level)).sl), [0, 0, 9, 10]);
    }
}
