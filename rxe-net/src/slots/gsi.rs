//! Packets to QP1: which process they are for.
//!
//! All of QP1 have the same number, so the kernel gives their packets to any process on the
//! address. Who they are for is in the message of connection management that they carry: a request
//! is for whoever serves its service id; all else names the receiver's communication id, whose top
//! byte is the slot of the shard that has the QP1; but for the REJ of a requester that gives up
//! before it has heard that id.

use rxe_wire::mad::Mad;
use rxe_wire::mad::cm::{CmMessage, CommId, RejReason, ServiceId};
use rxe_wire::{Packet, Qpn};

/// Who a packet to QP1 is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The shard of this slot.
    Slot(u8),
    /// Whoever serves this service.
    Service(ServiceId),
    /// Whoever has what it is about: only they know.
    Everybody,
    /// Whoever got it.
    Nobody,
}

/// Reads who a packet of slot 0 is for, `bytes` from BTH to pad.
pub(crate) fn claim(bytes: &[u8]) -> Claim {
    match message(bytes) {
        Some(CmMessage::Req(message)) => Claim::Service(message.service_id),
        Some(CmMessage::SidrReq(message)) => Claim::Service(message.service_id),
        Some(CmMessage::Mra(message)) => of(message.remote_comm_id),
        // A requester that gives up before it has heard our id names its own alone.
        Some(CmMessage::Rej(message))
            if message.remote_comm_id == CommId(0) && message.reason == RejReason::TIMEOUT =>
        {
            Claim::Everybody
        }
        Some(CmMessage::Rej(message)) => of(message.remote_comm_id),
        Some(CmMessage::Rep(message)) => of(message.remote_comm_id),
        Some(CmMessage::Rtu(message)) => of(message.remote_comm_id),
        Some(CmMessage::Dreq(message)) => of(message.remote_comm_id),
        Some(CmMessage::Drep(message)) => of(message.remote_comm_id),
        Some(CmMessage::Lap(message)) => of(message.remote_comm_id),
        Some(CmMessage::Apr(message)) => of(message.remote_comm_id),
        // The id is the one that the requester chose.
        Some(CmMessage::SidrRep(message)) => of(message.request_id),
        None => Claim::Nobody,
    }
}

/// The message of connection management in a packet to QP1.
fn message(bytes: &[u8]) -> Option<CmMessage> {
    let packet = Packet::parse(bytes).ok()?;
    if packet.bth().dest_qpn != Qpn::GSI || packet.deth().is_none() {
        return None;
    }
    CmMessage::parse(&Mad::parse(packet.payload()).ok()?).ok()
}

fn of(id: CommId) -> Claim {
    match (id.0 >> 24) as u8 {
        slot @ 1..=254 => Claim::Slot(slot),
        _ => Claim::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use rxe_wire::mad::cm::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
    use rxe_wire::mad::{MAD_LEN, TransactionId};

    use super::*;

    /// A packet as it comes: BTH and DETH of a UD packet to `qpn`, then the message.
    fn packet(qpn: u8, message: CmMessage) -> Vec<u8> {
        let mut bytes = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, qpn, 0, 0, 0, 1];
        bytes.extend([0x80, 0x01, 0, 0, 0, 0, 0, 1]);
        let mut mad = [0; MAD_LEN];
        message.write_mad(TransactionId(5), &mut mad);
        bytes.extend(mad);
        bytes
    }

    #[test]
    fn each_message_says_who_it_is_for() {
        let (local_comm_id, remote_comm_id) = (CommId(0x0900_0001), CommId(0xc8_12_34_56));
        let service_id = ServiceId(0x0106_1234);
        let service = Claim::Service(service_id);
        let slot = Claim::Slot(0xc8);
        let ids = || (local_comm_id, remote_comm_id);
        macro_rules! of {
            ($kind:ident) => {{
                let (local_comm_id, remote_comm_id) = ids();
                CmMessage::$kind($kind { local_comm_id, remote_comm_id, ..$kind::default() })
            }};
        }
        for (message, expected) in [
            (CmMessage::Req(Req { service_id, local_comm_id, ..Req::default() }), service),
            (CmMessage::SidrReq(SidrReq { service_id, ..SidrReq::default() }), service),
            (
                CmMessage::SidrRep(SidrRep { request_id: remote_comm_id, ..SidrRep::default() }),
                slot,
            ),
            (of!(Mra), slot),
            (of!(Rej), slot),
            (of!(Rep), slot),
            (of!(Rtu), slot),
            (of!(Dreq), slot),
            (of!(Drep), slot),
            (of!(Lap), slot),
            (of!(Apr), slot),
        ] {
            assert_eq!(claim(&packet(1, message)), expected, "{message:?}");
            assert_eq!(claim(&packet(0, message)), Claim::Nobody, "to QP0");
        }
    }

    #[test]
    fn what_says_nothing_is_for_whoever_got_it() {
        let nobody = CmMessage::Rej(Rej { local_comm_id: CommId(1 << 24), ..Rej::default() });
        assert_eq!(claim(&packet(1, nobody)), Claim::Nobody, "a refusal of what was not read");
        let gives_up = CmMessage::Rej(Rej {
            local_comm_id: CommId(1 << 24),
            reason: RejReason::TIMEOUT,
            ..Rej::default()
        });
        assert_eq!(claim(&packet(1, gives_up)), Claim::Everybody, "one of them has the request");
        let mut other_class = packet(1, CmMessage::Rtu(Rtu::default()));
        other_class[21] = 0x04;
        assert_eq!(claim(&other_class), Claim::Nobody);
        let good =
            packet(1, CmMessage::Rtu(Rtu { remote_comm_id: CommId(9 << 24), ..Rtu::default() }));
        assert_eq!(claim(&good), Claim::Slot(9));
        for len in 0..good.len() {
            assert_eq!(claim(&good[..len]), Claim::Nobody, "{len} bytes");
        }
    }
}
