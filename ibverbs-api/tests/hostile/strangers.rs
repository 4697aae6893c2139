//! Packets of those who are not the peer, packets that are none, and packets for nobody.

use ibverbs_api::*;
use rxe_wire::{NakCode, Opcode, PKey, Syndrome};
use testkit::netns::alone;

use crate::attacker::{Attacker, Forged};
use crate::common::*;
use crate::victim::*;

/// A packet that would do something if it were taken.
fn effective(victim: &Victim) -> Vec<Forged> {
    let mut write = Forged { tail: 8, ..victim.forge(Opcode::RC_WRITE_ONLY.get()) };
    write.reth.len = 8;
    let mut read = victim.forge(Opcode::RC_READ_REQUEST.get());
    read.reth.len = 8;
    let send = Forged { tail: 8, ..victim.forge(Opcode::RC_SEND_ONLY.get()) };
    let swap = victim.forge(Opcode::RC_COMPARE_SWAP.get());
    // A refusal that would break the connection, and one that would have everything sent again.
    let fatal = Syndrome::nak(NakCode::RemoteAccessError);
    let fatal = Forged { syndrome: fatal, ..victim.forge(Opcode::RC_ACKNOWLEDGE.get()) };
    let again = Forged { syndrome: Syndrome::nak(NakCode::PsnSequenceError), ..fatal };
    let bad = Forged { tail: 0, ..write };
    let slow = Forged { tail: 16, ..victim.forge(Opcode::CNP.get()) };
    vec![write, read, send, swap, fatal, again, bad, slow]
}

/// Nothing has come of any of it: no memory changed, no answer, no event, no completion.
fn nothing_came_of_it(victim: &Victim, what: &dyn std::fmt::Debug) {
    victim.check_guards(what);
    assert!(victim.is_alive(), "{what:?}");
    assert!(victim.granted_bytes().iter().all(|&byte| byte == 0), "{what:?}");
    assert!(victim.inbox_bytes().iter().all(|&byte| byte == 0), "{what:?}");
    assert_eq!(victim.end.cq.poll(1, &mut Vec::new()), 0, "{what:?}");
    assert_eq!((victim.events(), victim.peer.take()), (vec![], vec![]), "{what:?}");
}

#[test]
fn r57_a_stranger_is_not_the_peer() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        // A request is outstanding, so that an acknowledgement would be awaited.
        let source = victim.end.register(8);
        victim.end.post(9, SEND, &[source.sge(0..8)]);
        victim.peer.take();
        let stranger = Attacker::new();
        let attacks = effective(&victim);
        for (done, forged) in (1..).zip(&attacks) {
            stranger.send(&forged.bytes());
            victim.settle(1);
            assert_eq!(victim.counter(Counter::drop_wrong_address), done, "{forged:?}");
            assert!(victim.is_alive(), "{forged:?}");
        }
        victim.check_guards(&"a stranger");
        assert!(victim.granted_bytes().iter().all(|&byte| byte == 0));
        assert_eq!(victim.end.cq.poll(1, &mut Vec::new()), 0);
        assert_eq!(victim.counter(Counter::rp_cnp_handled), 0);
        assert_eq!(victim.counter(Counter::rcvd_seq_err), 0);
        assert!(stranger.take().is_empty(), "strangers get no answer");
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn r57_foreign_partitions_and_versions() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let attacks = effective(&victim);
        for forged in &attacks {
            for tver in 1..16 {
                let before = victim.counter(Counter::drop_bad_version);
                victim.hit(&Forged { tver, ..*forged });
                assert_eq!(victim.counter(Counter::drop_bad_version), before + 1);
            }
            for pkey in [0, 1, 0x7ffe, 0x8000, 0xfffe, 0x8001, 0xbfff].map(PKey::new) {
                let before = victim.counter(Counter::drop_bad_pkey);
                victim.hit(&Forged { pkey, ..*forged });
                assert_eq!(victim.counter(Counter::drop_bad_pkey), before + 1, "{pkey}");
            }
            nothing_came_of_it(&victim, forged);
        }
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn packets_for_nobody() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let own = victim.qpn().get();
        let numbers = [0, 1, 2, 0xff_ffff, 0xff_fffe, own ^ 0x8000, own ^ 0x80_0000, own & 0xffff];
        for forged in effective(&victim) {
            for number in numbers {
                victim.hit(&Forged { qpn: Qpn::new(number), ..forged });
                nothing_came_of_it(&victim, &(number, forged));
            }
        }
        let dropped =
            victim.counter(Counter::drop_no_such_qp) + victim.counter(Counter::drop_wrong_service);
        assert_eq!(dropped, 8 * numbers.len() as u64);
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn r35_runts_and_wrong_checksums() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let link = |victim: &Victim| victim.end.context.link_counters();
        for len in 0..=20 {
            for fill in [0x00, 0xff, 0x0a] {
                victim.peer.send_raw(&vec![fill; len]);
                victim.settle(1);
            }
        }
        assert_eq!(link(&victim).malformed, 3 * 16, "those shorter than 16 bytes");
        for forged in effective(&victim) {
            let whole = forged.bytes();
            // R35: cut off anywhere, with the right iCRC of what is left.
            for len in 0..whole.len() {
                if whole.len() - forged.tail > len {
                    victim.hit_with(&whole[..len]);
                }
            }
            let before = link(&victim).icrc_errors;
            for bit in 0..32 {
                victim.peer.send_raw(&[&whole[..], &(1_u32 << bit).to_le_bytes()].concat());
                victim.settle(1);
            }
            assert_eq!(link(&victim).icrc_errors, before + 32);
            nothing_came_of_it(&victim, &forged);
        }
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn r57_datagrams_with_other_queue_keys() {
    alone(|| {
        let victim = Victim::new(QpType::Ud);
        let send = Forged { tail: 8, ..victim.forge(Opcode::UD_SEND_ONLY.get()) };
        let right = KEY.get();
        for bit in 0..32 {
            victim.hit(&Forged { qkey: QKey::new(right ^ 1 << bit), ..send });
        }
        assert_eq!(victim.counter(Counter::drop_bad_qkey), 32);
        nothing_came_of_it(&victim, &"other queue keys");
        victim.hit(&send);
        assert_eq!(victim.end.done().byte_len, 48);
        victim.finish();
    });
}

/// The queue key of QP1 (IBA volume 1, section 13.5).
const GSI_QKEY: QKey = QKey::new(0x8001_0000);

#[test]
fn garbage_for_general_services() {
    alone(|| {
        let victim = Victim::new(QpType::Gsi);
        let mut state = 1_u64;
        for round in 0..200 {
            let len = (round * 7) % 300;
            let send = Forged { qkey: GSI_QKEY, ..victim.forge(Opcode::UD_SEND_ONLY.get()) };
            let mut bytes = Forged { tail: 0, ..send }.bytes();
            bytes.extend(pattern(len / 4 * 4, state));
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            victim.hit_with(&bytes);
            assert_eq!(victim.end.done().byte_len as usize, 40 + len / 4 * 4);
            victim.refill();
            // The same with a key that is not the one.
            victim.hit(&Forged { qkey: KEY, ..send });
        }
        assert_eq!(victim.counter(Counter::drop_bad_qkey), 200);
        victim.finish();
    });
}
