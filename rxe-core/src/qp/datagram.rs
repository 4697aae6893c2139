//! UD and GSI: each message is one packet to the queue pair that its request names, and each
//! received one says where it came from.

use rxe_wire::hdr::{Bth, Deth, ImmDt};
use rxe_wire::{Opcode, PKey, Packet, QKey, Qpn};

use super::attr::{Mtu, QpState, QpType};
use super::machine::{Machine, ShardContext};
use super::queue_pair::ALL_PORTS;
use super::requester::Emit;
use crate::ah::Destination;
use crate::counters::Counter;
use crate::event::AsyncEvent;
use crate::network_header::{self, HEADER_LEN};
use crate::path::Path;
use crate::wc::{NetworkType, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use crate::wq::recv::{RecvWqe, TooLong};
use crate::wq::send::{SendOp, SendWqe, WqeData};
use crate::wq::{gather, scatter};

/// The queue key of QP1 (IBA volume 1, section 13.5; `GSI_QKEY` in Linux).
pub const GSI_QKEY: QKey = QKey::new(0x8001_0000);
/// The number of a port's queue pair for general services.
pub const GSI_QPN: Qpn = Qpn::new(1);
/// Set in the queue key of a request, it stands for the queue pair's own.
const OWN_QKEY: u32 = 1 << 31;

impl Machine {
    /// Builds the datagram of the oldest request into `buf`.
    pub(super) fn poll_datagram(&mut self, cx: &mut ShardContext<'_>, buf: &mut [u8]) -> Emit {
        // In SQD nothing begins, and no datagram is ever half sent.
        if self.attr.state != QpState::Rts {
            return Emit::Idle;
        }
        let Some(wqe) = self.send.wqes.front() else { return Emit::Idle };
        let psn = self.send.una();
        let built = self.build_datagram(cx, wqe, psn, buf);
        match built {
            Ok((len, to)) => {
                self.send.start(buf.len(), |_| 0);
                self.send.sent(1);
                self.complete_sent(cx);
                self.note_destination(to);
                Emit::Packet(len)
            }
            // R8.
            Err(status) => {
                self.fail(cx, status);
                Emit::Idle
            }
        }
    }

    fn build_datagram(
        &self,
        cx: &ShardContext<'_>,
        wqe: &SendWqe,
        psn: rxe_wire::Psn,
        buf: &mut [u8],
    ) -> Result<(usize, Destination), WcStatus> {
        let SendOp::SendTo { to, imm } = wqe.op else { return Err(WcStatus::LocQpOpErr) };
        if to.pd != self.qp.pd() {
            return Err(WcStatus::LocQpOpErr);
        }
        let mtu = match self.attr.port_num {
            // What each port carries, and what all messages to a QP1 have (`MAD_LEN`).
            ALL_PORTS => Mtu::M256.bytes(),
            port_num => cx.device.port(port_num).map_or(0, |port| port.active_mtu().bytes()),
        };
        let len = wqe.length as usize;
        // A datagram is one packet. Linux's driver sends nothing either, but reports success; here
        // the program is told, as by adapters.
        if len > mtu {
            return Err(WcStatus::LocLenErr);
        }
        let qkey = if to.qkey.get() & OWN_QKEY == 0 { to.qkey } else { self.own_qkey() };
        let pad = len.wrapping_neg() & 3;
        let opcode =
            if imm.is_some() { Opcode::UD_SEND_ONLY_WITH_IMM } else { Opcode::UD_SEND_ONLY };
        // R16: an acknowledgement is never asked for. R17: reserved bits are 0.
        let bth = Bth {
            opcode,
            solicited: wqe.solicited,
            pad: pad as u8,
            pkey: PKey::DEFAULT,
            dest_qpn: to.qpn,
            psn,
            ..Bth::default()
        };
        let deth = Deth { qkey, source_qpn: self.qp.qpn(), reserved: 0 };
        let headers = write_headers(buf, &bth, &deth, imm).ok_or(WcStatus::GeneralErr)?;
        let end = headers + len;
        let payload = buf.get_mut(headers..end).ok_or(WcStatus::GeneralErr)?;
        match &wqe.data {
            WqeData::Inline(bytes) => {
                payload.copy_from_slice(bytes.get(..len).ok_or(WcStatus::GeneralErr)?);
            }
            WqeData::Sges(sges) => {
                gather(cx.device.memory(), self.qp.pd(), sges, 0, payload).map_err(|fault| {
                    tracing::debug!(target: "rxe::req", wr_id = wqe.wr_id, %fault, "cannot read");
                    WcStatus::LocProtErr
                })?;
            }
        }
        // R59: the pad is covered by the iCRC, so it must be ours to define.
        buf.get_mut(end..end + pad).ok_or(WcStatus::GeneralErr)?.fill(0);
        Ok((end + pad, to))
    }

    /// Where the packet that was built last goes to.
    fn note_destination(&mut self, to: Destination) {
        match &mut self.datagram_to {
            Some(place) => **place = (to.path, to.qpn),
            // Once in the life of a queue pair.
            None => self.datagram_to = Some(Box::new((to.path, to.qpn))),
        }
    }

    /// Where the packet that was built last goes to.
    pub(crate) fn route(&self) -> Option<(Path, Qpn)> {
        match &self.connection {
            Some(connection) => Some((connection.path, self.attr.dest_qpn)),
            None => self.datagram_to.as_deref().copied(),
        }
    }

    /// The key that packets must have to be taken.
    fn own_qkey(&self) -> QKey {
        match self.qp.qp_type() {
            QpType::Gsi => GSI_QKEY,
            _ => QKey::new(self.attr.qkey),
        }
    }

    /// Handles a datagram for this queue pair, or for a group that it is attached to.
    pub(crate) fn handle_datagram(
        &mut self,
        cx: &mut ShardContext<'_>,
        path: &Path,
        packet: &Packet<'_>,
        len: usize,
    ) {
        // R58.
        if matches!(self.attr.state, QpState::Reset | QpState::Init | QpState::Err) {
            return self.note_drop(cx, Counter::drop_wrong_state);
        }
        let Some(deth) = packet.deth() else {
            return self.note_drop(cx, Counter::drop_malformed);
        };
        // R57.
        if deth.qkey != self.own_qkey() {
            return self.note_drop(cx, Counter::drop_bad_qkey);
        }
        if self.attr.state == QpState::Rtr && !std::mem::replace(&mut self.established, true) {
            cx.device.events().push(AsyncEvent::CommEst(self.qp.qpn()));
        }
        let payload = packet.payload();
        let wqe = match self.qp.take_recv_fitting((HEADER_LEN + payload.len()) as u64) {
            Ok(Some(wqe)) => wqe,
            Ok(None) => return self.note_drop(cx, Counter::drop_no_receive),
            // R30: the receive stays, in a shared queue for whoever is next.
            Err(TooLong) => return self.note_drop(cx, Counter::drop_bad_length),
        };
        let header = network_header::write(path, len);
        let (memory, pd) = (cx.device.memory(), wqe.pd);
        let stored = scatter(memory, pd, &wqe.sges, 0, &header)
            .and_then(|()| scatter(memory, pd, &wqe.sges, HEADER_LEN as u64, payload));
        if let Err(fault) = stored {
            tracing::debug!(target: "rxe::resp", wr_id = wqe.wr_id, %fault, "cannot store");
            self.qp.complete_recv_error(&wqe, WcStatus::LocProtErr);
            return self.enter_error(cx);
        }
        let network_type = network_header::network_type(path);
        if self.complete_datagram(&wqe, packet, deth.source_qpn, network_type) {
            cx.counters.bump(Counter::rdma_recvs);
        }
    }

    /// Tells of a datagram; false when the completion queue is full, which fails the QP (R52).
    fn complete_datagram(
        &self,
        wqe: &RecvWqe,
        packet: &Packet<'_>,
        source_qpn: Qpn,
        network_type: NetworkType,
    ) -> bool {
        let imm = packet.imm();
        let with_imm = if imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        let wc = WorkCompletion {
            wr_id: wqe.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: 0,
            // Fits: a header and one packet.
            byte_len: (HEADER_LEN + packet.payload().len()) as u32,
            imm: imm.unwrap_or(0),
            qpn: self.qp.qpn(),
            source_qpn,
            flags: WcFlags::GRH | with_imm,
            network_type,
        };
        self.qp.complete_recv(wqe, wc, packet.bth().solicited)
    }
}

/// Writes BTH and what follows it; `None` when the buffer is too short.
fn write_headers(buf: &mut [u8], bth: &Bth, deth: &Deth, imm: Option<u32>) -> Option<usize> {
    bth.write(buf).ok()?;
    let mut len = Bth::LEN;
    deth.write(buf.get_mut(len..)?).ok()?;
    len += Deth::LEN;
    if let Some(imm) = imm {
        ImmDt(imm).write(buf.get_mut(len..)?).ok()?;
        len += ImmDt::LEN;
    }
    Some(len)
}
