//! Keys and ranges of memory that the peer has no right to.

use ibverbs_api::*;
use rxe_wire::hdr::Reth;
use rxe_wire::{NakCode, Opcode};
use testkit::netns::alone;

use crate::attacker::Forged;
use crate::common::*;
use crate::victim::*;

const ATOMICS: [Opcode; 2] = [Opcode::RC_COMPARE_SWAP, Opcode::RC_FETCH_ADD];

/// Ranges that are not within what is granted, each off in its own way.
fn bad_ranges(base: u64) -> Vec<(u64, u32)> {
    let len = GRANTED as u64;
    vec![
        (base - 1, 1),
        (base - 1, 2),
        (base - 8, 8),
        (base - 1, GRANTED as u32 + 2),
        (base + len, 1),
        (base + len - 1, 2),
        (base + len - 7, 8),
        (base + 1, GRANTED as u32),
        (base, GRANTED as u32 + 1),
        (0, 1),
        (0, 1 << 31),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 7, 8),
        (u64::MAX - 3, 8),
        (u64::MAX - (1 << 31) + 1, 1 << 31),
        (base, 1 << 31),
        (base + len, 1 << 31),
        (base.wrapping_sub(1 << 31), 1 << 31),
        (base.wrapping_sub((1 << 31) - 8), 1 << 31),
        (base | 1 << 63, 8),
        (base.wrapping_add(1 << 32), 8),
        (base.wrapping_sub(1 << 32), 8),
    ]
}

/// A packet that asks for `len` bytes there: the first of a WRITE, where one is not enough.
fn ask(victim: &Victim, operation: Opcode, va: u64, rkey: RKey, len: u32) -> Forged {
    let reth = Reth { va, rkey, len };
    let mtu = MTU.bytes();
    let forged = Forged { reth, ..victim.forge(operation.get()) };
    match operation {
        Opcode::RC_WRITE_ONLY | Opcode::UC_WRITE_ONLY if len as usize > mtu => {
            let first = Opcode::RC_WRITE_ONLY.get() - Opcode::RC_WRITE_FIRST.get();
            Forged { opcode: forged.opcode - first, tail: mtu, ..forged }
        }
        Opcode::RC_WRITE_ONLY | Opcode::UC_WRITE_ONLY | Opcode::RC_WRITE_ONLY_WITH_IMM => {
            let tail = (len as usize).next_multiple_of(4);
            Forged { pad: (tail - len as usize) as u8, tail, ..forged }
        }
        _ => forged,
    }
}

/// The queue pair refuses it with this code, tells of it, and gives nothing away.
fn refused(victim: &Victim, forged: &Forged, code: NakCode) {
    victim.restart();
    let before = victim.granted_bytes();
    victim.hit(forged);
    let qpn = victim.qpn();
    assert_eq!(victim.end.qp.state(), QpState::Err, "{forged:?}");
    assert_eq!(victim.peer.take_naks(), (vec![code], 0), "{forged:?}");
    let event = match code {
        NakCode::InvalidRequest => AsyncEvent::QpReqErr(qpn),
        _ => AsyncEvent::QpAccessErr(qpn),
    };
    assert_eq!(victim.events(), [event], "{forged:?}");
    assert_eq!(victim.granted_bytes(), before, "{forged:?}");
    victim.check_guards(forged);
    // R47: what was posted comes back.
    let receive = victim.end.cq.wait_one(LONG).unwrap();
    assert_eq!((receive.wr_id, receive.status), (1, WcStatus::WrFlushErr));
}

#[test]
fn r33_no_range_beyond_what_is_granted() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let RemoteAddr { addr: base, rkey } = victim.granted.remote_addr(0);
        for (va, len) in bad_ranges(base) {
            for operation in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST] {
                let forged = ask(&victim, operation, va, rkey, len);
                refused(&victim, &forged, NakCode::RemoteAccessError);
            }
            for operation in ATOMICS.into_iter().filter(|_| len == 8) {
                let forged = ask(&victim, operation, va, rkey, 0);
                refused(&victim, &forged, NakCode::RemoteAccessError);
            }
        }
        for len in [(1 << 31) + 1, u32::MAX] {
            for operation in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST] {
                // Longer than any message.
                let forged = ask(&victim, operation, base, rkey, len);
                refused(&victim, &forged, NakCode::InvalidRequest);
            }
        }
        for offset in 1..8 {
            for operation in ATOMICS {
                let forged = ask(&victim, operation, base + offset, rkey, 0);
                refused(&victim, &forged, NakCode::InvalidRequest);
            }
        }
        victim.restart();
        victim.still_serves(FIRST);
        victim.finish();
    });
}

/// Keys that do not grant the operation.
fn bad_keys(victim: &Victim, operation: Opcode) -> Vec<RKey> {
    let stale = victim.end.register(GRANTED).rkey();
    let granted = victim.granted.rkey().get();
    let mut keys = vec![stale, victim.other_pd.rkey(), victim.local_only.rkey()];
    if operation != Opcode::RC_READ_REQUEST {
        keys.push(victim.read_only.rkey());
    }
    if operation != Opcode::RC_WRITE_ONLY && operation != Opcode::UC_WRITE_ONLY {
        keys.push(victim.write_only.rkey());
    }
    // Every other variant of the right key, then keys of nothing.
    keys.extend((1..=255).map(|change| RKey::new(granted ^ change)));
    keys.extend([0, 1, u32::MAX, granted ^ 0x8000_0000, granted.swap_bytes()].map(RKey::new));
    keys
}

/// Where a key would grant something, if it granted this.
fn start_of(victim: &Victim, rkey: RKey) -> u64 {
    let Victim { granted, local_only, read_only, write_only, other_pd, .. } = victim;
    let regions = [local_only, read_only, write_only, other_pd];
    regions.into_iter().find(|region| region.rkey() == rkey).unwrap_or(granted).addr()
}

#[test]
fn r32_no_key_grants_more_than_it_was_made_for() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let [swap, add] = ATOMICS;
        for operation in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST, swap, add] {
            for rkey in bad_keys(&victim, operation) {
                let forged = ask(&victim, operation, start_of(&victim, rkey), rkey, 8);
                refused(&victim, &forged, NakCode::RemoteAccessError);
            }
        }
        victim.restart();
        victim.still_serves(FIRST);
        victim.finish();
    });
}

#[test]
fn r28_a_zero_length_gives_nothing_away_whatever_the_key() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        for rkey in [victim.other_pd.rkey(), RKey::new(u32::MAX)] {
            for operation in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST] {
                victim.restart();
                victim.hit(&ask(&victim, operation, u64::MAX, rkey, 0));
                assert!(victim.is_alive());
                assert_eq!(victim.peer.take_naks(), (vec![], 1), "an answer");
                victim.still_serves(FIRST.plus(1));
            }
        }
        victim.finish();
    });
}

#[test]
fn r36_a_write_with_immediate_and_a_bad_key_is_told_by_the_receive() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let rkey = victim.read_only.rkey();
        let va = victim.read_only.addr();
        victim.hit(&ask(&victim, Opcode::RC_WRITE_ONLY_WITH_IMM, va, rkey, 8));
        assert_eq!(victim.end.qp.state(), QpState::Err);
        assert_eq!(victim.events(), []);
        let receive = victim.end.cq.wait_one(LONG).unwrap();
        assert_eq!((receive.wr_id, receive.status), (1, WcStatus::LocAccessErr));
        assert_eq!(victim.peer.take_naks(), (vec![NakCode::RemoteAccessError], 0));
        victim.finish();
    });
}

#[test]
fn a_queue_pair_without_access_refuses_what_the_key_would_grant() {
    alone(|| {
        let mut victim = Victim::new(QpType::Rc);
        victim.set_access(AccessFlags::LOCAL_WRITE);
        let RemoteAddr { addr, rkey } = victim.granted.remote_addr(0);
        let [swap, add] = ATOMICS;
        for operation in [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST, swap, add] {
            refused(&victim, &ask(&victim, operation, addr, rkey, 8), NakCode::InvalidRequest);
        }
        victim.finish();
    });
}

#[test]
fn r29_uc_drops_in_silence_what_rc_refuses() {
    alone(|| {
        let victim = Victim::new(QpType::Uc);
        let operation = Opcode::UC_WRITE_ONLY;
        let RemoteAddr { addr: base, rkey } = victim.granted.remote_addr(0);
        let mut attacks: Vec<_> = bad_ranges(base)
            .into_iter()
            .chain([(base, (1 << 31) + 1), (base, u32::MAX)])
            .map(|(va, len)| ask(&victim, operation, va, rkey, len))
            .collect();
        attacks.extend(bad_keys(&victim, operation).into_iter().map(|rkey| {
            let va = start_of(&victim, rkey);
            ask(&victim, operation, va, rkey, 8)
        }));
        let before = victim.granted_bytes();
        let count = |victim: &Victim| {
            victim.counter(Counter::drop_no_access) + victim.counter(Counter::drop_bad_length)
        };
        for (psn, forged) in (0..).zip(attacks) {
            let dropped = count(&victim);
            victim.hit(&Forged { psn: FIRST.plus(psn), ..forged });
            assert_eq!(count(&victim), dropped + 1, "{forged:?}");
            victim.check_guards(&forged);
        }
        assert!(victim.is_alive());
        assert_eq!((victim.granted_bytes(), victim.events()), (before, vec![]));
        assert_eq!(victim.peer.take(), Vec::<Vec<u8>>::new());
        victim.finish();
    });
}

#[test]
fn r43_a_window_is_for_its_queue_pair_and_its_range_alone() {
    alone(|| {
        let victim = Victim::new(QpType::Rc);
        let pd = &victim.end.pd;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let region = pd.register(DmaBuf::zeroed(3 * GRANTED), access).unwrap();
        // Bound by another queue pair of the same domain, which is connected to itself.
        let cq = victim.end.context.create_cq(4, None, 0).unwrap();
        let binder = pd.create_qp(QpInit::new(QpType::Rc, &cq, &cq)).unwrap();
        let own = gid(&victim.end.context, Family::V4).gid;
        let attr = attr_to(&Setup::default(), &victim.end.context, own, binder.qpn());
        binder.connect(&attr).unwrap();
        let allowed = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let bind = region.window(GRANTED..2 * GRANTED, allowed);
        let [for_all, for_one] = [MwType::Type1, MwType::Type2].map(|t| pd.alloc_mw(t).unwrap());
        let unbound = pd.alloc_mw(MwType::Type1).unwrap();
        let [to_all, to_one] = [&for_all, &for_one].map(|window| {
            let rkey = binder.bind_mw(window, 1, SendFlags::SIGNALED, bind).unwrap();
            assert_eq!(cq.wait_one(LONG).unwrap().status, WcStatus::Success);
            rkey
        });
        let base = region.addr() + GRANTED as u64;
        let operations = [Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST];
        for operation in operations {
            for rkey in [to_one, unbound.rkey(), region.rkey()] {
                refused(
                    &victim,
                    &ask(&victim, operation, base, rkey, 8),
                    NakCode::RemoteAccessError,
                );
            }
            for (va, len) in bad_ranges(base) {
                let forged = ask(&victim, operation, va, to_all, len);
                refused(&victim, &forged, NakCode::RemoteAccessError);
            }
        }
        // R41: nor may this queue pair make the window of the other one invalid, or one of type 1.
        for invalidate in [to_one, to_all, region.rkey()] {
            victim.restart();
            victim.hit(&Forged { invalidate, ..victim.forge(Opcode::RC_SEND_ONLY_WITH_INV.get()) });
            assert_eq!(victim.end.qp.state(), QpState::Err);
            assert_eq!(victim.peer.take_naks(), (vec![NakCode::RemoteAccessError], 0));
        }
        assert_eq!(for_one.rkey(), to_one);
        assert!(read(region.buffer(), 0, 3 * GRANTED).iter().all(|&byte| byte == 0));
        victim.restart();
        victim.hit(&ask(&victim, Opcode::RC_WRITE_ONLY, base, to_all, 8));
        assert_eq!(read(region.buffer(), GRANTED, 8), [Forged::FILL; 8], "what is allowed");
        victim.finish();
    });
}
