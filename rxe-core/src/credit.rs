//! Flow control for services without acknowledgements, UC and UD, between engines of this kind.
//!
//! Where RDMA has hardware, links pause a sender before a receiver's buffer is full (IEEE 802.1Qbb),
//! and programs rely on it: what is lost stays lost, and they wait for it. A socket pauses nobody.
//! So the sender asks its peer now and then how far it has come, in a packet behind the data, and
//! sends no more than a receive buffer holds before the answer comes. The peer answers when it has
//! taken the question from its socket, and with it all that came before.
//!
//! Question and answer ([`FlowNote`]) are packets of RoCE with opcodes that others drop. A peer that
//! never answers is sent to as fast as it goes, and asked again later.

use std::collections::HashMap;

use rxe_wire::{FlowNote, FlowNoteKind, Qpn};

use crate::path::Path;
use crate::time::Instant;
use crate::window::{Peer, packet_cost};

/// What may be under way unanswered, in bytes of truesize: as the first window of a reliable peer,
/// well within the default receive buffer.
const WINDOW: u64 = 64 * packet_cost(1024) as u64;
/// How long an answer may take before it is asked for again: it or the question may be lost.
const PATIENCE_NANOS: u64 = 2_000_000;
/// Questions in vain after which a peer that has never answered is taken for one that does not: for
/// 32 ms. On a busy host, where all of its processors are shared, a good one may take so long.
const STRANGER_QUESTIONS: u32 = 16;
/// And one that has answered: for half a second nobody has run there, or it is gone.
const KNOWN_QUESTIONS: u32 = 250;
/// How long a peer that does not answer is not asked, at first and at most.
const FIRST_SILENCE_NANOS: u64 = 100_000_000;
const LONGEST_SILENCE_NANOS: u64 = 10_000_000_000;
/// An answer that tells of so much is progress, whichever question it is to. One that tells of less
/// is forged, or late, and does not lengthen the wait: or a byte at a time would hold a sender up
/// for ever.
const PROGRESS: u64 = WINDOW / 4;
/// Peers that are remembered at most. Beyond that, those that nobody waits for are forgotten, and
/// all where too few of those are left.
const MAX_PEERS: usize = 1024;

/// Whether a packet may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Credit {
    /// It may.
    Given,
    /// Not before an answer comes, or this time.
    Until(Instant),
}

/// A question or an answer, on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) path: Path,
    pub(crate) flow: FlowNote,
}

impl Note {
    /// Reads a packet; `None` when it is no question and no answer.
    pub(crate) fn read(path: &Path, bytes: &[u8]) -> Option<Self> {
        FlowNote::read(bytes).map(|flow| Self { path: *path, flow })
    }

    /// The answer to it, if it is a question.
    pub(crate) fn answer(&self) -> Option<Self> {
        let (source, destination) = (self.path.destination, self.path.source);
        let Path { gid_type, vlan, .. } = self.path;
        let path = Path { gid_type, vlan, ..Path::new(source, destination) };
        let (dest_qpn, source_qpn) = (self.flow.source_qpn, self.flow.dest_qpn);
        let flow = FlowNote { kind: FlowNoteKind::Answer, dest_qpn, source_qpn, ..self.flow };
        (self.flow.kind == FlowNoteKind::Question).then_some(Self { path, flow })
    }
}

/// What was sent to the peers of a shard by services without acknowledgements.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    peers: HashMap<Peer, PeerCredit>,
    /// Lists of those who wait for an answer that were begun: the number of the last one.
    lists: u64,
}

/// A queue pair that asks whether it may send.
#[derive(Debug)]
pub(crate) struct Asker<'a> {
    /// Its key in the shard.
    pub(crate) key: u32,
    /// The list that it stands in; its own, kept for the next time, 0 at first.
    pub(crate) list: &'a mut u64,
    /// It has sent in this turn, so that those who have not go before it.
    pub(crate) has_sent: bool,
}

/// One peer: sums of the cost of all that was sent, wrapping.
#[derive(Debug, Default)]
struct PeerCredit {
    sent: u64,
    answered: u64,
    /// What had been sent when it was asked last.
    asked: u64,
    /// When that was, if there was no answer yet.
    asked_at: Option<Instant>,
    /// Questions in vain.
    in_vain: u32,
    has_answered: bool,
    /// It does not answer: until then it is not asked.
    silent_until: Option<Instant>,
    silence_nanos: u64,
    /// Queue pairs that wait for an answer: those that have not sent in their turn, and behind them
    /// those that have.
    waiting: Vec<u32>,
    waiting_behind: Vec<u32>,
    /// The number of these lists; `None` while they are empty.
    list: Option<u64>,
}

impl Credits {
    /// Whether a queue pair may send to a peer; if not, it is among those that [`Self::on_answer`]
    /// names. Nothing tells it that the peer is given up: it asks again when the time has come.
    pub(crate) fn ask(&mut self, now: Instant, peer: Peer, asker: Asker<'_>) -> Credit {
        let Self { peers, lists } = self;
        let Some(credit) = peers.get_mut(&peer) else { return Credit::Given };
        let state = credit.state(now);
        if state == Credit::Given {
            return state;
        }
        let list = *credit.list.get_or_insert_with(|| {
            *lists += 1;
            *lists
        });
        // Each stands there once, and is not looked for.
        if std::mem::replace(asker.list, list) != list {
            match asker.has_sent {
                true => credit.waiting_behind.push(asker.key),
                false => credit.waiting.push(asker.key),
            }
        }
        state
    }

    /// Notes that packets were sent; returns the mark of the question that is to follow them, if
    /// one is due.
    pub(crate) fn on_sent(&mut self, now: Instant, peer: Peer, cost: u64) -> Option<u64> {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer) {
            self.forget_peers();
        }
        let credit = self.peers.entry(peer).or_default();
        credit.sent = credit.sent.wrapping_add(cost);
        credit.question(now)
    }

    /// Makes room for half as many peers as there may be, at least: or each new one would have to
    /// look for it. Who waits has a timer, and is given all when it asks again.
    fn forget_peers(&mut self) {
        self.peers.retain(|_, credit| credit.list.is_some());
        if self.peers.len() > MAX_PEERS / 2 {
            self.peers.clear();
        }
    }

    /// The mark of the question that is to be repeated now, if one is.
    pub(crate) fn on_silence(&mut self, now: Instant, peer: Peer) -> Option<u64> {
        self.peers.get_mut(&peer)?.question(now)
    }

    /// Takes an answer; gives the queue pairs that waited for it to `wake`.
    pub(crate) fn on_answer(&mut self, answer: &Note, wake: &mut Vec<u32>) {
        let FlowNote { kind, source_qpn, mark, .. } = answer.flow;
        let peer = (answer.path.source, source_qpn.slot());
        let is_answer = kind == FlowNoteKind::Answer;
        let Some(credit) = self.peers.get_mut(&peer).filter(|_| is_answer) else { return };
        let sent = credit.sent.wrapping_sub(credit.answered);
        let more = mark.wrapping_sub(credit.answered);
        // One that was overtaken, or is forged.
        if more == 0 || more > sent {
            return;
        }
        credit.answered = mark;
        let is_last = mark == credit.asked;
        if is_last {
            credit.asked_at = None;
        }
        if is_last || more >= PROGRESS {
            (credit.has_answered, credit.in_vain, credit.silence_nanos) = (true, 0, 0);
            credit.silent_until = None;
        }
        credit.list = None;
        wake.append(&mut credit.waiting);
        wake.append(&mut credit.waiting_behind);
    }
}

impl PeerCredit {
    fn unanswered(&self) -> u64 {
        self.sent.wrapping_sub(self.answered)
    }

    fn state(&mut self, now: Instant) -> Credit {
        if self.silent_until.is_some_and(|until| until > now) || self.unanswered() < WINDOW {
            return Credit::Given;
        }
        let Some(asked_at) = self.asked_at else { return Credit::Given };
        let late = asked_at.plus_nanos(PATIENCE_NANOS);
        if late > now {
            return Credit::Until(late);
        }
        self.in_vain += 1;
        let most = if self.has_answered { KNOWN_QUESTIONS } else { STRANGER_QUESTIONS };
        // `question` repeats it.
        self.asked_at = None;
        if self.in_vain < most {
            return Credit::Until(now.plus_nanos(PATIENCE_NANOS));
        }
        let longer = self.silence_nanos.saturating_mul(4);
        self.silence_nanos = longer.clamp(FIRST_SILENCE_NANOS, LONGEST_SILENCE_NANOS);
        self.silent_until = Some(now.plus_nanos(self.silence_nanos));
        self.answered = self.sent;
        (self.has_answered, self.in_vain) = (false, 0);
        // They have timers; and peers that nobody waits for can be forgotten.
        self.list = None;
        self.waiting.clear();
        self.waiting_behind.clear();
        Credit::Given
    }

    /// The mark of the question that is due: half a window after the last one, if that has been
    /// answered, or once more.
    fn question(&mut self, now: Instant) -> Option<u64> {
        let is_silent = self.silent_until.is_some_and(|until| until > now);
        if is_silent {
            // Nothing of it is to be answered.
            self.answered = self.sent;
            return None;
        }
        if self.asked_at.is_some() || self.unanswered() < WINDOW / 2 {
            return None;
        }
        self.asked_at = Some(now);
        self.asked = self.sent;
        Some(self.sent)
    }
}

/// A question of queue pair `source_qpn` to `dest_qpn`.
pub(crate) fn question(path: Path, dest_qpn: Qpn, source_qpn: Qpn, mark: u64) -> Note {
    let flow = FlowNote { kind: FlowNoteKind::Question, dest_qpn, source_qpn, mark };
    Note { path, flow }
}

#[cfg(test)]
mod tests {
    use gid_table::Gid;

    use super::*;

    const PACKET: u64 = packet_cost(1024) as u64;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn qpn(slot: u32) -> Qpn {
        Qpn::new(slot << 16 | 5)
    }

    /// A shard of slot 1, and its peer of slot 2.
    struct Two {
        credits: Credits,
        path: Path,
        now: u64,
        questions: Vec<u64>,
        list: u64,
    }

    impl Two {
        fn new() -> Self {
            let path = Path::new(Gid::ZERO, Gid::from_ip("10.0.0.2".parse().expect("ip")));
            Self { credits: Credits::default(), path, now: 0, questions: Vec::new(), list: 0 }
        }

        fn peer(&self) -> Peer {
            (self.path.destination, 2)
        }

        /// Sends packets of 1 KiB while there is credit; how many, and what then.
        fn send(&mut self, most: usize) -> (usize, Credit) {
            for count in 0..most {
                let (now, peer) = (at(self.now), self.peer());
                let asker = Asker { key: 7, list: &mut self.list, has_sent: count > 0 };
                match self.credits.ask(now, peer, asker) {
                    Credit::Given => {}
                    wait => return (count, wait),
                }
                let asked = self.credits.on_sent(at(self.now), self.peer(), PACKET);
                self.questions.extend(asked);
            }
            (most, Credit::Given)
        }

        /// The peer answers a question, over the wire.
        fn answer(&mut self, mark: u64) -> Vec<u32> {
            let asked = question(self.path, qpn(2), qpn(1), mark);
            let mut bytes = [0; 64];
            asked.flow.write(&mut bytes).expect("room");
            let heard = Note::read(&self.path, &bytes[..FlowNote::LEN]).expect("a note");
            assert_eq!(heard, asked);
            let answer = heard.answer().expect("a question");
            assert_eq!((answer.flow.dest_qpn, answer.path.source), (qpn(1), self.path.destination));
            let mut woken = Vec::new();
            self.credits.on_answer(&answer, &mut woken);
            woken
        }
    }

    #[test]
    fn no_more_is_under_way_than_a_buffer_holds() {
        let mut two = Two::new();
        let (count, wait) = two.send(1000);
        assert_eq!(count as u64 * PACKET, WINDOW);
        assert_eq!(wait, Credit::Until(at(PATIENCE_NANOS)));
        assert_eq!(two.questions, [WINDOW / 2], "asked once, when half of it had left");
        let mark = two.questions[0];
        assert_eq!(two.answer(mark), [7]);
        assert_eq!(two.answer(mark), [0; 0], "a copy changes nothing");
        assert_eq!(two.send(1000).0, 32, "as much as was answered");
        assert_eq!(two.questions.len(), 2);
    }

    #[test]
    fn an_answer_to_nothing_is_ignored() {
        let mut two = Two::new();
        two.send(1000);
        assert_eq!(two.answer(WINDOW + 1), [0; 0]);
        assert_eq!(two.answer(u64::MAX), [0; 0]);
        assert_eq!(two.send(1000).0, 0);
    }

    #[test]
    fn a_question_is_repeated_and_in_the_end_given_up() {
        let mut two = Two::new();
        two.send(1000);
        for _ in 1..STRANGER_QUESTIONS {
            two.now += PATIENCE_NANOS;
            assert_eq!(two.send(1000).0, 0);
            let again = two.credits.on_silence(at(two.now), two.peer());
            assert_eq!(again, Some(WINDOW), "and covers all that was sent");
        }
        two.now += PATIENCE_NANOS;
        assert_eq!(two.send(1000), (1000, Credit::Given), "it does not know the question");
        two.now += FIRST_SILENCE_NANOS;
        two.questions.clear();
        assert_eq!(two.send(1000).0 as u64 * PACKET, WINDOW, "it is asked again later");
        let mark = two.questions[0];
        assert_eq!(two.answer(mark), [7]);
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let mut credits = Credits::default();
        for number in 0..3 * MAX_PEERS as u32 {
            let ip = std::net::Ipv4Addr::from_bits(number).into();
            credits.on_sent(at(0), (Gid::from_ip(ip), 1), 1);
        }
        assert!(credits.peers.len() <= MAX_PEERS);
    }

    #[test]
    fn a_peer_that_answers_a_byte_at_a_time_holds_nobody_for_ever() {
        let mut two = Two::new();
        two.send(1000);
        let mut mark = 0;
        // As long as any that answered is waited for, and a bit.
        for _ in 0..2 * KNOWN_QUESTIONS {
            two.now += PATIENCE_NANOS;
            mark += 1;
            two.answer(mark);
            if two.send(1000).0 == 1000 {
                return;
            }
            two.credits.on_silence(at(two.now), two.peer());
        }
        panic!("held up for {} ms", two.now / 1_000_000);
    }

    #[test]
    fn peers_that_never_answer_do_not_fill_the_memory() {
        let mut credits = Credits::default();
        for number in 0..3 * MAX_PEERS as u32 {
            let peer = (Gid::from_ip(std::net::Ipv4Addr::from_bits(number).into()), 1);
            credits.on_sent(at(u64::from(number)), peer, WINDOW);
            // The queue pair waits, and is destroyed.
            let asker = Asker { key: 7, list: &mut 0, has_sent: false };
            assert_ne!(credits.ask(at(u64::from(number)), peer, asker), Credit::Given);
        }
        assert!(credits.peers.len() <= MAX_PEERS, "{}", credits.peers.len());
    }
}
