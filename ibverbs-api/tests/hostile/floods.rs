//! Floods: memory does not grow with what a peer sends, and what came before still works.

use std::fs;

use ibverbs_api::*;
use rxe_wire::{NakCode, Opcode, Packet, Syndrome};
use testkit::netns::alone;

use crate::attacker::{Attacker, Forged};
use crate::victim::*;

/// Packets of a flood.
const FLOOD: u32 = 20_000;
/// Packets that the victim's receive buffer holds at once, easily.
const BATCH: u32 = 64;
/// What the process may grow by, in KiB: a packet of the flood kept would be more than this.
const GROWTH: u64 = 8 << 10;

/// Resident memory in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Sends many packets, made of their number, as fast as the victim takes them.
fn flood(victim: &Victim, from: &Attacker, make: impl Fn(u32) -> Forged) {
    let mut before = 0;
    for batch in 0..FLOOD / BATCH {
        for number in 0..BATCH {
            from.send(&make(batch * BATCH + number).bytes());
        }
        victim.settle(BATCH.into());
        // What was ever needed is there after a while.
        if batch == 32 {
            before = resident();
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH, "{grown} KiB more");
    victim.check_guards(&"after a flood");
}

/// A READ of all that is granted.
fn read_all(victim: &Victim) -> Forged {
    let mut forged = victim.forge(Opcode::RC_READ_REQUEST.get());
    forged.reth.len = GRANTED as u32;
    forged
}

const PACKETS_OF_READ: u32 = (GRANTED / 256) as u32;

#[test]
fn r26_reads_that_nobody_takes_the_answers_of() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let read = read_all(&victim);
        flood(&victim, &victim.peer, |number| Forged {
            psn: FIRST.plus(number * PACKETS_OF_READ),
            ..read
        });
        // A peer that asks for more at once than it may has failed itself; otherwise all is well.
        if victim.is_alive() {
            victim.still_serves(FIRST.plus(FLOOD / BATCH * BATCH * PACKETS_OF_READ));
        } else {
            assert_eq!(victim.events(), [AsyncEvent::QpReqErr(victim.qpn())]);
            victim.restart();
            victim.still_serves(FIRST);
        }
        victim.finish();
    });
}

#[test]
fn r24_duplicates_of_a_read() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let read = read_all(&victim);
        victim.hit(&read);
        flood(&victim, &victim.peer, |_| read);
        assert!(victim.counter(Counter::duplicate_request) >= u64::from(FLOOD / BATCH * BATCH));
        victim.still_serves(FIRST.plus(PACKETS_OF_READ));
        victim.finish();
    });
}

#[test]
fn r23_duplicates_of_an_atomic_are_never_executed() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let add = Forged { operand: 3, ..victim.forge(Opcode::RC_FETCH_ADD.get()) };
        victim.hit(&add);
        victim.peer.take();
        flood(&victim, &victim.peer, |_| add);
        assert_eq!(victim.granted.buffer().load_u64(GRANTED).unwrap(), 3, "once");
        let answers = victim.peer.take();
        assert!(!answers.is_empty());
        for answer in &answers {
            let original = Packet::parse(answer).unwrap().atomic_ack_eth().unwrap().original;
            assert_eq!(original, 0, "what was there before the first time");
        }
        victim.still_serves(FIRST.plus(1));
        victim.finish();
    });
}

#[test]
fn r21_packets_ahead_of_their_turn_get_one_nak() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let send = Forged { tail: 8, ..victim.forge(Opcode::RC_SEND_ONLY.get()) };
        flood(&victim, &victim.peer, |number| Forged { psn: FIRST.plus(1 + number), ..send });
        assert_eq!(victim.peer.take_naks(), (vec![NakCode::PsnSequenceError], 0));
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn answers_that_nobody_asked_for() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let ack = victim.forge(Opcode::RC_ACKNOWLEDGE.get());
        let kinds = [0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12];
        flood(&victim, &victim.peer, |number| Forged {
            opcode: kinds[number as usize % kinds.len()],
            psn: FIRST.plus(number * 977),
            syndrome: Syndrome::from_byte(number as u8),
            tail: if number % 5 == 0 { 256 } else { 0 },
            ..ack
        });
        assert_eq!(victim.events(), []);
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn messages_that_nobody_has_a_receive_for() {
    alone(|| {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let victim = Victim::new(qp_type);
            let opcode = match qp_type {
                QpType::Rc => Opcode::RC_SEND_ONLY,
                QpType::Uc => Opcode::UC_SEND_ONLY,
                _ => Opcode::UD_SEND_ONLY,
            };
            let send = Forged { tail: 8, ..victim.forge(opcode.get()) };
            victim.hit(&send);
            victim.end.done();
            // RC is asked again and again for the same one, the others for one after the other.
            let step = u32::from(qp_type != QpType::Rc);
            flood(&victim, &victim.peer, |number| Forged {
                psn: FIRST.plus(1 + step * number),
                ..send
            });
            assert!(victim.is_alive());
            victim.refill();
            victim.hit(&Forged { psn: FIRST.plus(1 + step * (FLOOD / BATCH * BATCH)), ..send });
            victim.end.done();
            victim.finish();
        }
    });
}

#[test]
fn notifications_slow_down_and_break_nothing() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let cnp = Forged { tail: 16, ..victim.forge(Opcode::CNP.get()) };
        let stranger = Attacker::new();
        flood(&victim, &stranger, |_| cnp);
        assert_eq!(victim.counter(Counter::rp_cnp_handled), 0, "a stranger slows nobody down");
        flood(&victim, &victim.peer, |_| cnp);
        assert_ne!(victim.counter(Counter::rp_cnp_handled), 0);
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn strangers_of_many_ports_are_not_all_remembered() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let mut write = Forged { tail: 8, ..victim.forge(Opcode::RC_WRITE_ONLY.get()) };
        write.reth.len = 8;
        let before = resident();
        for _ in 0..3_000 {
            // Each from a port of its own.
            Attacker::of_any_port().send(&write.bytes());
            victim.settle(1);
        }
        assert!(resident().saturating_sub(before) < GROWTH);
        assert!(victim.granted_bytes().iter().all(|&byte| byte == 0));
        victim.still_serves(FIRST);
        victim.finish();
    });
}
