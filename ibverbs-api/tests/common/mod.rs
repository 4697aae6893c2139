//! Two ends of a connection over the loopback interface, and what tests do with them.

#![allow(dead_code, reason = "each test binary uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![allow(unreachable_pub, reason = "a module of several binaries")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_api::*;

/// Longer than anything takes on a busy machine; a test that waits so long has failed.
pub const LONG: Duration = Duration::from_secs(30);

pub const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The family of the addresses that a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
}

pub fn options() -> OpenOptions {
    OpenOptions::from_env().unwrap()
}

pub fn open() -> Context {
    open_with(options())
}

pub fn open_with(options: OpenOptions) -> Context {
    Device::by_name("rxe_lo").unwrap().open_with(options).unwrap()
}

/// The device's own GID of a family.
pub fn gid(context: &Context, family: Family) -> GidEntry {
    let wanted =
        |entry: &GidEntry| entry.owned && (entry.gid.to_ipv4().is_some()) == (family == Family::V4);
    context.query_gid_table().unwrap().into_iter().find(wanted).expect("lo has 127.0.0.1 and ::1")
}

/// How two ends are made.
#[derive(Clone, Debug)]
pub struct Setup {
    pub qp_type: QpType,
    pub family: Family,
    pub mtu: Mtu,
    pub caps: QpCaps,
    pub cqe: u32,
    pub signal_all: bool,
    /// A second by default: where machines are busy, threads wait for hundreds of milliseconds.
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            family: Family::V4,
            mtu: Mtu::M1024,
            caps: QpCaps::default(),
            cqe: 1024,
            signal_all: false,
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
        }
    }
}

/// One end: a queue pair with a completion queue for both directions.
#[derive(Debug)]
pub struct End {
    pub qp: QueuePair,
    pub cq: CompletionQueue,
    pub pd: ProtectionDomain,
    pub context: Context,
}

impl End {
    pub fn new(context: &Context, setup: &Setup, channel: Option<&CompletionChannel>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(setup.cqe, channel, 0).unwrap();
        let mut init = QpInit::new(setup.qp_type, &cq, &cq);
        init.caps = setup.caps;
        init.signal_all = setup.signal_all;
        let qp = pd.create_qp(init).unwrap();
        Self { qp, cq, pd, context: context.clone() }
    }

    pub fn register(&self, len: usize) -> MemoryRegion {
        self.pd.register(DmaBuf::zeroed(len), ALL).unwrap()
    }

    pub fn recv(&self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(RecvWr { wr_id, sges }).unwrap();
    }

    /// Posts a signaled request.
    pub fn post(&self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.qp.post_send(&wr(wr_id, op, SendFlags::SIGNALED, SendData::Sges(sges))).unwrap();
    }

    /// Waits for a completion that succeeded.
    pub fn done(&self) -> WorkCompletion {
        let completion = self.cq.wait_one(LONG).unwrap();
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
        completion
    }
}

pub fn wr(wr_id: u64, op: SendOp, flags: SendFlags, data: SendData<'_>) -> SendWr<'_> {
    SendWr { wr_id, op, flags, data, srq_number: None }
}

pub const SEND: SendOp = SendOp::Send { imm: None };

pub fn attr_to(setup: &Setup, own: &Context, dgid: Gid, peer: Qpn) -> ConnectAttr {
    let av = AddressVector::new(dgid, gid(own, setup.family).gid_index);
    ConnectAttr {
        access: ALL | AccessFlags::FLUSH_GLOBAL,
        timeout: setup.timeout,
        retry_cnt: setup.retry_cnt,
        rnr_retry: setup.rnr_retry,
        min_rnr_timer: setup.min_rnr_timer,
        sq_psn: Psn::new(0xff_fff0),
        rq_psn: Psn::new(0xff_fff0),
        ..ConnectAttr::new(av, peer, setup.mtu)
    }
}

/// Connects two queue pairs. The PSNs wrap after 16 packets.
pub fn connect(setup: &Setup, one: (&Context, &QueuePair), two: (&Context, &QueuePair)) {
    for ((context, qp), (peer_context, peer)) in [(one, two), (two, one)] {
        let dgid = gid(peer_context, setup.family).gid;
        qp.connect(&attr_to(setup, context, dgid, peer.qpn())).unwrap();
    }
}

/// Two connected ends, each with a context of its own.
pub fn pair(setup: &Setup) -> (End, End) {
    let (one, two) = (End::new(&open(), setup, None), End::new(&open(), setup, None));
    connect(setup, (&one.context, &one.qp), (&two.context, &two.qp));
    (one, two)
}

/// Bytes that tell where they stand.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64: fast, and no two words near each other are alike.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub fn read(buffer: &Arc<dyn Backing>, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.read_at(offset, &mut bytes).unwrap();
    bytes
}

/// Compares without printing megabytes.
pub fn assert_same(got: &[u8], want: &[u8], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let differ = got.iter().zip(want).position(|(a, b)| a != b);
    assert_eq!(differ, None, "{what}: first difference of {} bytes", want.len());
}

/// Looks again and again, without polling any queue, until `is_so`.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    start.elapsed()
}
