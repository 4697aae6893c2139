//! QP1 where several devices and shards of one process share an address.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use common::*;
use ibverbs_api::*;
use rxe_wire::mad::cm::{CmMessage, CommId, GSI_QKEY, Rep, Req};
use rxe_wire::mad::{MAD_LEN, Mad, TransactionId};

/// Bytes in front of a datagram that was received.
const HEAD: usize = 40;
/// Receives that are posted.
const RECEIVES: usize = 128;

/// A QP1 with receives.
struct Gsi {
    end: End,
    memory: MemoryRegion,
}

impl Gsi {
    fn new(context: &Context, vector: usize) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, None, vector).unwrap();
        let mut init = QpInit::new(QpType::Gsi, &cq, &cq);
        init.caps.max_recv_wr = RECEIVES as u32;
        init.caps.max_inline_data = MAD_LEN as u32;
        let qp = pd.create_qp(init).unwrap();
        qp.start_datagrams(1, GSI_QKEY).unwrap();
        let end = End { qp, cq, pd, context: context.clone() };
        let memory = end.register(RECEIVES * (HEAD + MAD_LEN));
        for index in 0..RECEIVES {
            let at = index * (HEAD + MAD_LEN);
            end.recv(index as u64, &[memory.sge(at..at + HEAD + MAD_LEN)]);
        }
        Self { end, memory }
    }

    /// Sends a message to the own address. Flow labels have source ports of their own, by which the
    /// kernel chooses one of the sockets.
    fn send(&self, label: u32, message: CmMessage) {
        let mut mad = [0; MAD_LEN];
        message.write_mad(TransactionId(1), &mut mad);
        let own = gid(&self.end.context, Family::V4);
        let mut av = AddressVector::new(own.gid, own.gid_index);
        av.flow_label = label;
        let to = self.end.pd.create_ah(&av).unwrap();
        let op = SendOp::SendTo { to: to.to(Qpn::GSI, GSI_QKEY), imm: None };
        let data = SendData::Inline(&mad);
        self.end.qp.post_send(&wr(u64::MAX, op, SendFlags::empty(), data)).unwrap();
    }

    /// The next message.
    fn take(&self) -> CmMessage {
        let at = self.end.done().wr_id as usize * (HEAD + MAD_LEN) + HEAD;
        let mad = read(self.memory.buffer(), at, MAD_LEN);
        CmMessage::parse(&Mad::parse(&mad).unwrap()).unwrap()
    }
}

#[test]
fn messages_reach_the_qp1_that_they_are_for_at_whichever_socket_they_come() {
    let mut two_shards = options();
    two_shards.shards = 2;
    let contexts = [open(), open_with(two_shards)];
    let one = Gsi::new(&contexts[0], 0);
    let two = Gsi::new(&contexts[1], 1);
    // The other shard has a socket on the address too, and no QP1.
    let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let other = End::new(&contexts[1], &setup, None);
    other.qp.start_datagrams(1, QKey::new(7)).unwrap();
    assert_ne!(other.qp.slot(), two.end.qp.slot());

    let service_id = ServiceId(0x7e57_0001_0000_0000 | u64::from(std::process::id()));
    let service = two.end.qp.register_service(service_id, None).unwrap();
    let error = one.end.qp.register_service(service_id, None).unwrap_err();
    assert!(matches!(error, RegisterServiceError::Taken { .. }), "{error}");
    for number in 1..=40 {
        let request =
            CmMessage::Req(Req { service_id, local_comm_id: CommId(number), ..Req::default() });
        one.send(number, request);
        assert_eq!(two.take(), request);
        for to in [&one, &two] {
            let remote_comm_id = CommId(u32::from(to.end.qp.slot()) << 24 | number);
            let reply = CmMessage::Rep(Rep { remote_comm_id, ..Rep::default() });
            two.send(number, reply);
            assert_eq!(to.take(), reply);
        }
    }
    let counters = [&contexts[0], &contexts[1]].map(|context| context.link_counters().forwarded);
    assert!(counters.iter().sum::<u64>() > 0, "all came to the right sockets: nothing is shown");
    drop(service);
}
