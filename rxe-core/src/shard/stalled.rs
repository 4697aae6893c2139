//! Whether each queue pair goes on by itself: what simulations ask after each step.
//!
//! Packets may be lost at any time, so nobody else makes a queue pair go on for sure.

use rxe_wire::Qpn;

use super::Shard;
use crate::qp::QpState;
use crate::qp::machine::Machine;
use crate::window::Load;

/// What makes a queue pair go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Liveness {
    /// It has nothing to do.
    Idle,
    /// Its turn to send will come, or one of its timers.
    Goes,
    /// It has nothing under way, and waits for room in the window that others take up.
    Waits,
    /// Nothing does.
    Stalled,
}

impl Liveness {
    /// Who has packets under way must watch over them itself: it may be the room of these very
    /// packets that it waits for.
    fn of(machine: &Machine) -> Self {
        let has_requests = machine.attr.state == QpState::Rts && machine.has_requests_to_send();
        if !has_requests && !machine.needs_no_room() && !machine.send.is_outstanding() {
            return Self::Idle;
        }
        if machine.is_ready || machine.timers.is_running() {
            return Self::Goes;
        }
        let needs_room = machine.is_waiting && !machine.needs_no_room();
        match needs_room && machine.send.in_flight() == Load::default() {
            true => Self::Waits,
            false => Self::Stalled,
        }
    }
}

impl Shard {
    /// A queue pair that will do nothing more unless a packet comes, though it has requests under
    /// way, or something to send: no timer of it runs, nor of anybody whom it waits for.
    ///
    /// There is none after any call of the shard, or the shard is wrong. This looks at all queue
    /// pairs, and is meant for simulations.
    pub fn stalled_qp(&self) -> Option<Qpn> {
        let is_stalled = |machine: &Machine| match Liveness::of(machine) {
            Liveness::Idle | Liveness::Goes => false,
            Liveness::Waits => !self.is_room_to_come(machine),
            Liveness::Stalled => true,
        };
        let mut machines = self.machines.iter().map(|(_, machine)| machine);
        machines.find(|machine| is_stalled(machine)).map(|machine| machine.qp.qpn())
    }

    /// Whether the window that a queue pair waits for is taken up by one that goes on.
    fn is_room_to_come(&self, machine: &Machine) -> bool {
        let window = machine.connection.and_then(|connection| self.windows.get(connection.window));
        let gives_room = |user: u32| {
            let user = self.machines.get(user as usize);
            user.is_some_and(|u| u.charged.packets > 0 && Liveness::of(u) == Liveness::Goes)
        };
        window.is_some_and(|window| window.users().any(gives_room))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gid_table::{Gid, GidTable, GidType, WantedGid};

    use super::*;
    use crate::config::{DeviceConfig, Seed};
    use crate::device::{Device, Port};
    use crate::qp::{AddressVector, Mtu, QpAttr, QpInit, QpType, QueuePair, RC_TO_RTS};
    use crate::time::Instant;
    use crate::wq::{SendData, SendFlags, SendOp, SendWr};

    const NOW: Instant = Instant::from_nanos(1);

    /// A shard with queue pairs to one peer.
    fn shard(count: u32) -> (Shard, Vec<Arc<QueuePair>>) {
        let gid = Gid::from_ip([10, 0, 0, 1].into());
        let mut gids = GidTable::new(1, 16);
        let wanted = WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true };
        gids.add(wanted).expect("room");
        let config = DeviceConfig::new(Seed::for_test(1));
        let device = Device::new(config, vec![Port::new(gids, Mtu::M4096)]);
        let (pd, cq) = (device.alloc_pd().expect("a PD"), device.create_cq(4096, None));
        let cq = cq.expect("a CQ");
        let mut shard = Shard::new(device, 1);
        let peer = Gid::from_ip([10, 0, 0, 2].into());
        let mut qp = |low| {
            let mut init = QpInit::new(QpType::Rc, pd, &cq);
            init.caps.max_send_wr = 200;
            let qp = shard.create_qp(init).expect("a queue pair");
            for (state, mask) in RC_TO_RTS {
                let (av, dest_qpn) = (AddressVector::new(peer, 0), Qpn::new(0x02_0000 + low));
                let attr = QpAttr { state, av, dest_qpn, timeout: 14, ..QpAttr::default() };
                shard.modify_qp(NOW, qp.qpn(), &attr, mask).expect("its attributes");
            }
            qp
        };
        let qps = (0..count).map(&mut qp).collect();
        (shard, qps)
    }

    fn send(shard: &mut Shard, qp: &QueuePair, count: u64) {
        for wr_id in 0..count {
            let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
            let wr = SendWr { wr_id, op, flags, data: SendData::Sges(&[]), srq_number: None };
            qp.post_send(&wr).expect("posted");
        }
        shard.kick(NOW, qp.qpn());
        let mut buf = [0; Shard::MAX_PACKET];
        while shard.poll_transmit(NOW, &mut buf).is_some() {}
    }

    fn stop_timers(shard: &mut Shard, qp: &QueuePair) {
        let key = shard.find(qp.qpn()).expect("it is there");
        shard.machines[key as usize].timers.stop_all();
    }

    #[test]
    fn what_nobody_watches_over_is_found() {
        let (mut shard, qps) = shard(1);
        assert_eq!(shard.stalled_qp(), None);
        send(&mut shard, &qps[0], 1);
        assert_eq!(shard.stalled_qp(), None);
        stop_timers(&mut shard, &qps[0]);
        assert_eq!(shard.stalled_qp(), Some(qps[0].qpn()));
    }

    #[test]
    fn who_waits_for_room_waits_for_somebody_who_goes_on() {
        let (mut shard, qps) = shard(2);
        send(&mut shard, &qps[0], 100);
        send(&mut shard, &qps[1], 1);
        let key = shard.find(qps[1].qpn()).expect("it is there");
        assert!(shard.machines[key as usize].is_waiting, "the window is full");
        assert_eq!(shard.stalled_qp(), None);
        stop_timers(&mut shard, &qps[0]);
        let all = [qps[0].qpn(), qps[1].qpn()];
        assert_eq!(shard.stalled_qp(), Some(all[0]));
        // Even where that one is found by nobody.
        let key = shard.find(all[0]).expect("it is there");
        let waiting = shard.machines.remove(key as usize);
        assert_eq!(shard.stalled_qp(), Some(all[1]));
        drop(waiting);
    }
}
