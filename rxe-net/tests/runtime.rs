//! The runtime over links in memory: background threads, hand-over, forwarding, closing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant as StdInstant};

use gid_table::{Gid, GidEntry, GidTable, GidType, WantedGid};
use parking_lot::Mutex;
use rxe_core::cq::Notify;
use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys};
use rxe_core::path::{Path, Transmit};
use rxe_core::pd::PdId;
use rxe_core::qp::{AddressVector, Mtu, QpAttr, QpInit, QpType, RC_TO_RTS};
use rxe_core::wc::{WcStatus, WorkCompletion};
use rxe_core::wq::{RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{CompletionQueue, Counter, Device, DeviceConfig, Instant, Port, QueuePair, Seed};
use rxe_net::batch::TxBatch;
use rxe_net::link::{Link, LinkCounters, Sink, TransmitReport};
use rxe_net::memory::{Fabric, PortConfig, ReceiveLimits};
use rxe_net::runtime::{Clock, MemoryLinks, OpenLink, OpenLinkError, Runner};
use rxe_wire::hdr::{Bth, Reth};
use rxe_wire::{Headers, Opcode, PKey, Psn, Qpn};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);
const ACCESS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

/// A device with one shard, one queue pair and one registered buffer.
struct Host {
    device: Arc<Device>,
    runner: Arc<Runner>,
    gid: Gid,
    pd: PdId,
    cq: Arc<CompletionQueue>,
    qp: Arc<QueuePair>,
    buf: Arc<DmaBuf>,
    keys: MrKeys,
}

impl Host {
    fn new(number: u8, opener: Arc<dyn OpenLink>, buffer: usize) -> Self {
        let gid = Gid::from_ip(address(number));
        let mut gids = GidTable::new(1, 16);
        let wanted = WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true };
        gids.add(wanted).unwrap();
        let config = DeviceConfig::new(Seed::for_test(number.into()));
        let device = Device::new(config, vec![Port::new(gids, Mtu::M1024)]);
        let runner = Runner::start(device.clone(), opener).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4096, None).unwrap();
        let qp = runner.create_qp(QpInit::new(QpType::Rc, pd, &cq)).unwrap();
        let buf = Arc::new(DmaBuf::zeroed(buffer));
        let (len, memory) = (buf.len() as u64, device.memory());
        let keys = memory.register(pd, buf.clone(), 0, len, buf.addr(), ACCESS).unwrap();
        Self { device, runner, gid, pd, cq, qp, buf, keys }
    }

    fn connect(&self, peer: &Self) {
        self.connect_to(peer.gid, peer.qp.qpn(), 18);
    }

    fn connect_to(&self, gid: Gid, dest_qpn: Qpn, timeout: u8) {
        let attr = QpAttr {
            dest_qpn,
            access: ACCESS,
            av: AddressVector::new(gid, 0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        for (state, mask) in RC_TO_RTS {
            let attr = QpAttr { state, ..attr };
            self.runner.modify_qp(self.qp.qpn(), &attr, mask).unwrap();
        }
    }

    fn write(&self, wr_id: u64, peer: &Self, len: usize) {
        let remote = RemoteAddr { addr: peer.buf.addr(), rkey: peer.keys.rkey };
        self.post(wr_id, SendOp::Write { remote, imm: None }, len);
    }

    fn read(&self, wr_id: u64, peer: &Self, len: usize) {
        let remote = RemoteAddr { addr: peer.buf.addr(), rkey: peer.keys.rkey };
        self.post(wr_id, SendOp::Read { remote }, len);
    }

    fn post(&self, wr_id: u64, op: SendOp, len: usize) {
        let sges = [Sge { addr: self.buf.addr(), length: len as u32, lkey: self.keys.lkey }];
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&sges));
        self.qp.post_send(&SendWr { wr_id, op, flags, data, srq_number: None }).unwrap();
        self.runner.kick(&self.qp);
    }

    /// Looks for a completion, and runs the shard when `polls`.
    fn wait(&self, polls: bool) -> WorkCompletion {
        let start = StdInstant::now();
        let mut found = Vec::new();
        while self.cq.poll(1, &mut found) == 0 {
            assert!(start.elapsed() < LONG, "nothing completes");
            if polls {
                self.runner.poll();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        found[0]
    }

    fn fill(&self, len: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<_> =
            (0..len).map(|i| (i / 7) as u8 ^ (i as u8).wrapping_mul(seed)).collect();
        self.buf.write_at(0, &bytes).unwrap();
        bytes
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buf.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.runner.destroy_qp(self.qp.qpn()).unwrap();
        self.device.memory().deregister(self.keys).unwrap();
        self.device.dealloc_pd(self.pd);
        self.runner.close();
    }
}

/// Two hosts on a fabric whose first port is like `config` says.
fn on_fabric(config: impl Fn(PortConfig) -> PortConfig) -> (Host, Host) {
    let fabric = Fabric::new();
    let host = |number| {
        let port = fabric.add_port(config(PortConfig::numbered(number))).unwrap();
        Host::new(number, Arc::new(MemoryLinks { fabric: fabric.clone(), port }), 1 << 20)
    };
    let (one, two) = (host(1), host(2));
    one.connect(&two);
    two.connect(&one);
    (one, two)
}

#[test]
fn background_threads_alone_carry_a_message() {
    let (one, two) = on_fabric(|port| port);
    for (round, len) in [1, 1000, 1 << 20].into_iter().enumerate() {
        let bytes = one.fill(len, round as u8 * 2 + 3);
        one.write(5, &two, len);
        assert_eq!(one.wait(false).status, WcStatus::Success);
        assert!(two.bytes(len) == bytes, "{len} bytes");
    }
}

#[test]
fn the_timers_of_a_slow_and_faulty_link_are_kept_by_nobody_but_the_background() {
    let (one, two) = on_fabric(|port| PortConfig {
        latency_nanos: 200_000,
        faults: Some("drop=3%,dup=2%,reorder=3%,delay=50us..1ms,seed=4".parse().unwrap()),
        ..port
    });
    for polls in [false, true] {
        let bytes = one.fill(300_000, 9);
        one.write(5, &two, 300_000);
        assert_eq!(one.wait(polls).status, WcStatus::Success);
        assert!(two.bytes(300_000) == bytes, "polled: {polls}");
    }
    assert!(one.device.counter(Counter::early_resend) > 0 || one.runner.link_counters().faults > 0);
}

#[test]
fn polling_may_stop_at_any_moment() {
    let (one, two) = on_fabric(|port| port);
    for round in 0..200_u64 {
        let bytes = one.fill(3000, round as u8);
        one.write(round, &two, 3000);
        for _ in 0..round % 7 {
            one.runner.poll();
            two.runner.poll();
        }
        if round % 3 == 0 {
            one.runner.stop_polling();
        }
        assert_eq!(one.wait(false).wr_id, round);
        assert!(two.bytes(3000) == bytes);
    }
}

#[test]
fn closing_races_with_everything() {
    for round in 0..30 {
        let (one, two) = on_fabric(|port| port);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for host in [&one, &two] {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        host.runner.poll();
                        host.runner.stop_polling();
                        host.runner.link_counters();
                    }
                });
            }
            for id in 0..50 {
                one.write(id, &two, 10_000);
            }
            std::thread::sleep(Duration::from_micros(100 * round));
            let closers = [&one, &two, &one].map(|host| scope.spawn(|| host.runner.close()));
            for closer in closers {
                closer.join().unwrap();
            }
            // What is posted to a closed device goes nowhere, and harms nobody.
            one.write(99, &two, 100);
            one.runner.poll();
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Where the links of [`Crossed`] put packets: a queue and a bell for each slot.
type Mailboxes = Arc<Mutex<Vec<Mailbox>>>;

struct Mailbox {
    slot: u8,
    packets: VecDeque<(Path, Vec<u8>)>,
    bell: Arc<dyn Notify>,
}

/// Opens links whose every packet comes out at another slot than it is for, as one that shares a
/// coalesced buffer with a packet for that slot does.
struct Crossed {
    boxes: Mailboxes,
    sent: Arc<AtomicUsize>,
    /// Nothing arrives by itself.
    swallows: bool,
}

impl std::fmt::Debug for Crossed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Crossed")
    }
}

impl Crossed {
    fn new(swallows: bool) -> Arc<Self> {
        Arc::new(Self { boxes: Mailboxes::default(), sent: Arc::default(), swallows })
    }

    fn deliver(&self, slot: u8, path: Path, bytes: Vec<u8>) {
        let mut boxes = self.boxes.lock();
        let mailbox = boxes.iter_mut().find(|mailbox| mailbox.slot == slot).unwrap();
        mailbox.packets.push_back((path, bytes));
        let bell = mailbox.bell.clone();
        drop(boxes);
        bell.notify();
    }
}

struct CrossedLink {
    slot: u8,
    boxes: Mailboxes,
    sent: Arc<AtomicUsize>,
    swallows: bool,
}

impl OpenLink for Crossed {
    fn open(
        &self,
        _: &GidEntry,
        slot: u8,
        bell: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let packets = VecDeque::new();
        self.boxes.lock().push(Mailbox { slot, packets, bell });
        let (boxes, sent) = (self.boxes.clone(), self.sent.clone());
        Ok(Box::new(CrossedLink { slot, boxes, sent, swallows: self.swallows }))
    }
}

impl Link for CrossedLink {
    fn transmit(&mut self, _: Instant, batch: &mut TxBatch) -> TransmitReport {
        let sent = batch.len();
        self.sent.fetch_add(sent, Ordering::SeqCst);
        let mut bells = Vec::new();
        if self.swallows {
            // As slow as a system call on a busy machine.
            std::thread::sleep(Duration::from_micros(200));
        } else {
            let mut boxes = self.boxes.lock();
            for (packet, bytes) in batch.iter() {
                let wrong = |mailbox: &&mut Mailbox| mailbox.slot != packet.dest_qpn().slot();
                if let Some(mailbox) = boxes.iter_mut().find(wrong) {
                    mailbox.packets.push_back((*packet.path(), bytes.to_vec()));
                    bells.push(mailbox.bell.clone());
                }
            }
        }
        bells.iter().for_each(|bell| bell.notify());
        batch.clear();
        TransmitReport { sent, lost: 0 }
    }

    fn receive(&mut self, _: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        let packets = {
            let mut boxes = self.boxes.lock();
            let own = boxes.iter_mut().find(|mailbox| mailbox.slot == self.slot);
            own.map_or_else(VecDeque::new, |mailbox| std::mem::take(&mut mailbox.packets))
        };
        packets.iter().for_each(|(path, bytes)| sink(path, bytes));
        Ok(packets.len())
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[test]
fn packets_at_the_wrong_socket_are_forwarded_to_their_slot() {
    let opener = Crossed::new(false);
    let (one, two) = (Host::new(1, opener.clone(), 1 << 16), Host::new(2, opener, 1 << 16));
    one.connect(&two);
    two.connect(&one);
    for (round, polls) in [false, true, false, true].into_iter().enumerate() {
        let bytes = one.fill(1 << 16, round as u8 * 4 + 1);
        one.write(7, &two, 1 << 16);
        assert_eq!(one.wait(polls).status, WcStatus::Success);
        assert!(two.bytes(1 << 16) == bytes, "polled: {polls}");
    }
    assert_eq!(one.device.counter(Counter::drop_no_such_qp), 0);
    assert_eq!(two.device.counter(Counter::drop_no_such_qp), 0);
    assert!(two.device.counter(Counter::rcvd_pkts) >= 4 * 64, "they all came the long way");
}

/// A READ of the first packets of a host's buffer, with PSN 0.
fn read_request(host: &Host, packets: u32) -> Vec<u8> {
    let bth = Bth {
        opcode: Opcode::RC_READ_REQUEST,
        pkey: PKey::DEFAULT,
        dest_qpn: host.qp.qpn(),
        ack_req: true,
        psn: Psn::new(0),
        ..Bth::default()
    };
    let reth = Reth { va: host.buf.addr(), rkey: host.keys.rkey, len: packets << 10 };
    let headers = Headers { reth: Some(reth), ..Headers::new(bth) };
    let mut bytes = vec![0; 64];
    let len = headers.write(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// A peer may ask for any length by one READ; nobody waits for the lock until all of it is sent.
#[test]
fn the_answer_to_a_long_read_does_not_hold_the_lock() {
    const PACKETS: u32 = 32 << 10;
    let opener = Crossed::new(true);
    let host = Host::new(1, opener.clone(), (PACKETS as usize) << 10);
    let peer = Host::new(2, opener.clone(), 8);
    host.connect(&peer);
    let bytes = read_request(&host, PACKETS);
    let path = Path::new(peer.gid, host.gid);
    opener.deliver(host.qp.qpn().slot(), path, bytes);
    let start = StdInstant::now();
    let sent = || opener.sent.load(Ordering::SeqCst);
    while sent() == 0 {
        assert!(start.elapsed() < LONG, "the READ is not answered");
        std::hint::spin_loop();
    }
    host.runner.query_qp(host.qp.qpn()).unwrap();
    assert!(sent() < PACKETS as usize, "the lock was held to the end");
    while sent() < PACKETS as usize {
        assert!(start.elapsed() < LONG, "only {} of {PACKETS} packets were sent", sent());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens links whose descriptor is readable at all times, and which can be broken.
#[derive(Debug, Default)]
struct Fragile {
    is_broken: Arc<AtomicBool>,
    receives: Arc<AtomicUsize>,
}

struct FragileLink {
    fd: Arc<OwnedFd>,
    _other: UnixDatagram,
    is_broken: Arc<AtomicBool>,
    receives: Arc<AtomicUsize>,
}

impl OpenLink for Fragile {
    fn open(
        &self,
        _: &GidEntry,
        _: u8,
        _: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let (own, other) = UnixDatagram::pair().map_err(OpenLinkError::Wait)?;
        other.send(&[1]).map_err(OpenLinkError::Wait)?;
        let (fd, is_broken) = (Arc::new(own.into()), self.is_broken.clone());
        Ok(Box::new(FragileLink { fd, _other: other, is_broken, receives: self.receives.clone() }))
    }
}

impl Link for FragileLink {
    fn transmit(&mut self, _: Instant, batch: &mut TxBatch) -> TransmitReport {
        let lost = batch.len();
        batch.clear();
        TransmitReport { sent: 0, lost }
    }

    fn receive(&mut self, _: Instant, _: &mut Sink<'_>) -> io::Result<usize> {
        self.receives.fetch_add(1, Ordering::SeqCst);
        match self.is_broken.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => Ok(0),
        }
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.fd.clone())
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[test]
fn a_link_that_cannot_receive_is_left_alone_for_a_while() {
    let opener = Arc::new(Fragile::default());
    opener.is_broken.store(true, Ordering::SeqCst);
    let host = Host::new(1, opener.clone(), 64);
    host.connect_to(Gid::from_ip(address(2)), Qpn::new(0x07_0001), 18);
    let start = StdInstant::now();
    let receives = || opener.receives.load(Ordering::SeqCst);
    let wait_for = |count| {
        while receives() < count {
            assert!(start.elapsed() < LONG, "nobody looks");
            host.runner.poll();
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    wait_for(3);
    let (looks, millis) = (receives(), start.elapsed().as_millis() as usize);
    assert!(looks <= 2 + millis / 100, "{looks} looks in {millis} ms");
    opener.is_broken.store(false, Ordering::SeqCst);
    // It is readable, and waited for again: now it is looked at all the time.
    std::thread::sleep(Duration::from_millis(200));
    let before = receives();
    while receives() < before + 100 {
        assert!(start.elapsed() < LONG, "its descriptor is forgotten");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Opens links of a fabric in a host with little room: it takes a few packets, and then refuses
/// all once.
#[derive(Debug)]
struct Narrow {
    links: MemoryLinks,
    room: Arc<Room>,
}

#[derive(Debug, Default)]
struct Room {
    /// Refuses everything for the time being.
    is_shut: AtomicBool,
    /// Has done so: what waited may have been dropped, which no link is told.
    was_shut: AtomicBool,
    /// Calls that refused something.
    refusals: AtomicUsize,
    /// Packets that left.
    sent: AtomicUsize,
}

struct NarrowLink {
    link: Box<dyn Link>,
    room: Arc<Room>,
    /// Whether the batch has been seen before.
    is_rest: bool,
}

impl Narrow {
    const PACKETS: usize = 5;
}

impl OpenLink for Narrow {
    fn open(
        &self,
        gid: &GidEntry,
        slot: u8,
        bell: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let link = self.links.open(gid, slot, bell)?;
        Ok(Box::new(NarrowLink { link, room: self.room.clone(), is_rest: false }))
    }
}

impl NarrowLink {
    fn offer(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        let shut = self.room.is_shut.load(Ordering::SeqCst);
        let sent = if shut { 0 } else { batch.len().min(Narrow::PACKETS) };
        let mut first = TxBatch::new();
        for (packet, bytes) in batch.iter().take(sent) {
            assert!(first.push_copy(bytes, packet.transmit(), None));
        }
        self.link.transmit(now, &mut first);
        batch.drop_front(sent);
        self.room.sent.fetch_add(sent, Ordering::SeqCst);
        self.is_rest = !batch.is_empty();
        self.room.refusals.fetch_add(usize::from(self.is_rest), Ordering::SeqCst);
        TransmitReport { sent, lost: 0 }
    }
}

impl Link for NarrowLink {
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        assert!(!self.is_rest || self.room.was_shut.load(Ordering::SeqCst), "what waits is first");
        self.offer(now, batch)
    }

    fn transmit_rest(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        assert!(self.is_rest, "nothing waits");
        self.offer(now, batch)
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        self.link.receive(now, sink)
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        self.link.poll_fd()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.link.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.link.handle_timeout(now);
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

/// Two hosts, the second of which has little room.
fn with_a_narrow_host() -> (Host, Host, Arc<Room>) {
    let (fabric, room) = (Fabric::new(), Arc::new(Room::default()));
    let links = |number| {
        let port = fabric.add_port(PortConfig::numbered(number)).unwrap();
        MemoryLinks { fabric: fabric.clone(), port }
    };
    let one = Host::new(1, Arc::new(links(1)), 1 << 20);
    let narrow = Narrow { links: links(2), room: room.clone() };
    let two = Host::new(2, Arc::new(narrow), 1 << 20);
    // About 17 ms.
    one.connect_to(two.gid, two.qp.qpn(), 12);
    two.connect_to(one.gid, one.qp.qpn(), 12);
    (one, two, room)
}

/// The peer asks once, and never again: it has no timer.
#[test]
fn r40_read_responses_wait_for_room_and_nobody_asks_again() {
    const PACKETS: u32 = 300;
    let (fabric, room) = (Fabric::new(), Arc::new(Room::default()));
    // Room at the peer for the whole answer: nothing is lost while this thread does not run.
    let receive = ReceiveLimits { packets: PACKETS as usize, truesize: usize::MAX };
    let ports = [1, 2].map(|number| {
        fabric.add_port(PortConfig { receive, ..PortConfig::numbered(number) }).unwrap()
    });
    let links = MemoryLinks { fabric: fabric.clone(), port: ports[1] };
    let host = Host::new(2, Arc::new(Narrow { links, room: room.clone() }), 1 << 20);
    let (gid, qpn) = (Gid::from_ip(address(1)), Qpn::new(0x07_0001));
    let mut peer = fabric.attach_to(ports[0], qpn.slot(), gid).unwrap();
    host.connect_to(gid, qpn, 18);
    let bytes = host.fill((PACKETS as usize) << 10, 5);

    let mut batch = TxBatch::new();
    let request = read_request(&host, PACKETS);
    let path = Path::new(gid, host.gid);
    let transmit = Transmit { len: request.len(), path, dest_qpn: host.qp.qpn() };
    assert!(batch.push_copy(&request, transmit, None));
    peer.transmit(Clock::now(), &mut batch);

    let (start, mut found) = (StdInstant::now(), Vec::new());
    while found.len() < bytes.len() {
        assert!(start.elapsed() < LONG, "{} bytes came", found.len());
        let mut psn = found.len() >> 10;
        peer.receive(Clock::now(), &mut |_, bytes| {
            assert_eq!(bytes[9..12], psn.to_be_bytes()[5..], "in their order, each once");
            found.extend_from_slice(&bytes[bytes.len() - 1024..]);
            psn += 1;
        })
        .unwrap();
    }
    assert!(found == bytes);
    assert!(room.refusals.load(Ordering::SeqCst) >= 40, "there was room");
    assert_eq!(room.sent.load(Ordering::SeqCst), PACKETS as usize);
    assert_eq!(host.device.counter(Counter::send_err), 0);
}

#[test]
fn r40_what_waits_leaves_before_the_host_closes() {
    let (one, two, room) = with_a_narrow_host();
    let bytes = two.fill(12 << 10, 5);
    two.write(1, &one, 12 << 10);
    two.runner.close();
    let start = StdInstant::now();
    while one.bytes(12 << 10) != bytes {
        assert!(start.elapsed() < LONG, "{} packets left", room.sent.load(Ordering::SeqCst));
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// What finds no room for long is lost like anything else that does not arrive; meanwhile the
/// lock is free, and the background thread does nothing but look now and then.
#[test]
fn r18_a_host_without_room_for_long_loses_packets_and_goes_on() {
    let (one, two, room) = with_a_narrow_host();
    let bytes = two.fill(300_000, 7);
    room.was_shut.store(true, Ordering::SeqCst);
    room.is_shut.store(true, Ordering::SeqCst);
    let start = StdInstant::now();
    one.read(1, &two, 300_000);
    while two.device.counter(Counter::send_err) == 0 {
        assert!(start.elapsed() < LONG, "nothing is given up");
        two.runner.query_qp(two.qp.qpn()).unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
    let micros = start.elapsed().as_micros() as usize;
    let looks = room.refusals.load(Ordering::SeqCst);
    assert!(looks <= 20 + micros / 100, "{looks} looks in {micros} us");
    assert!(two.runner.link_counters().send_errors > 0);
    room.is_shut.store(false, Ordering::SeqCst);
    assert_eq!(one.wait(false).status, WcStatus::Success);
    assert!(one.bytes(300_000) == bytes);
}
