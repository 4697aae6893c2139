//! In the midst of a message, only what continues it is taken.

use ibverbs_api::*;
use rxe_wire::{Opcode, Operation, Position};
use testkit::netns::alone;

use crate::attacker::Forged;
use crate::victim::*;

/// Bytes that a begun WRITE still has to bring.
const LEFT: usize = 8;

/// The packet that begins a message of two.
fn begin(victim: &Victim, operation: Operation) -> Forged {
    let opcode = match operation {
        Operation::Send => Opcode::RC_SEND_FIRST,
        _ => Opcode::RC_WRITE_FIRST,
    };
    let mut forged = Forged { tail: MTU.bytes(), ..victim.forge(opcode.get()) };
    forged.reth.len = (MTU.bytes() + LEFT) as u32;
    forged
}

/// Whether a packet may come next, by the rules (R29).
fn continues(operation: Operation, opcode: u8, payload: usize) -> bool {
    let Some(info) = Opcode::new(opcode).info() else { return false };
    let fits = match (operation, info.position) {
        (Operation::Write, Position::Last) => payload == LEFT,
        (Operation::Send, Position::Last) => (1..=MTU.bytes()).contains(&payload),
        (Operation::Send, Position::Middle) => payload == MTU.bytes(),
        _ => false,
    };
    // The key that is to be invalidated is that of a region: R41.
    info.operation == operation && fits && !info.with_inv
}

/// Whether it continues the message, but cannot do what it is to do with a key.
fn is_invalidation(operation: Operation, opcode: u8, payload: usize) -> bool {
    let is_last = opcode == Opcode::RC_SEND_LAST_WITH_INV.get();
    is_last && operation == Operation::Send && (1..=MTU.bytes()).contains(&payload)
}

#[test]
fn every_rc_opcode_in_the_midst_of_a_message() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let requests = (0..0x20).filter(|&opcode| Opcode::new(opcode).is_request());
        for opcode in requests {
            for operation in [Operation::Send, Operation::Write] {
                for tail in [0, 4, LEFT, MTU.bytes(), MTU.bytes() + 4] {
                    victim.restart();
                    victim.hit(&begin(&victim, operation));
                    assert!(victim.is_alive());
                    let mut next = Forged { tail, ..victim.forge(opcode) };
                    next.psn = FIRST.plus(1);
                    next.reth.len = tail as u32;
                    next.invalidate = victim.other_pd.rkey();
                    victim.hit(&next);
                    victim.check_guards(&next);
                    let want = continues(operation, opcode, tail);
                    assert_eq!(victim.is_alive(), want, "{operation:?}: {next:?}");
                    // R36: that a key was not made invalid is told by the receive.
                    let told = usize::from(!want && !is_invalidation(operation, opcode, tail));
                    assert_eq!(victim.events().len(), told, "{operation:?}: {next:?}");
                }
            }
        }
        victim.finish();
    });
}

#[test]
fn a_message_that_goes_on_for_ever_stays_in_its_buffer() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let mtu = MTU.bytes();
        // A SEND fills its receive, and the packet after that is one too many.
        victim.hit(&begin(&victim, Operation::Send));
        let middle = Forged { tail: mtu, ..victim.forge(Opcode::RC_SEND_MIDDLE.get()) };
        for number in 1..=(RECEIVE / mtu) as u32 {
            assert!(victim.is_alive(), "{number}");
            victim.hit(&Forged { psn: FIRST.plus(number), ..middle });
            victim.check_guards(&number);
        }
        assert!(!victim.is_alive());
        // A WRITE may bring what it has announced, and no more.
        victim.restart();
        let mut first = begin(&victim, Operation::Write);
        first.reth.va += (GRANTED - 2 * mtu) as u64;
        first.reth.len = 2 * mtu as u32;
        victim.hit(&first);
        let middle = Forged { opcode: Opcode::RC_WRITE_MIDDLE.get(), ..middle };
        victim.hit(&Forged { psn: FIRST.plus(1), ..middle });
        assert!(!victim.is_alive(), "the last of it must be marked as that");
        victim.finish();
    });
}

#[test]
fn a_region_that_goes_in_the_midst_of_a_write_is_not_written_to() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let region = victim.end.register(GRANTED);
        let buffer = region.buffer().clone();
        let mut first = begin(&victim, Operation::Write);
        (first.reth.va, first.reth.rkey) = (region.addr(), region.rkey());
        victim.hit(&first);
        drop(region);
        buffer.write_at(0, &[0; GRANTED]).unwrap();
        let last = Forged { tail: LEFT, ..victim.forge(Opcode::RC_WRITE_LAST.get()) };
        victim.hit(&Forged { psn: FIRST.plus(1), ..last });
        assert!(!victim.is_alive());
        assert_eq!(victim.events(), [AsyncEvent::QpAccessErr(victim.qpn())]);
        assert!(crate::common::read(&buffer, 0, GRANTED).iter().all(|&byte| byte == 0));
        victim.finish();
    });
}
