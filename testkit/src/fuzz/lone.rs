//! One queue pair whose peer is the input: requests for its responder, or its own requests with
//! responses for its completer.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use rxe_core::qp::{
    AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType, steps_to_rts,
};
use rxe_core::wq::{FlushLevel, RecvWr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{Instant, Path, QueuePair, Shard};
use rxe_wire::hdr::FlushPlacement;
use rxe_wire::{FlowNote, OpcodeInfo, Operation, Packet, Psn, Qpn};

use super::arena::{Arena, SECRET, Zone, gid_of};
use super::ledger::Ledger;
use super::packets::{QKEY, Recipe, service_of};
use super::reads::Reads;

const HOST_PSN: Psn = Psn::new(0xff_ffe0);
const PEER_PSN: Psn = Psn::new(0xff_fff0);
const PEER_QPN: Qpn = Qpn::new(0x02_0042);
const MTU: Mtu = Mtu::M256;
/// Steps of one input at most.
const STEPS: usize = 256;

pub(super) fn run_responder(input: &[u8]) {
    let _ = run(input, false);
}

pub(super) fn run_completer(input: &[u8]) {
    let _ = run(input, true);
}

/// Does what the input says; the READs, with what was reached.
fn run(input: &[u8], responses: bool) -> Option<Reads> {
    let mut u = Unstructured::new(input);
    let mut lone = Lone::new(&mut u, responses).ok()?;
    for _ in 0..STEPS {
        // An input that ends has said all that it has to say.
        if u.is_empty() || lone.step(&mut u).is_err() {
            break;
        }
        lone.poll();
    }
    Some(lone.finish())
}

struct Lone {
    arena: Arena,
    qp: Arc<QueuePair>,
    recipe: Recipe,
    path: Path,
    ledger: Ledger,
    reads: Reads,
    now: Instant,
    /// The next PSN of the peer's requests.
    peer_psn: Psn,
    /// The last PSN that the host sent.
    sent_psn: Psn,
}

impl Lone {
    fn new(u: &mut Unstructured<'_>, responses: bool) -> Result<Self> {
        let mut arena = Arena::new(1);
        let services: &[QpType] = if responses {
            &[QpType::Rc, QpType::Uc]
        } else {
            &[QpType::Rc, QpType::Uc, QpType::Ud]
        };
        let wanted = *u.choose(services)?;
        let caps = QpCaps { max_send_wr: 32, max_recv_wr: 32, ..QpCaps::default() };
        let init = |qp_type| QpInit { caps, ..QpInit::new(qp_type, arena.pd, &arena.cq) };
        let made = arena.shard.create_qp(init(wanted));
        let qp = match made {
            Ok(qp) => qp,
            Err(_) => arena.shard.create_qp(init(QpType::Rc)).expect("RC is always there"),
        };
        let attr = QpAttr {
            path_mtu: MTU,
            qkey: QKEY,
            rq_psn: PEER_PSN,
            sq_psn: HOST_PSN,
            dest_qpn: PEER_QPN,
            access: rxe_core::mem::AccessFlags::all(),
            av: AddressVector::new(gid_of(2), 0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: u.int_in_range(0..=14)?,
            retry_cnt: u.int_in_range(0..=7)?,
            rnr_retry: u.int_in_range(0..=7)?,
            ..QpAttr::default()
        };
        for (state, mask) in steps_to_rts(qp.qp_type()) {
            let attr = QpAttr { state, ..attr };
            let done = arena.shard.modify_qp(Instant::ZERO, qp.qpn(), &attr, mask);
            done.expect("the usual steps");
        }
        let recipe = Recipe {
            service: service_of(qp.qp_type()),
            responses,
            dest_qpn: qp.qpn(),
            mtu: MTU.bytes(),
        };
        let path = Path::new(gid_of(2), arena.gid);
        let (ledger, now) = (Ledger::default(), Instant::from_nanos(1));
        let sent_psn = HOST_PSN.minus(1);
        let reads = Reads::new(qp.qpn(), MTU.bytes(), HOST_PSN);
        let peer_psn = PEER_PSN;
        Ok(Self { arena, qp, recipe, path, ledger, reads, now, peer_psn, sent_psn })
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        // One byte says what to do: new things get new numbers, so that old inputs stay what they are.
        let last = if self.recipe.responses { 31 } else { 15 };
        match u.int_in_range(0..=last)? {
            0..=7 => self.receive(u)?,
            8 | 9 if self.recipe.responses => self.send(u)?,
            8..=10 => self.post_receive(u)?,
            11 | 12 => self.transmit(),
            13 => {
                self.now = self.now.plus_nanos(1 << u.int_in_range(0..=32u32)?);
                self.arena.shard.handle_timeout(self.now);
            }
            14 => self.change_state(u)?,
            15 => self.arena.revoke(),
            16..=28 => self.answer_read(u)?,
            29 | 30 => self.send_more(u)?,
            _ => self.flush_or_write(u)?,
        }
        Ok(())
    }

    /// A peer's answer to a READ, or a part of it, in any order.
    fn answer_read(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        for bytes in self.reads.answer(u)? {
            self.reads.coming(&bytes);
            self.arena.shard.handle_packet(self.now, &self.path, &bytes);
        }
        Ok(())
    }

    fn receive(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let psn = if self.recipe.responses {
            self.sent_psn.minus(u.int_in_range(0..=15u32)?)
        } else {
            self.peer_psn
        };
        let (bytes, packets) = self.recipe.make(u, &self.arena, psn)?;
        self.reads.coming(&bytes);
        self.arena.shard.handle_packet(self.now, &self.path, &bytes);
        if !self.recipe.responses {
            self.peer_psn = psn.plus(packets);
        }
        Ok(())
    }

    fn post_receive(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let zone = if u.ratio(1, 8u8)? { Zone::of(u.arbitrary()?) } else { Zone::Local };
        let length = u.int_in_range(0..=1200u16)?.into();
        let sge = self.arena.sge(zone, u.arbitrary()?, length);
        let wr_id = self.ledger.receive_id();
        if let Ok(kick) = self.qp.post_recv(RecvWr { wr_id, sges: &[sge] }) {
            self.ledger.posted(wr_id, true);
            if kick {
                self.arena.shard.kick(self.now, self.qp.qpn());
            }
        }
        Ok(())
    }

    fn send(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let remote = self.arena.remote(Zone::of(u.arbitrary()?), u.arbitrary()?);
        let imm = u.arbitrary()?;
        let op = match u.int_in_range(0..=5u8)? {
            0 => SendOp::Send { imm },
            1 => SendOp::Write { remote, imm },
            2 | 3 => SendOp::Read { remote },
            4 => SendOp::FetchAdd { remote, add: 1 },
            _ => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        };
        let zone = if u.ratio(1, 8u8)? { Zone::of(u.arbitrary()?) } else { Zone::Local };
        let short = matches!(op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        let length = if short { 8 } else { u.int_in_range(0..=2000u16)?.into() };
        let sges = [self.arena.sge(zone, u.arbitrary()?, length)];
        let flags = SendFlags::from_bits_truncate(u.arbitrary()?);
        let data =
            if u.ratio(1, 8u8)? { SendData::Inline(&[7; 20]) } else { SendData::Sges(&sges) };
        self.post(op, flags, data);
        Ok(())
    }

    /// A READ of some packets that succeeds if it is answered: what is behind a gap needs those.
    fn send_more(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let op = SendOp::Read { remote: self.arena.remote(Zone::Readable, u.arbitrary()?) };
        let sges = [self.arena.sge(Zone::Local, 0, u.int_in_range(1..=4096u16)?.into())];
        let unsignaled = u.ratio(1, 4u8)?;
        let flags = if unsignaled { SendFlags::empty() } else { SendFlags::SIGNALED };
        self.post(op, flags, SendData::Sges(&sges));
        self.transmit();
        Ok(())
    }

    fn flush_or_write(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let remote = self.arena.remote(Zone::Writable, u.arbitrary()?);
        let kind: u8 = u.arbitrary()?;
        let level = if kind & 2 == 0 { FlushLevel::Range } else { FlushLevel::Region };
        let (placement, length) = (FlushPlacement::GLOBAL_VISIBILITY, u32::from(kind));
        let (op, data): (_, &[u8]) = match kind & 1 {
            0 => (SendOp::AtomicWrite { remote }, &[9; 8]),
            _ => (SendOp::Flush { remote, length, placement, level }, &[]),
        };
        let flags = SendFlags::from_bits_truncate((kind >> 2).into());
        let data = if data.is_empty() { SendData::Sges(&[]) } else { SendData::Inline(data) };
        self.post(op, flags, data);
        Ok(())
    }

    fn post(&mut self, op: SendOp, flags: SendFlags, data: SendData<'_>) {
        let wr_id = self.ledger.send_id();
        if self.qp.post_send(&SendWr { wr_id, op, flags, data, srq_number: None }).is_ok() {
            let len = match data {
                SendData::Inline(bytes) => bytes.len(),
                SendData::Sges(sges) => sges.iter().map(|sge| sge.length as usize).sum(),
            };
            self.reads.posted(wr_id, matches!(op, SendOp::Read { .. }), len);
            self.ledger.posted(wr_id, flags.contains(SendFlags::SIGNALED));
            self.arena.shard.kick(self.now, self.qp.qpn());
        }
    }

    fn change_state(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let state = match u.int_in_range(0..=15u8)? {
            0 => QpState::Err,
            1..=7 => QpState::Sqd,
            _ => QpState::Rts,
        };
        let attr = QpAttr { state, ..QpAttr::default() };
        let _ = self.arena.shard.modify_qp(self.now, self.qp.qpn(), &attr, QpAttrMask::STATE);
        Ok(())
    }

    /// Sends all that there is, and looks at it.
    fn transmit(&mut self) {
        let mut buf = [0; Shard::MAX_PACKET];
        while let Some(transmit) = self.arena.shard.poll_transmit(self.now, &mut buf) {
            let bytes = &buf[..transmit.len];
            if FlowNote::read(bytes).is_some() {
                continue;
            }
            let packet = Packet::parse(bytes).expect("what is sent is a packet");
            let (bth, info) = (packet.bth(), packet.info());
            assert_eq!((bth.dest_qpn, transmit.dest_qpn), (PEER_QPN, PEER_QPN), "{packet}");
            let len = packet.payload().len();
            assert!(info.payload.check(len, MTU.bytes()), "{packet}");
            assert!(transmit.len.is_multiple_of(4), "{packet}");
            if info.operation == Operation::ReadResponse {
                let leaks = packet.payload().contains(&SECRET);
                assert!(!leaks, "memory that was not granted was read: {packet}");
            }
            self.reads.sent(&packet);
            if is_counted(info) {
                self.sent_psn = bth.psn;
            }
        }
        let stalled = self.arena.shard.stalled_qp();
        assert_eq!(stalled, None, "it waits for what may never come");
    }

    fn poll(&mut self) {
        let mut completions = Vec::new();
        self.arena.cq.poll(usize::MAX, &mut completions);
        for wc in &completions {
            assert_eq!(wc.qpn, self.qp.qpn());
            self.ledger.completed(wc);
            self.reads.completed(wc);
        }
    }

    /// Ends it all: the rest is flushed, nothing was touched, and nothing happens afterwards.
    fn finish(mut self) -> Reads {
        self.transmit();
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let done = self.arena.shard.modify_qp(self.now, self.qp.qpn(), &attr, QpAttrMask::STATE);
        done.expect("every state leads to the error state");
        self.transmit();
        self.poll();
        self.ledger.check_flushed();
        self.arena.check();
        self.arena.shard.destroy_qp(self.qp.qpn()).expect("it is in no group");
        self.now = self.now.plus_nanos(1 << 40);
        self.arena.shard.handle_timeout(self.now);
        let mut buf = [0; Shard::MAX_PACKET];
        assert_eq!(self.arena.shard.poll_transmit(self.now, &mut buf), None);
        self.poll();
        self.reads
    }
}

/// Whether a packet's PSN is one of our own requests'.
fn is_counted(info: &OpcodeInfo) -> bool {
    info.is_request()
}

#[cfg(test)]
mod tests {
    use super::super::corpus;
    use super::*;

    #[test]
    fn the_stored_inputs_ask_for_gaps_of_reads_and_mend_them() {
        let reached: Vec<_> = corpus("completer").filter_map(|input| run(&input, true)).collect();
        let gaps = reached.iter().filter(|reads| reads.gaps_asked > 0).count();
        let mended = reached.iter().filter(|reads| reads.mended > 0).count();
        assert!(gaps >= 3 && mended >= 1, "{gaps} inputs ask for gaps, {mended} mend one");
    }
}
