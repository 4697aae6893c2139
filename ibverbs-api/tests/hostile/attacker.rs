//! The attacker: a UDP socket, and packets that obey no rule.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU8, Ordering};

use ibverbs_api::{Gid, QKey, Qpn, RKey};
use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, Xrceth,
};
use rxe_wire::icrc::IcrcFlow;
use rxe_wire::opcode::ExtHeaders;
use rxe_wire::{Headers, Msn, NakCode, Opcode, PKey, Packet, Psn, Syndrome, SyndromeKind};

const PORT: u16 = 4791;
const VICTIM: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ICRC_LEN: usize = 4;
/// The longest that UDP over IPv4 carries.
pub const MAX_UDP: usize = 65_507;

/// A host of one address, which knows how packets look and does what it likes.
#[derive(Debug)]
pub struct Attacker {
    socket: UdpSocket,
    address: Ipv4Addr,
    port: u16,
}

impl Attacker {
    /// One on an address that no other has.
    pub fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let address = Ipv4Addr::new(127, 77, 0, NEXT.fetch_add(1, Ordering::Relaxed));
        Self::bind(address, PORT)
    }

    /// One that only sends, from a port that the system chooses.
    pub fn of_any_port() -> Self {
        Self::bind(Ipv4Addr::new(127, 77, 1, 1), 0)
    }

    fn bind(address: Ipv4Addr, port: u16) -> Self {
        // Not connected, so that Linux numbers its packets 0, as urxe does.
        let socket = UdpSocket::bind((address, port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        Self { socket, address, port }
    }

    pub fn gid(&self) -> Gid {
        Gid::from_ip(self.address.into())
    }

    /// Sends a packet, from BTH to pad, with the iCRC that it must have.
    pub fn send(&self, packet: &[u8]) {
        let icrc = IcrcFlow::v4(self.address, VICTIM, self.port).icrc(0, packet);
        self.send_raw(&[packet, &icrc.to_le_bytes()].concat());
    }

    /// Sends bytes as they are.
    pub fn send_raw(&self, bytes: &[u8]) {
        let to = SocketAddr::from((VICTIM, PORT));
        assert_eq!(self.socket.send_to(bytes, to).unwrap(), bytes.len());
    }

    /// All that has come so far, each from BTH to pad.
    pub fn take(&self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; MAX_UDP];
        let mut all = Vec::new();
        while let Ok(len) = self.socket.recv(&mut buffer) {
            all.push(buffer[..len - ICRC_LEN].to_vec());
        }
        all
    }

    /// The codes of the NAKs among what has come, and how many packets of other kinds there were.
    pub fn take_naks(&self) -> (Vec<NakCode>, usize) {
        let all = self.take();
        let codes: Vec<_> = all
            .iter()
            .filter_map(|bytes| match Packet::parse(bytes).unwrap().aeth()?.syndrome.kind() {
                SyndromeKind::Nak(code) => Some(code),
                _ => None,
            })
            .collect();
        let others = all.len() - codes.len();
        (codes, others)
    }
}

/// A packet to be made: any opcode, with the headers that it needs filled from here.
#[derive(Clone, Copy, Debug)]
pub struct Forged {
    pub opcode: u8,
    pub qpn: Qpn,
    pub psn: Psn,
    pub ack_req: bool,
    pub pad: u8,
    pub tver: u8,
    pub pkey: PKey,
    pub qkey: QKey,
    /// Of XRC: the shared receive queue.
    pub srqn: u32,
    pub reth: Reth,
    /// Of IETH: the key that is to be made invalid.
    pub invalidate: RKey,
    pub syndrome: Syndrome,
    /// What an atomic adds, or puts in place of a zero.
    pub operand: u64,
    /// Bytes behind the headers, the pad among them.
    pub tail: usize,
}

impl Forged {
    pub fn new(opcode: u8, qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            qpn,
            psn,
            ack_req: true,
            pad: 0,
            tver: 0,
            pkey: PKey::DEFAULT,
            qkey: QKey::new(0),
            srqn: 0,
            reth: Reth { va: 0, rkey: RKey::new(0), len: 0 },
            invalidate: RKey::new(0),
            syndrome: Syndrome::ACK_UNLIMITED,
            operand: 0x5a5a_5a5a_5a5a_5a5a,
            tail: 0,
        }
    }

    /// The byte that payloads are made of.
    pub const FILL: u8 = 0x5a;

    /// The bytes from BTH to pad; an opcode that nobody defined gets forty bytes of headers.
    pub fn bytes(&self) -> Vec<u8> {
        let opcode = Opcode::new(self.opcode);
        let bth = Bth {
            opcode,
            pad: self.pad,
            tver: self.tver,
            pkey: self.pkey,
            dest_qpn: self.qpn,
            ack_req: self.ack_req,
            psn: self.psn,
            ..Bth::default()
        };
        let mut bytes = vec![0; 128];
        let len = match opcode.info() {
            Some(info) => self.headers(bth, info.headers).write(&mut bytes).unwrap(),
            None => {
                bth.write(&mut bytes).unwrap();
                Bth::LEN + 40
            }
        };
        bytes.truncate(len);
        bytes.resize(len + self.tail, Self::FILL);
        bytes
    }

    fn headers(&self, bth: Bth, needed: ExtHeaders) -> Headers {
        let has = |header| needed.contains(header);
        let Reth { va, rkey, .. } = self.reth;
        let atomic = AtomicEth { va, rkey, swap_or_add: self.operand, compare: 0 };
        let deth = Deth { qkey: self.qkey, source_qpn: Qpn::new(0x77), reserved: 0 };
        let aeth = Aeth { syndrome: self.syndrome, msn: Msn::new(1) };
        Headers {
            rdeth: has(ExtHeaders::RDETH).then(Rdeth::default),
            deth: has(ExtHeaders::DETH).then_some(deth),
            xrceth: has(ExtHeaders::XRCETH).then_some(Xrceth { srqn: self.srqn, reserved: 0 }),
            feth: has(ExtHeaders::FETH).then(Feth::default),
            reth: has(ExtHeaders::RETH).then_some(self.reth),
            atomic: has(ExtHeaders::ATOMIC_ETH).then_some(atomic),
            aeth: has(ExtHeaders::AETH).then_some(aeth),
            atomic_ack: has(ExtHeaders::ATOMIC_ACK_ETH).then(AtomicAckEth::default),
            imm: has(ExtHeaders::IMM_DT).then_some(ImmDt(0xdead_beef)),
            ieth: has(ExtHeaders::IETH).then_some(Ieth(self.invalidate)),
            ..Headers::new(bth)
        }
    }
}
