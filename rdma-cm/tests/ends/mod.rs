//! Identifiers over the loopback interface, with queue pairs: both ends in one process.

// Each test file uses its part of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ibverbs_api::{
    AccessFlags, CompletionQueue, DmaBuf, MemoryRegion, ProtectionDomain, QpInit, QpState, QpType,
    QueuePair, RecvWr, SendData, SendFlags, SendOp, SendWr, WcStatus,
};
use rdma_cm::{CmId, ConnParam, Event, EventChannel, EventParam, EventType, PortSpace};

pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn lo(port: u16) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 1].into(), port)
}

/// The next event, which has to be this one.
#[track_caller]
pub(crate) fn expect(channel: &EventChannel, event: EventType) -> Event {
    let next = channel.wait(SOON).unwrap().unwrap_or_else(|| panic!("no {event}"));
    assert_eq!(next.event(), event, "{next:?}");
    next
}

/// A listener on a port that nobody has.
pub(crate) fn listener(space: PortSpace) -> (EventChannel, CmId, u16) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, space);
    id.bind_addr(lo(0)).unwrap();
    id.listen(0).unwrap();
    let port = id.local_addr().unwrap().port();
    (channel, id, port)
}

/// An identifier that is resolved.
pub(crate) fn resolved(space: PortSpace, port: u16) -> (EventChannel, CmId) {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, space);
    id.resolve_addr(None, lo(port)).unwrap();
    assert_eq!(expect(&channel, EventType::AddrResolved).id(), &id);
    id.resolve_route().unwrap();
    expect(&channel, EventType::RouteResolved);
    (channel, id)
}

/// A queue pair with a message's room.
pub(crate) struct End {
    pub(crate) qp: Arc<QueuePair>,
    pub(crate) cq: CompletionQueue,
    pub(crate) memory: MemoryRegion,
    pub(crate) pd: ProtectionDomain,
}

impl End {
    pub(crate) fn new(id: &CmId, qp_type: QpType) -> Self {
        let context = id.verbs().unwrap();
        let cq = context.create_cq(16, None, 0).unwrap();
        let pd = context.alloc_pd().unwrap();
        let qp = id.create_qp(Some(&pd), QpInit::new(qp_type, &cq, &cq)).unwrap();
        let memory = pd.register(DmaBuf::zeroed(64), AccessFlags::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvWr { wr_id: 1, sges: &[memory.sge(0..64)] }).unwrap();
        Self { qp, cq, memory, pd }
    }

    pub(crate) fn send(&self, text: &[u8]) {
        self.post(SendOp::Send { imm: None }, text);
    }

    pub(crate) fn post(&self, op: SendOp, text: &[u8]) {
        let (flags, data) = (SendFlags::empty(), SendData::Inline(text));
        self.qp.post_send(&SendWr { wr_id: 2, op, flags, data, srq_number: None }).unwrap();
    }

    pub(crate) fn received(&self) -> Vec<u8> {
        let wc = self.cq.wait_one(SOON).unwrap();
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
        let mut text = vec![0; wc.byte_len as usize];
        self.memory.buffer().read_at(0, &mut text).unwrap();
        text
    }
}

/// Connects with a queue pair of the client's own, which it has brought to RTS by hand. What is left
/// is to say so. Returns the client's end, and the identifier and the end of the server.
pub(crate) fn connect_by_hand(
    id: &CmId,
    channel: &EventChannel,
    server_channel: &EventChannel,
) -> (End, (CmId, End)) {
    let context = id.verbs().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let pd = context.alloc_pd().unwrap();
    let qp = pd.create_qp(QpInit::new(QpType::Rc, &cq, &cq)).unwrap();
    let memory = pd.register(DmaBuf::zeroed(64), AccessFlags::LOCAL_WRITE).unwrap();
    id.connect(&ConnParam { qpn: qp.qpn(), ..ConnParam::default() }).unwrap();
    let request = expect(server_channel, EventType::ConnectRequest);
    let server = request.id().clone();
    let server_end = End::new(&server, QpType::Rc);
    server.accept(&ConnParam::default()).unwrap();
    expect(channel, EventType::ConnectResponse);
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attr, mask) = id.init_qp_attr(to).unwrap();
        qp.modify(&attr, mask).unwrap();
    }
    (End { qp: Arc::new(qp), cq, memory, pd }, (server, server_end))
}

/// Both ends of a connection, with their channels.
pub(crate) struct Connected {
    pub(crate) client: (EventChannel, CmId, End),
    pub(crate) server: (EventChannel, CmId, End),
    pub(crate) _listener: CmId,
}

pub(crate) fn connect() -> Connected {
    let (server_channel, listener, port) = listener(PortSpace::Tcp);
    let (client_channel, client) = resolved(PortSpace::Tcp, port);
    let client_end = End::new(&client, QpType::Rc);
    let param = ConnParam {
        private_data: b"hello".to_vec(),
        responder_resources: 2,
        initiator_depth: 3,
        ..ConnParam::default()
    };
    client.connect(&param).unwrap();

    let request = expect(&server_channel, EventType::ConnectRequest);
    assert_eq!(request.listen_id(), Some(&listener));
    let server = request.id().clone();
    let EventParam::Conn(asked) = request.param() else { panic!("{request:?}") };
    assert_eq!((&asked.private_data[..5], asked.private_data.len()), (&b"hello"[..], 56));
    assert_eq!((asked.responder_resources, asked.initiator_depth), (3, 2), "the other way round");
    assert_eq!(asked.qpn, client_end.qp.qpn());
    assert_eq!(server.local_addr(), Some(lo(port)));
    assert_eq!(server.peer_addr(), client.local_addr());
    let server_end = End::new(&server, QpType::Rc);
    let answer = ConnParam { private_data: b"welcome".to_vec(), ..ConnParam::default() };
    server.accept(&answer).unwrap();
    request.ack();

    let made = expect(&client_channel, EventType::Established);
    assert_eq!(made.private_data().len(), 196);
    assert!(made.private_data().starts_with(b"welcome"));
    expect(&server_channel, EventType::Established);
    Connected {
        client: (client_channel, client, client_end),
        server: (server_channel, server, server_end),
        _listener: listener,
    }
}
