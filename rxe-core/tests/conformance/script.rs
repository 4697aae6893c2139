//! The words that scripts are made of.

use std::fmt;

use gid_table::Gid;
use rxe_core::mem::{AccessFlags, MemoryTable};
use rxe_core::qp::{AddressVector, Mtu, QpAttr, QpCaps, QpState, QpType, steps_to_rts};
use rxe_core::wc::WcStatus;
use rxe_core::wq::{RemoteAddr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{AsyncEvent, CongestionConfig, Counter, DeviceConfig, Path, Seed};
use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt, Reth,
    Xrceth,
};
use rxe_wire::{
    Headers, Msn, NakCode, Opcode, PKey, Packet, Psn, Qpn, RKey, RnrTimer, Service, Syndrome,
};

use crate::common::Host;

/// The path MTU of all scripts.
pub const MTU: usize = 256;
/// The first PSN that the host sends: the script's 0.
pub const HOST_PSN: Psn = Psn::new(0xff_fffe);
/// The first PSN that the peer sends.
pub const PEER_PSN: Psn = Psn::new(0xff_fffd);
/// The QP that the test plays.
pub const PEER_QPN: Qpn = Qpn::new(0x02_0042);

pub const MS: u64 = 1_000_000;
/// The ACK timeout of all scripts, exponent 14.
pub const ACK_TIMEOUT: u64 = 4096 << 14;
/// The short timer before a round trip has been measured.
pub const EARLY: u64 = 20 * MS;
/// `retry_cnt` of all scripts.
pub const RETRY_CNT: u64 = 3;

/// A packet as scripts write it; its PSN counts from the first one of its stream.
#[derive(Clone, PartialEq, Eq)]
pub struct P {
    opcode: Opcode,
    psn: i32,
    ack_req: bool,
    solicited: bool,
    fecn: bool,
    becn: bool,
    srqn: Option<u32>,
    reth: Option<Reth>,
    atomic: Option<AtomicEth>,
    aeth: Option<(Syndrome, u32)>,
    original: Option<u64>,
    imm: Option<u32>,
    inv: Option<RKey>,
    feth: Option<Feth>,
    payload: Vec<u8>,
}

impl fmt::Debug for P {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} psn {}", self.opcode, self.psn)?;
        if self.ack_req {
            write!(f, " A")?;
        }
        if self.solicited {
            write!(f, " SE")?;
        }
        if self.fecn {
            write!(f, " FECN")?;
        }
        if self.becn {
            write!(f, " BECN")?;
        }
        if let Some(srqn) = self.srqn {
            write!(f, " SRQ {srqn}")?;
        }
        if let Some(reth) = self.reth {
            write!(f, " va 0x{:x} rkey {} len {}", reth.va, reth.rkey, reth.len)?;
        }
        if let Some(atomic) = self.atomic {
            write!(f, " {atomic:x?}")?;
        }
        if let Some((syndrome, msn)) = self.aeth {
            write!(f, " [{syndrome}] msn {msn}")?;
        }
        if let Some(original) = self.original {
            write!(f, " original 0x{original:x}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm 0x{imm:x}")?;
        }
        if let Some(feth) = self.feth {
            write!(f, " {feth:?}")?;
        }
        if let Some(rkey) = self.inv {
            write!(f, " invalidates {rkey}")?;
        }
        let head = &self.payload[..self.payload.len().min(8)];
        write!(f, " {} bytes {head:02x?}", self.payload.len())
    }
}

impl P {
    fn new(opcode: Opcode, psn: i32, payload: &[u8]) -> Self {
        let bth = Bth::default();
        let (ack_req, solicited, fecn, becn) = (bth.ack_req, bth.solicited, bth.fecn, bth.becn);
        let (reth, atomic, aeth, original, imm) = (None, None, None, None, None);
        let payload = payload.to_vec();
        Self {
            opcode,
            psn,
            ack_req,
            solicited,
            fecn,
            becn,
            srqn: None,
            reth,
            atomic,
            aeth,
            original,
            imm,
            inv: None,
            feth: None,
            payload,
        }
    }

    /// Asks for an acknowledgement.
    pub fn a(mut self) -> Self {
        self.ack_req = true;
        self
    }

    /// A router has marked it.
    pub fn fecn(mut self) -> Self {
        self.fecn = true;
        self
    }

    /// The same packet of UC.
    pub fn uc(mut self) -> Self {
        self.opcode = self.opcode.in_service(Service::Uc);
        self
    }

    /// The same on an extended reliable connection; a response.
    pub fn xrc(mut self) -> Self {
        self.opcode = self.opcode.in_service(Service::Xrc);
        self
    }

    /// The same on an extended reliable connection; a request to this shared receive queue.
    pub fn xrc_to(mut self, srqn: u32) -> Self {
        self.srqn = Some(srqn);
        self.xrc()
    }

    /// Asks for a solicited event.
    pub fn se(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Bytes that a READ request asks for.
    pub fn asked(&self) -> u32 {
        self.reth.map_or(0, |reth| reth.len)
    }

    pub fn psn(&self) -> i32 {
        self.psn
    }

    /// The same packet, about `to` instead of `from`.
    pub fn moved(mut self, from: RemoteAddr, to: RemoteAddr) -> Self {
        if let Some(reth) = self.reth.as_mut().filter(|reth| reth.va == from.addr) {
            (reth.va, reth.rkey) = (to.addr, to.rkey);
        }
        self
    }

    pub fn asks(&self) -> bool {
        self.ack_req
    }

    pub fn imm(mut self, imm: u32) -> Self {
        self.imm = Some(imm);
        self
    }

    fn reth(mut self, remote: RemoteAddr, len: u32) -> Self {
        self.reth = Some(Reth { va: remote.addr, rkey: remote.rkey, len });
        self
    }

    fn aeth(mut self, syndrome: Syndrome, msn: u32) -> Self {
        self.aeth = Some((syndrome, msn));
        self
    }

    /// The bytes from BTH to pad.
    fn bytes(&self, base: Psn, dest_qpn: Qpn) -> Vec<u8> {
        let pad = self.payload.len().wrapping_neg() & 3;
        let bth = Bth {
            opcode: self.opcode,
            solicited: self.solicited,
            fecn: self.fecn,
            becn: self.becn,
            pad: pad as u8,
            pkey: PKey::DEFAULT,
            dest_qpn,
            ack_req: self.ack_req,
            psn: base.plus(self.psn as u32),
            ..Bth::default()
        };
        let aeth = self.aeth.map(|(syndrome, msn)| Aeth { syndrome, msn: Msn::new(msn) });
        let (reth, imm) = (self.reth, self.imm.map(ImmDt));
        let (atomic, original) = (self.atomic, self.original);
        let atomic_ack = original.map(|original| AtomicAckEth { original });
        let xrceth = self.srqn.map(|srqn| Xrceth { srqn, reserved: 0 });
        let (ieth, feth) = (self.inv.map(Ieth), self.feth);
        let headers = Headers {
            xrceth,
            feth,
            reth,
            atomic,
            aeth,
            atomic_ack,
            imm,
            ieth,
            ..Headers::new(bth)
        };
        let mut bytes = vec![0; 64];
        let len = headers.write(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes.extend_from_slice(&self.payload);
        bytes.resize(bytes.len() + pad, 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Self {
        let packet = Packet::parse(bytes).unwrap();
        let bth = packet.bth();
        let base = match bth.opcode {
            Opcode::CNP => Psn::new(0),
            _ if packet.info().is_response() => PEER_PSN,
            _ => HOST_PSN,
        };
        Self {
            opcode: bth.opcode,
            psn: bth.psn.distance_from(base),
            ack_req: bth.ack_req,
            solicited: bth.solicited,
            fecn: bth.fecn,
            becn: bth.becn,
            srqn: packet.xrceth().map(|xrceth| xrceth.srqn),
            reth: packet.reth(),
            atomic: packet.atomic_eth(),
            aeth: packet.aeth().map(|aeth| (aeth.syndrome, aeth.msn.get())),
            original: packet.atomic_ack_eth().map(|ack| ack.original),
            imm: packet.imm(),
            inv: packet.ieth().map(|ieth| ieth.0),
            feth: packet.feth(),
            payload: packet.payload().to_vec(),
        }
    }
}

macro_rules! data_packets {
    ($($name:ident => $opcode:ident),* $(,)?) => {
        $(pub fn $name(psn: i32, payload: &[u8]) -> P { P::new(Opcode::$opcode, psn, payload) })*
    };
}

data_packets! {
    send_first => RC_SEND_FIRST,
    send_middle => RC_SEND_MIDDLE,
    send_last => RC_SEND_LAST,
    send_only => RC_SEND_ONLY,
    write_middle => RC_WRITE_MIDDLE,
    write_last => RC_WRITE_LAST,
}

pub fn send_only_imm(psn: i32, payload: &[u8], imm: u32) -> P {
    P::new(Opcode::RC_SEND_ONLY_WITH_IMM, psn, payload).imm(imm)
}

pub fn send_last_imm(psn: i32, payload: &[u8], imm: u32) -> P {
    P::new(Opcode::RC_SEND_LAST_WITH_IMM, psn, payload).imm(imm)
}

pub fn send_only_inv(psn: i32, payload: &[u8], rkey: RKey) -> P {
    P { inv: Some(rkey), ..P::new(Opcode::RC_SEND_ONLY_WITH_INV, psn, payload) }
}

pub fn send_last_inv(psn: i32, payload: &[u8], rkey: RKey) -> P {
    P { inv: Some(rkey), ..P::new(Opcode::RC_SEND_LAST_WITH_INV, psn, payload) }
}

pub fn write_first(psn: i32, to: RemoteAddr, len: u32, payload: &[u8]) -> P {
    P::new(Opcode::RC_WRITE_FIRST, psn, payload).reth(to, len)
}

pub fn write_only(psn: i32, to: RemoteAddr, payload: &[u8]) -> P {
    P::new(Opcode::RC_WRITE_ONLY, psn, payload).reth(to, payload.len() as u32)
}

pub fn write_only_of(psn: i32, to: RemoteAddr, len: u32, payload: &[u8]) -> P {
    P::new(Opcode::RC_WRITE_ONLY, psn, payload).reth(to, len)
}

pub fn write_only_imm(psn: i32, to: RemoteAddr, payload: &[u8], imm: u32) -> P {
    let opcode = Opcode::RC_WRITE_ONLY_WITH_IMM;
    P::new(opcode, psn, payload).reth(to, payload.len() as u32).imm(imm)
}

pub fn write_last_imm(psn: i32, payload: &[u8], imm: u32) -> P {
    P::new(Opcode::RC_WRITE_LAST_WITH_IMM, psn, payload).imm(imm)
}

/// A READ request, which always asks for an acknowledgement here.
pub fn read(psn: i32, from: RemoteAddr, len: u32) -> P {
    P::new(Opcode::RC_READ_REQUEST, psn, &[]).reth(from, len).a()
}

/// An ATOMIC WRITE, which always asks for an acknowledgement here.
pub fn atomic_write(psn: i32, to: RemoteAddr, payload: &[u8]) -> P {
    P::new(Opcode::RC_ATOMIC_WRITE, psn, payload).reth(to, payload.len() as u32).a()
}

/// A FLUSH of a range, which always asks for an acknowledgement here.
pub fn flush(psn: i32, of: RemoteAddr, len: u32, placement: FlushPlacement) -> P {
    let feth = Some(Feth { placement, ..Feth::default() });
    P { feth, ..P::new(Opcode::RC_FLUSH, psn, &[]) }.reth(of, len).a()
}

/// A FLUSH with another selectivity than that of a range.
pub fn flush_of(packet: P, selectivity: FlushSelectivity) -> P {
    let feth = packet.feth.map(|feth| Feth { selectivity, ..feth });
    P { feth, ..packet }
}

/// A compare-and-swap, which always asks for an acknowledgement here.
pub fn cas(psn: i32, to: RemoteAddr, compare: u64, swap_or_add: u64) -> P {
    let atomic = Some(AtomicEth { va: to.addr, rkey: to.rkey, swap_or_add, compare });
    P { atomic, ..P::new(Opcode::RC_COMPARE_SWAP, psn, &[]) }.a()
}

/// A fetch-and-add, which always asks for an acknowledgement here.
pub fn faa(psn: i32, to: RemoteAddr, add: u64) -> P {
    P { opcode: Opcode::RC_FETCH_ADD, ..cas(psn, to, 0, add) }
}

/// The response to an atomic: what the memory held.
pub fn atomic_ack(psn: i32, msn: u32, original: u64) -> P {
    let original = Some(original);
    P { opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE, original, ..ack(psn, msn) }
}

/// The refusal of an atomic, in the form that some responders give it (R39).
pub fn atomic_nak(psn: i32, code: NakCode, msn: u32) -> P {
    P { aeth: nak(psn, code, msn).aeth, ..atomic_ack(psn, msn, 0) }
}

pub fn ack(psn: i32, msn: u32) -> P {
    P::new(Opcode::RC_ACKNOWLEDGE, psn, &[]).aeth(Syndrome::ACK_UNLIMITED, msn)
}

pub fn nak(psn: i32, code: NakCode, msn: u32) -> P {
    P::new(Opcode::RC_ACKNOWLEDGE, psn, &[]).aeth(Syndrome::nak(code), msn)
}

/// The NAK that names `psn` as the one expected.
pub fn nak_seq(psn: i32, msn: u32) -> P {
    nak(psn, NakCode::PsnSequenceError, msn)
}

pub fn rnr(psn: i32, timer: u8, msn: u32) -> P {
    P::new(Opcode::RC_ACKNOWLEDGE, psn, &[]).aeth(Syndrome::rnr(RnrTimer::new(timer)), msn)
}

/// A congestion notification packet.
pub fn cnp() -> P {
    P { becn: true, ..P::new(Opcode::CNP, 0, &[0; 16]) }
}

pub fn resp_first(psn: i32, msn: u32, payload: &[u8]) -> P {
    P::new(Opcode::RC_READ_RESPONSE_FIRST, psn, payload).aeth(Syndrome::ACK_UNLIMITED, msn)
}

pub fn resp_middle(psn: i32, payload: &[u8]) -> P {
    P::new(Opcode::RC_READ_RESPONSE_MIDDLE, psn, payload)
}

pub fn resp_last(psn: i32, msn: u32, payload: &[u8]) -> P {
    P::new(Opcode::RC_READ_RESPONSE_LAST, psn, payload).aeth(Syndrome::ACK_UNLIMITED, msn)
}

pub fn resp_only(psn: i32, msn: u32, payload: &[u8]) -> P {
    P::new(Opcode::RC_READ_RESPONSE_ONLY, psn, payload).aeth(Syndrome::ACK_UNLIMITED, msn)
}

/// A response that says in its AETH that something went wrong.
pub fn resp_only_nak(psn: i32, code: NakCode) -> P {
    P::new(Opcode::RC_READ_RESPONSE_ONLY, psn, &[1]).aeth(Syndrome::nak(code), 0)
}

/// Memory of the peer that the host's requests name; the test only compares it.
pub fn far(offset: u64) -> RemoteAddr {
    RemoteAddr { addr: 0x7000_0000 + offset, rkey: RKey::new(0xabcd_ef01) }
}

/// The host under test, and the wire to it.
pub struct Script {
    pub host: Host,
    /// Addressing of the packets that come in.
    pub path: Path,
    pub attr: QpAttr,
}

impl Script {
    /// A QP in RTS.
    pub fn rts() -> Self {
        Self::with(|_| {})
    }

    /// A QP in RTS, made with other attributes than usual.
    pub fn with(change: impl FnOnce(&mut QpAttr)) -> Self {
        let mut script = Self::reset(change);
        script.enter_init();
        script.enter_rtr();
        script.enter_rts();
        script
    }

    /// A QP in RTS on a device with other congestion control than usual.
    pub fn with_congestion(congestion: CongestionConfig) -> Self {
        let config = DeviceConfig { congestion, ..DeviceConfig::new(Seed::for_test(1)) };
        let mut script = Self::of(QpType::Rc, config, |_| {});
        script.enter_init();
        script.enter_rtr();
        script.enter_rts();
        script
    }

    /// A QP of UC in RTS.
    pub fn uc() -> Self {
        let mut script = Self::of_type(QpType::Uc, |_| {});
        script.enter_init();
        script.enter_rtr();
        script.enter_rts();
        script
    }

    /// A QP in RESET.
    pub fn reset(change: impl FnOnce(&mut QpAttr)) -> Self {
        Self::of_type(QpType::Rc, change)
    }

    /// A QP of any service in RESET.
    pub fn of_type(qp_type: QpType, change: impl FnOnce(&mut QpAttr)) -> Self {
        Self::of(qp_type, DeviceConfig::new(Seed::for_test(1)), change)
    }

    fn of(qp_type: QpType, config: DeviceConfig, change: impl FnOnce(&mut QpAttr)) -> Self {
        let caps = QpCaps { max_send_wr: 512, max_inline_data: 64, ..QpCaps::default() };
        let host = Host::with_config(1, qp_type, caps, config);
        let peer = Gid::from_ip([10, 0, 0, 2].into());
        let mut attr = QpAttr {
            path_mtu: Mtu::from_bytes(MTU).unwrap(),
            rq_psn: PEER_PSN,
            sq_psn: HOST_PSN,
            dest_qpn: PEER_QPN,
            access: AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC,
            av: AddressVector::new(peer, 0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: RETRY_CNT as u8,
            rnr_retry: 3,
            ..QpAttr::default()
        };
        change(&mut attr);
        host.pattern(0, 1 << 16, 0x5a);
        let path = Path::new(peer, host.gid);
        Self { host, path, attr }
    }

    pub fn enter_init(&mut self) {
        self.step(0);
    }

    pub fn enter_rtr(&mut self) {
        self.step(1);
    }

    pub fn enter_rts(&mut self) {
        self.step(2);
    }

    fn step(&mut self, number: usize) {
        let (state, mask) = steps_to_rts(self.host.qp.qp_type())[number];
        self.host.modify(QpAttr { state, ..self.attr }, mask);
    }

    /// One packet in.
    pub fn rx(&mut self, packet: &P) -> &mut Self {
        let base = match packet.opcode {
            Opcode::CNP => Psn::new(0),
            opcode if opcode.is_response() => HOST_PSN,
            _ => PEER_PSN,
        };
        let bytes = packet.bytes(base, self.host.qp.qpn());
        self.rx_bytes(&bytes)
    }

    /// Bytes in, from BTH on.
    pub fn rx_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.host.shard.handle_packet(self.host.now, &self.path, bytes);
        self
    }

    /// The bytes of a request as they would come in, to be changed.
    pub fn request_bytes(&self, packet: &P) -> Vec<u8> {
        packet.bytes(PEER_PSN, self.host.qp.qpn())
    }

    /// All packets that leave now; of each, the addressing and what all have in common is checked.
    /// What asks the peer how far it is (`credit.rs`) is left out.
    pub fn sent(&mut self) -> Vec<P> {
        let check = |(transmit, bytes): &(rxe_core::Transmit, Vec<u8>)| {
            assert_eq!(transmit.dest_qpn, PEER_QPN);
            assert_eq!(transmit.path.destination, self.path.source);
            let packet = Packet::parse(bytes).unwrap();
            let bth = packet.bth();
            assert_eq!((bth.dest_qpn, bth.pkey, bth.tver), (PEER_QPN, PKey::DEFAULT, 0));
            assert_eq!((bth.reserved6, bth.reserved7), (0, 0), "R17: reserved bits are sent as 0");
            assert!(packet.pad().iter().all(|&byte| byte == 0), "R59: the pad is zeros");
            assert_eq!(bytes.len() % 4, 0);
        };
        let mut packets = self.host.transmit();
        packets.retain(|(_, bytes)| bytes[0] < 0xc0);
        packets.iter().for_each(check);
        packets.iter().map(|(_, bytes)| P::parse(bytes)).collect()
    }

    /// Exactly these packets out, then nothing.
    #[track_caller]
    pub fn tx<const N: usize>(&mut self, expected: [P; N]) -> &mut Self {
        assert_eq!(self.sent(), expected, "left: what was sent");
        self
    }

    /// Nothing out.
    #[track_caller]
    pub fn quiet(&mut self) -> &mut Self {
        self.tx([])
    }

    /// Time passes, and timers fire on the way.
    pub fn wait(&mut self, nanos: u64) -> &mut Self {
        self.host.now = self.host.now.plus_nanos(nanos);
        self.host.shard.handle_timeout(self.host.now);
        self
    }

    /// Exactly these completions since last asked: request and status.
    #[track_caller]
    pub fn done<const N: usize>(&mut self, expected: [(u64, WcStatus); N]) -> &mut Self {
        let all: Vec<_> = self.host.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(all, expected, "left: the completions");
        self
    }

    /// Exactly these events since last asked.
    #[track_caller]
    pub fn events<const N: usize>(&mut self, expected: [AsyncEvent; N]) -> &mut Self {
        let events = self.host.device.events();
        let all: Vec<_> = std::iter::from_fn(|| events.take()).collect();
        assert_eq!(all, expected, "left: the events");
        self
    }

    /// A counter of the shard.
    pub fn count(&self, counter: Counter) -> u64 {
        self.host.shard.counters().get(counter)
    }

    pub fn qpn(&self) -> Qpn {
        self.host.qp.qpn()
    }

    pub fn state(&self) -> QpState {
        self.host.qp.state()
    }

    /// Bytes of the host's memory.
    pub fn mem(&self, offset: usize, len: usize) -> Vec<u8> {
        self.host.bytes(offset, len)
    }

    /// Posts a signaled SEND of the host's first bytes.
    pub fn send(&mut self, wr_id: u64, length: u32) -> &mut Self {
        self.host.post(wr_id, SendOp::Send { imm: None }, 0, length);
        self
    }

    /// Posts a signaled WRITE of the host's first bytes to [`far`] memory.
    pub fn write(&mut self, wr_id: u64, length: u32) -> &mut Self {
        self.host.post(wr_id, SendOp::Write { remote: far(0), imm: None }, 0, length);
        self
    }

    /// Posts a signaled READ of [`far`] memory to [`LANDING`].
    pub fn read(&mut self, wr_id: u64, length: u32) -> &mut Self {
        self.host.post(wr_id, SendOp::Read { remote: far(0) }, LANDING, length);
        self
    }

    /// Posts a signaled compare-and-swap of [`far`] memory, with the result at [`LANDING`].
    pub fn cas(&mut self, wr_id: u64, compare: u64, swap: u64) -> &mut Self {
        self.host.post(wr_id, SendOp::CompareSwap { remote: far(0), compare, swap }, LANDING, 8);
        self
    }

    /// Posts a signaled fetch-and-add to [`far`] memory, with the result at [`LANDING`].
    pub fn faa(&mut self, wr_id: u64, add: u64) -> &mut Self {
        self.host.post(wr_id, SendOp::FetchAdd { remote: far(0), add }, LANDING, 8);
        self
    }

    /// Posts a signaled request about the host's own keys.
    pub fn local(&mut self, wr_id: u64, op: SendOp) -> &mut Self {
        self.local_with(wr_id, op, SendFlags::SIGNALED)
    }

    /// Posts a request about the host's own keys.
    pub fn local_with(&mut self, wr_id: u64, op: SendOp, flags: SendFlags) -> &mut Self {
        self.host.post_wr(&SendWr {
            wr_id,
            op,
            flags,
            data: SendData::Sges(&[]),
            srq_number: None,
        });
        self
    }

    /// The memory table of the host.
    pub fn memory(&self) -> &MemoryTable {
        self.host.device.memory()
    }

    /// A number in the host's memory.
    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.mem(offset, 8).try_into().unwrap())
    }

    /// Puts a number into the host's memory.
    pub fn set_word(&self, offset: usize, value: u64) {
        self.host.buf.write_at(offset, &value.to_ne_bytes()).unwrap();
    }

    /// Posts a request with other flags than signaled.
    pub fn post_with(&mut self, wr_id: u64, op: SendOp, flags: SendFlags, len: u32) -> &mut Self {
        let sges = [self.host.sge(0, len)];
        self.host.post_wr(&SendWr {
            wr_id,
            op,
            flags,
            data: SendData::Sges(&sges),
            srq_number: None,
        });
        self
    }

    /// Posts a receive of `length` bytes at [`INBOX`].
    pub fn recv(&mut self, wr_id: u64, length: u32) -> &mut Self {
        self.host.post_recv(wr_id, INBOX, length);
        self
    }
}

/// Where READs put what they read.
pub const LANDING: usize = 0x4_0000;
/// Where receives and WRITEs of the peer put their bytes.
pub const INBOX: usize = 0x8_0000;

/// What refuses a request that is malformed or not allowed.
pub const INVALID: NakCode = NakCode::InvalidRequest;
/// What refuses an access to memory.
pub const ACCESS: NakCode = NakCode::RemoteAccessError;
/// What refuses a request that fails on the responder's side.
pub const OPERATION: NakCode = NakCode::RemoteOperationalError;

/// The host's [`INBOX`], as its peer addresses it.
pub fn inbox(s: &Script) -> RemoteAddr {
    s.host.remote(INBOX)
}

pub use WcStatus::{
    BadRespErr, LocAccessErr, LocLenErr, LocProtErr, LocQpOpErr, MwBindErr, RemAccessErr,
    RemInvReqErr, RemOpErr, RetryExcErr, RnrRetryExcErr, Success, WrFlushErr,
};

/// `len` bytes that differ from their neighbours.
pub fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}
