//! One engine on a bench: messages are put in, and what comes out is taken and compared.

// Each test file uses its part of it.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod view;

use gid_table::Gid;
use rdma_cm::engine::{
    AcceptParam, CmConfig, CmEngine, CmEvent, CmPath, ConnectParam, Ece, Ignored, LookupAnswer,
    LookupParam,
};
use rxe_core::{Instant, Seed};
use rxe_wire::mad::cm::{
    Bits, CmMessage, CommId, FixedBytes, Guid, Path, PathMtu, PortSpace, Req, ServiceId,
    SidrStatus, TimeoutExponent, TransportService,
};
use rxe_wire::mad::{MAD_LEN, TransactionId};
use rxe_wire::{PKey, Psn, QKey, Qpn};

/// The service that everybody here talks about.
pub(crate) const SERVICE: ServiceId = ServiceId::ip(PortSpace::Tcp, 7174);
pub(crate) const LOOKED_UP: ServiceId = ServiceId::ip(PortSpace::Udp, 7174);
/// The bench's slot.
pub(crate) const SLOT: u8 = 9;
/// The local ACK timeout of paths: 0.5 s.
pub(crate) const ACK_TIMEOUT: TimeoutExponent = TimeoutExponent::new(17);
/// The time for an answer: 4.3 s.
pub(crate) const RESPONSE: TimeoutExponent = TimeoutExponent::new(20);
pub(crate) const PEER_TID: TransactionId = TransactionId(0x77);
pub(crate) const PEER_GUID: Guid = Guid(0x5054_00ff_fe77_0002);
pub(crate) const PEER_ID: CommId = CommId(0xd551_2f25);

pub(crate) fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 77, 0, last].into())
}

pub(crate) fn config(seed: u64) -> CmConfig {
    let mtu = PathMtu(Bits::new(3));
    let guid = Guid(0x5054_00ff_fe77_0001);
    CmConfig::new(Seed::for_test(seed), SLOT, guid, TimeoutExponent::new(15), mtu)
}

pub(crate) fn connect_param(path: CmPath, qpn: u32) -> ConnectParam {
    ConnectParam {
        path,
        service_id: SERVICE,
        qpn: Qpn::new(qpn),
        transport: TransportService::Rc,
        srq: false,
        starting_psn: Psn::new(0x1234),
        path_mtu: PathMtu(Bits::new(3)),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        retry_count: Bits::new(7),
        rnr_retry_count: Bits::new(7),
        pkey: PKey::DEFAULT,
        ack_timeout: ACK_TIMEOUT,
        response_timeout: RESPONSE,
        max_cm_retries: Bits::new(15),
        ece: Ece::default(),
        private_data: FixedBytes::default(),
        peer_to_peer: false,
    }
}

pub(crate) fn accept_param(qpn: u32) -> AcceptParam {
    AcceptParam {
        qpn: Qpn::new(qpn),
        srq: false,
        starting_psn: Psn::new(0x4321),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        rnr_retry_count: Bits::new(7),
        ece: Ece::default(),
        private_data: FixedBytes::default(),
    }
}

pub(crate) fn lookup_param(path: CmPath) -> LookupParam {
    LookupParam {
        path,
        service_id: LOOKED_UP,
        pkey: PKey::DEFAULT,
        ack_timeout: ACK_TIMEOUT,
        response_timeout: RESPONSE,
        max_cm_retries: Bits::new(15),
        private_data: FixedBytes::default(),
    }
}

pub(crate) fn lookup_answer(qpn: u32) -> LookupAnswer {
    LookupAnswer {
        status: SidrStatus::SUCCESS,
        qpn: Qpn::new(qpn),
        qkey: QKey::new(0x0123_4567),
        ece: Ece::default(),
        private_data: FixedBytes::default(),
    }
}

/// The REQ of a peer at 10.77.0.2.
pub(crate) fn req() -> Req {
    Req {
        local_comm_id: PEER_ID,
        service_id: SERVICE,
        local_ca_guid: PEER_GUID,
        local_qpn: Qpn::new(0x19),
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: RESPONSE,
        local_response_timeout: RESPONSE,
        starting_psn: Psn::new(0x99),
        retry_count: Bits::new(7),
        pkey: PKey::DEFAULT,
        path_mtu: PathMtu(Bits::new(3)),
        rnr_retry_count: Bits::new(7),
        max_cm_retries: Bits::new(15),
        primary_path: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: gid(2).raw(),
            remote_gid: gid(1).raw(),
            hop_limit: 64,
            local_ack_timeout: ACK_TIMEOUT,
            ..Path::default()
        },
        ..Req::default()
    }
}

/// One engine, at 10.77.0.1.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) engine: CmEngine,
    pub(crate) now: Instant,
    pub(crate) path: CmPath,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(config(1))
    }

    pub(crate) fn with(config: CmConfig) -> Self {
        let path = CmPath::new(gid(1), gid(2));
        Self { engine: CmEngine::new(config), now: Instant::from_nanos(1_000), path }
    }

    /// A message comes from the peer.
    pub(crate) fn hears(&mut self, message: CmMessage) -> Result<(), Ignored> {
        let path = self.path;
        self.hears_from(&path, message)
    }

    pub(crate) fn hears_from(&mut self, path: &CmPath, message: CmMessage) -> Result<(), Ignored> {
        let mut mad = [0; MAD_LEN];
        message.write_mad(PEER_TID, &mut mad);
        self.engine.handle_mad(self.now, path, &mad)
    }

    /// All that is sent.
    pub(crate) fn says(&mut self) -> Vec<CmMessage> {
        std::iter::from_fn(|| self.engine.poll_transmit()).map(|sent| sent.message).collect()
    }

    /// The only message that is sent.
    pub(crate) fn says_one(&mut self) -> CmMessage {
        let mut said = self.says();
        assert_eq!(said.len(), 1, "{said:?}");
        said.remove(0)
    }

    /// All that is told.
    pub(crate) fn tells(&mut self) -> Vec<CmEvent> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    /// The only event.
    pub(crate) fn tells_one(&mut self) -> CmEvent {
        let mut told = self.tells();
        assert_eq!(told.len(), 1, "{told:?}");
        told.remove(0)
    }

    /// Nothing is sent or told.
    #[track_caller]
    pub(crate) fn is_quiet(&mut self) {
        assert_eq!((self.says(), self.tells()), (Vec::new(), Vec::new()));
    }

    /// Time goes on to the next deadline, which is there.
    pub(crate) fn waits(&mut self) -> u64 {
        let next = self.engine.poll_timeout().unwrap();
        let waited = next.nanos_since(self.now);
        self.now = next;
        self.engine.handle_timeout(self.now);
        waited
    }
}
