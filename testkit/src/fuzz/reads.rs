//! READs whose responses the input gives in any order, and the check that none completes without
//! them.

use std::collections::{HashMap, HashSet, VecDeque};

use arbitrary::{Result, Unstructured};
use rxe_core::wc::{WcStatus, WorkCompletion};
use rxe_wire::hdr::{Aeth, Bth};
use rxe_wire::{
    Headers, Msn, NakCode, Opcode, Operation, PKey, Packet, Position, Psn, Qpn, Syndrome,
};

/// Requests for READs that are remembered, so that they can be answered.
const ASKED: usize = 64;

/// What one READ request asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    first: Psn,
    len: usize,
}

/// The READs of one queue pair, seen from its peer.
pub(super) struct Reads {
    qpn: Qpn,
    mtu: usize,
    /// The PSN of the next request that is posted.
    next: Psn,
    /// First PSN and packets of the READs that are not complete.
    posted: HashMap<u64, (Psn, u32)>,
    asked: VecDeque<Asked>,
    /// The PSNs of responses to what was asked for, right or wrong.
    came: HashSet<Psn>,
    /// Requests that end before one that asked for the same: for what is missing before a response.
    pub(super) gaps_asked: usize,
    /// READs with a gap that succeeded.
    pub(super) mended: usize,
    with_gap: HashSet<u64>,
}

impl Reads {
    /// Of queue pair `qpn`, whose first request has PSN `first`.
    pub(super) fn new(qpn: Qpn, mtu: usize, first: Psn) -> Self {
        let (posted, asked, came) = (HashMap::new(), VecDeque::new(), HashSet::new());
        let (gaps_asked, mended, with_gap) = (0, 0, HashSet::new());
        Self { qpn, mtu, next: first, posted, asked, came, gaps_asked, mended, with_gap }
    }

    /// A request with `len` bytes was posted.
    pub(super) fn posted(&mut self, wr_id: u64, is_read: bool, len: usize) {
        let packets = len.div_ceil(self.mtu).max(1) as u32;
        if is_read {
            self.posted.insert(wr_id, (self.next, packets));
        }
        self.next = self.next.plus(packets);
    }

    /// The queue pair sent a packet.
    ///
    /// # Panics
    ///
    /// When it asks for what no READ is about.
    pub(super) fn sent(&mut self, packet: &Packet<'_>) {
        let Some(reth) = packet.reth().filter(|_| is(packet, Operation::ReadRequest)) else {
            return;
        };
        let asked = Asked { first: packet.bth().psn, len: reth.len as usize };
        let read = self.posted.iter().find(|(_, read)| contains(read, asked.first));
        let (&wr_id, &(first, packets)) = read
            .unwrap_or_else(|| panic!("asks for what is complete, or was never posted: {packet}"));
        let end = asked.first.plus(self.packets(asked));
        assert!(!end.is_after(first.plus(packets)), "asks for more than the READ: {packet}");
        // Whatever else is asked for again goes to the end of what was asked for before.
        let ends_before = |before: &Asked| {
            let packets = self.packets(*before);
            contains(&(before.first, packets), asked.first)
                && end.is_before(before.first.plus(packets))
        };
        if self.asked.iter().any(ends_before) {
            self.gaps_asked += 1;
            self.with_gap.insert(wr_id);
        }
        self.asked.push_back(asked);
        if self.asked.len() > ASKED {
            self.asked.pop_front();
        }
    }

    /// A packet is about to come.
    pub(super) fn coming(&mut self, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        if is(&packet, Operation::ReadResponse) {
            self.came.insert(packet.bth().psn);
        }
    }

    /// A request has completed.
    ///
    /// # Panics
    ///
    /// When it is a READ that succeeded without all of its responses.
    pub(super) fn completed(&mut self, wc: &WorkCompletion) {
        let Some((first, packets)) = self.posted.remove(&wc.wr_id) else { return };
        if wc.status != WcStatus::Success {
            return;
        }
        let missing = (0..packets).find(|&index| !self.came.contains(&first.plus(index)));
        assert_eq!(missing, None, "left: the packet of a READ that never came: {wc:?}");
        self.mended += usize::from(self.with_gap.contains(&wc.wr_id));
    }

    /// A few packets in a row of the answer to one of the requests, most of them right.
    pub(super) fn answer(&self, u: &mut Unstructured<'_>) -> Result<Vec<Vec<u8>>> {
        if self.asked.is_empty() {
            return Ok(Vec::new());
        }
        // The newest are tried most.
        let back = usize::from(u.arbitrary::<u8>()?) % self.asked.len().min(16);
        let asked = self.asked[self.asked.len() - 1 - back];
        let packets = self.packets(asked);
        let from = u32::from(u.arbitrary::<u8>()?) % packets;
        let twist: u8 = u.arbitrary()?;
        let upto = packets.min(from + 1 + u32::from(twist >> 6));
        (from..upto).map(|index| self.packet(u, asked, index, twist & 0x3f)).collect()
    }

    fn packet(
        &self,
        u: &mut Unstructured<'_>,
        asked: Asked,
        index: u32,
        twist: u8,
    ) -> Result<Vec<u8>> {
        let mut position = match (index == 0, index + 1 == self.packets(asked)) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        let mut len = (asked.len - index as usize * self.mtu).min(self.mtu);
        let mut syndrome = Syndrome::ACK_UNLIMITED;
        match twist {
            0 => {
                let all = [Position::First, Position::Middle, Position::Last, Position::Only];
                position = *u.choose(&all)?;
            }
            1 => len = u.int_in_range(0..=self.mtu as u16 + 4)?.into(),
            2 => syndrome = Syndrome::nak(NakCode::RemoteOperationalError),
            _ => {}
        }
        let (opcode, has_aeth) = match position {
            Position::First => (Opcode::RC_READ_RESPONSE_FIRST, true),
            Position::Middle => (Opcode::RC_READ_RESPONSE_MIDDLE, false),
            Position::Last => (Opcode::RC_READ_RESPONSE_LAST, true),
            Position::Only => (Opcode::RC_READ_RESPONSE_ONLY, true),
        };
        let pad = len.wrapping_neg() & 3;
        let (psn, pkey, dest_qpn) = (asked.first.plus(index), PKey::DEFAULT, self.qpn);
        let bth = Bth { opcode, pad: pad as u8, pkey, dest_qpn, psn, ..Bth::default() };
        let aeth = has_aeth.then_some(Aeth { syndrome, msn: Msn::new(1) });
        let mut bytes = vec![twist; 64 + len];
        let headers = Headers { aeth, ..Headers::new(bth) };
        let headers = headers.write(&mut bytes).expect("there is room");
        bytes.truncate(headers + len);
        bytes.resize(headers + len + pad, 0);
        Ok(bytes)
    }

    fn packets(&self, asked: Asked) -> u32 {
        asked.len.div_ceil(self.mtu).max(1) as u32
    }
}

fn is(packet: &Packet<'_>, operation: Operation) -> bool {
    packet.info().operation == operation
}

fn contains(&(first, packets): &(Psn, u32), psn: Psn) -> bool {
    (0..packets as i32).contains(&psn.distance_from(first))
}
