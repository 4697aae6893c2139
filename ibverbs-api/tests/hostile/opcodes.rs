//! Every opcode on every service, at every place in the stream, of every length.

use std::collections::BTreeMap;

use ibverbs_api::*;
use rxe_wire::opcode::OpcodeInfo;
use rxe_wire::{NakCode, Opcode, Operation, Position, Service};
use testkit::netns::alone;

use crate::attacker::{Forged, MAX_UDP};
use crate::victim::*;

/// The longest packet that a link looks at, from BTH to pad.
const LONGEST: usize = 4096 + 64;

/// What must come of a packet; the memory that it may change is in the name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fate {
    /// The link does not take it for one.
    NoPacket,
    /// Dropped, and counted by this counter; the queue pair lives.
    Dropped(&'static str),
    /// Done, without a change of memory.
    Done,
    /// Done: granted memory has changed.
    Written,
    /// Done: it stands in the receive.
    Received,
    /// Refused as invalid; the queue pair has failed.
    Refused,
    /// It has brought its data, but names a key that it has no right to make invalid.
    NotInvalidated,
}

/// Where in the stream it stands.
const PLACES: [i32; 4] = [0, -1, 1, -0x80_0000];

/// What is right for a packet to a fresh queue pair, by the rules.
fn fate(qp_type: QpType, forged: &Forged, place: i32) -> Fate {
    let header = forged.bytes().len() - forged.tail;
    if header + forged.tail > LONGEST {
        return Fate::NoPacket;
    }
    let Some(info) = Opcode::new(forged.opcode).info() else {
        // R35.
        return Fate::Dropped("drop_malformed");
    };
    let Some(payload) = forged.tail.checked_sub(forged.pad.into()) else {
        return Fate::Dropped("drop_malformed");
    };
    match (qp_type, info.service) {
        (QpType::Rc | QpType::Uc | QpType::XrcRecv, Service::Cnp) => {
            Fate::Dropped("rp_cnp_handled")
        }
        // A target takes requests alone.
        (QpType::XrcRecv, Service::Xrc) if info.is_response() => {
            Fate::Dropped("drop_wrong_service")
        }
        (QpType::Rc, Service::Rc) | (QpType::XrcRecv, Service::Xrc) => {
            reliable(info, payload, forged, place)
        }
        (QpType::Uc, Service::Uc) => unreliable(info, payload, forged),
        (QpType::Ud, Service::Ud) if 40 + payload <= RECEIVE => Fate::Received,
        // R30.
        (QpType::Ud, Service::Ud) => Fate::Dropped("drop_bad_length"),
        _ => Fate::Dropped("drop_wrong_service"),
    }
}

fn reliable(info: &OpcodeInfo, payload: usize, forged: &Forged, place: i32) -> Fate {
    if info.is_response() {
        return Fate::Dropped("drop_stale_response");
    }
    if place > 0 {
        // R21.
        return Fate::Dropped("out_of_seq_request");
    }
    if place < 0 {
        // R22, R25.
        return Fate::Dropped("duplicate_request");
    }
    if is_right(info, payload, forged) { effect(info, payload) } else { Fate::Refused }
}

fn unreliable(info: &OpcodeInfo, payload: usize, forged: &Forged) -> Fate {
    if !info.position.is_start() {
        return Fate::Dropped("drop_broken_message");
    }
    // R29: no NAK, and nothing else either.
    if is_right(info, payload, forged) {
        effect(info, payload)
    } else {
        Fate::Dropped("drop_bad_length")
    }
}

/// R29, R34: whether a packet may begin a message.
fn is_right(info: &OpcodeInfo, payload: usize, forged: &Forged) -> bool {
    let mtu = MTU.bytes();
    let fills = match info.position {
        Position::Only => payload <= mtu,
        _ => payload == mtu,
    };
    let asked = forged.reth.len as usize;
    let adds_up = match (info.operation, info.position) {
        (Operation::Write, Position::Only) => payload == asked,
        (Operation::Write, _) => payload < asked,
        (Operation::Send, _) => true,
        (Operation::AtomicWrite, _) => payload == 8 && asked == 8,
        _ => payload == 0,
    };
    info.position.is_start() && fills && adds_up
}

fn effect(info: &OpcodeInfo, payload: usize) -> Fate {
    match info.operation {
        // R41: the key is that of a region of others.
        Operation::Send if info.with_inv => Fate::NotInvalidated,
        Operation::Send if payload > 0 => Fate::Received,
        Operation::Write if payload > 0 => Fate::Written,
        Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite => Fate::Written,
        // The queue pair does not allow it.
        Operation::Flush => Fate::Refused,
        _ => Fate::Done,
    }
}

/// Sends one packet to a fresh queue pair, and looks at all that it has done.
fn judge(victim: &Victim, forged: &Forged, place: i32, want: Fate) {
    victim.restart();
    victim.fill_granted(&[0; 512]);
    let (before, zeros) = (victim.end.context.counters(), vec![0; RECEIVE]);
    victim.hit(forged);
    let after = victim.end.context.counters();
    let what = (Opcode::new(forged.opcode), place, forged, want);
    victim.check_guards(&what);
    let written = victim.granted_bytes()[..512].iter().any(|&byte| byte != 0);
    assert_eq!(written, want == Fate::Written, "granted memory: {what:?}");
    let events = victim.events();
    let (naks, _) = victim.peer.take_naks();
    let is_alive = !matches!(want, Fate::Refused | Fate::NotInvalidated);
    assert_eq!(victim.is_alive(), is_alive, "the queue pair: {what:?}");
    if want == Fate::NotInvalidated {
        assert_eq!((events, naks), (vec![], vec![NakCode::RemoteAccessError]), "{what:?}");
        return;
    }
    let received = victim.inbox_bytes() != zeros;
    assert_eq!(received, want == Fate::Received, "receive: {what:?}");
    if want == Fate::Refused {
        assert_eq!(events, [AsyncEvent::QpReqErr(victim.qpn())], "{what:?}");
        assert_eq!(naks, [NakCode::InvalidRequest], "{what:?}");
        return;
    }
    assert_eq!(events, [], "{what:?}");
    let is_ahead = want == Fate::Dropped("out_of_seq_request");
    let expected = if is_ahead { &[NakCode::PsnSequenceError][..] } else { &[] };
    assert_eq!(naks, expected, "{what:?}");
    if let Fate::Dropped(name) = want {
        let counter = Counter::by_name(name).unwrap();
        assert_eq!(after.get(counter), before.get(counter) + 1, "{what:?}: {after}");
    }
}

fn every_opcode(qp_type: QpType) {
    let victim = Victim::new(qp_type);
    let mtu = MTU.bytes();
    let mut fates = BTreeMap::new();
    for opcode in 0..=255 {
        let longest = MAX_UDP - 4 - victim.forge(opcode).bytes().len();
        for place in PLACES {
            for tail in [0, 1, 8, 16, mtu - 1, mtu, mtu + 1, longest] {
                for pad in 0..4 {
                    // The longest is one packet for the link, whatever the pad.
                    if tail == longest && (pad > 0 || place != 0) {
                        continue;
                    }
                    let mut forged = Forged { pad, tail, ..victim.forge(opcode) };
                    forged.psn = FIRST.plus(place as u32);
                    forged.reth.len = asked(opcode, tail.saturating_sub(pad.into()));
                    forged.invalidate = victim.other_pd.rkey();
                    let want = fate(qp_type, &forged, place);
                    *fates.entry(want).or_insert(0) += 1;
                    judge(&victim, &forged, place, want);
                }
            }
        }
    }
    println!("{qp_type:?}: {fates:?}");
    if qp_type == QpType::Rc {
        victim.restart();
        victim.still_serves(FIRST);
    }
    victim.finish();
}

/// The length in RETH that goes with a payload.
fn asked(opcode: u8, payload: usize) -> u32 {
    let starts = Opcode::new(opcode).info().is_some_and(|info| info.position == Position::First);
    payload as u32 + if starts { 100 } else { 0 }
}

#[test]
fn every_opcode_to_rc() {
    alone(|| {
        every_opcode(QpType::Rc);
    });
}

#[test]
fn every_opcode_to_an_xrc_target() {
    alone(|| {
        every_opcode(QpType::XrcRecv);
    });
}

#[test]
fn an_xrc_target_knows_only_the_queues_of_its_domain() {
    alone(|| {
        let victim = Victim::new(QpType::XrcRecv);
        let own = victim.forge(0).srqn;
        let operations = [Opcode::XRC_SEND_ONLY, Opcode::XRC_WRITE_ONLY, Opcode::XRC_READ_REQUEST];
        for srqn in [0, 0xff_ffff, own + 1, own ^ 0x80_0000, own.wrapping_sub(1) & 0xff_ffff] {
            for operation in operations {
                let forged = Forged { srqn, ..victim.forge(operation.get()) };
                judge(&victim, &forged, 0, Fate::Refused);
            }
        }
        victim.finish();
    });
}

#[test]
fn every_opcode_to_uc() {
    alone(|| {
        every_opcode(QpType::Uc);
    });
}

#[test]
fn every_opcode_to_ud() {
    alone(|| {
        every_opcode(QpType::Ud);
    });
}
