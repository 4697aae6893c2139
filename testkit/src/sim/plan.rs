//! What the two ends of a connection are to do, and what must have come of it.
//!
//! The whole plan is drawn before anything runs, together with the memory that must be there at
//! the end: the reference. Each request has its own bytes at both ends, with random bytes between
//! them that nobody may touch; only WRITEs go to the same place again, so that one that is executed
//! twice shows.

use super::dice::Dice;

/// Bytes at an offset of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A SEND.
    Send,
    /// A WRITE to this offset of the peer's buffer.
    Write(usize),
    /// A READ from this offset of the peer's buffer.
    Read(usize),
}

/// A send request, and the bytes that it moves.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it does.
    pub action: Action,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Its bytes at this end.
    pub pieces: Vec<Place>,
    /// Its bytes are given with the request.
    pub inline: bool,
    /// It completes in the queue.
    pub signaled: bool,
    /// It waits for earlier READs.
    pub fence: bool,
    /// It asks for a solicited event.
    pub solicited: bool,
    /// The bytes that it moves.
    pub data: Vec<u8>,
    /// No other request touches its place at the peer, so that it can be judged when it completes.
    pub is_alone: bool,
    /// When it is posted, in nanoseconds after the one before.
    pub pause_nanos: u64,
}

/// A receive request, and what must come into it.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Where its bytes go.
    pub pieces: Vec<Place>,
    /// The message; `None` for a WRITE with immediate data.
    pub data: Option<Vec<u8>>,
    /// Bytes of the message.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// When it is posted, in nanoseconds after the one before.
    pub pause_nanos: u64,
}

/// One end of a connection: its memory, and what it posts.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Memory before anything happens.
    pub before: Vec<u8>,
    /// Memory when everything is done.
    pub after: Vec<u8>,
    /// Send requests in order.
    pub requests: Vec<Request>,
    /// Receive requests in order.
    pub receives: Vec<Receive>,
}

impl End {
    /// Sets `len` bytes apart, behind some that belong to nobody.
    fn alloc(&mut self, dice: &mut Dice, len: usize) -> Place {
        let guard = dice.range(1, 48) as usize;
        let offset = self.before.len() + guard;
        let start = self.before.len();
        dice.fill(&mut self.before, guard + len);
        self.after.extend_from_slice(&self.before[start..]);
        Place { offset, len }
    }

    /// Sets `len` bytes apart in one to four pieces, some of which may be empty.
    fn alloc_pieces(&mut self, dice: &mut Dice, len: usize) -> Vec<Place> {
        let count = if dice.once_in(2) { 1 } else { dice.range(1, 4) };
        let mut left = len;
        (0..count)
            .map(|index| {
                let last = index + 1 == count;
                let part = if last { left } else { dice.below(left as u64 + 1) as usize };
                left -= part;
                self.alloc(dice, part)
            })
            .collect()
    }

    fn gather(&self, pieces: &[Place]) -> Vec<u8> {
        pieces.iter().flat_map(|p| &self.after[p.offset..p.offset + p.len]).copied().collect()
    }

    fn scatter(&mut self, pieces: &[Place], data: &[u8]) {
        let mut rest = data;
        for piece in pieces {
            let (part, others) = rest.split_at(piece.len.min(rest.len()));
            self.after[piece.offset..piece.offset + part.len()].copy_from_slice(part);
            rest = others;
        }
    }
}

/// How the plan of a connection is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Path MTU in bytes.
    pub mtu: usize,
    /// The most inline data.
    pub max_inline: usize,
    /// Receives come late, so that messages meet none.
    pub late_receives: bool,
    /// The longest message.
    pub longest: usize,
}

/// Draws `count` requests of `from` to `to`, and the receives that they take there.
pub fn direction(dice: &mut Dice, style: &Style, from: &mut End, to: &mut End, count: usize) {
    let mut targets: Vec<Target> = Vec::new();
    for index in 0..count {
        let last = index + 1 == count;
        request(dice, style, from, to, &mut targets, last);
    }
    // A WRITE can be judged on completion if nothing else was written where it went.
    for target in targets.iter().filter(|target| target.writers.len() == 1) {
        from.requests[target.writers[0]].is_alone = true;
    }
}

/// Memory of the peer that has been written to.
struct Target {
    place: Place,
    writers: Vec<usize>,
    /// A READ has looked at it: it must stay as it is, or what the READ sees would be open.
    frozen: bool,
}

fn request(
    dice: &mut Dice,
    style: &Style,
    from: &mut End,
    to: &mut End,
    targets: &mut Vec<Target>,
    last: bool,
) {
    let index = from.requests.len();
    let kind = dice.below(6);
    let mut fence = dice.once_in(10);
    let imm = (kind % 2 == 1).then(|| dice.word() as u32);
    let (action, pieces, data, imm) = match kind {
        0..=3 => {
            let (pieces, fenced) = source(dice, style, from);
            fence |= fenced;
            let data = from.gather(&pieces);
            let action = if kind < 2 {
                Action::Send
            } else {
                Action::Write(write_target(dice, to, targets, index, data.len()))
            };
            apply(to, action, &data);
            (action, pieces, data, imm)
        }
        _ => {
            let place = read_source(dice, style, to, targets);
            let data = to.gather(&[place]);
            let pieces = from.alloc_pieces(dice, data.len());
            from.scatter(&pieces, &data);
            (Action::Read(place.offset), pieces, data, None)
        }
    };
    let is_read = matches!(action, Action::Read(_));
    receive(dice, style, to, action, &data, imm);
    from.requests.push(Request {
        action,
        imm,
        inline: !is_read && data.len() <= style.max_inline && !fence && dice.once_in(2),
        signaled: last || !dice.once_in(3),
        fence,
        solicited: dice.once_in(4),
        pieces,
        data,
        is_alone: is_read,
        pause_nanos: if dice.once_in(3) { dice.below(2_000_000) } else { 0 },
    });
}

fn length(dice: &mut Dice, style: &Style) -> usize {
    let mtu = style.mtu as u64;
    let len = match dice.below(12) {
        0 => 0,
        1 | 2 => dice.range(1, 16),
        3 => mtu * dice.range(1, 5),
        4 => mtu * dice.range(1, 5) - 1,
        5 => mtu * dice.range(1, 4) + 1,
        6 if dice.once_in(4) => dice.below(style.longest as u64 + 1),
        _ => dice.below(5 * mtu + 1),
    };
    len as usize
}

/// Bytes to send: new ones, or what an earlier READ brings, which then has to wait for it.
fn source(dice: &mut Dice, style: &Style, from: &mut End) -> (Vec<Place>, bool) {
    let reads: Vec<usize> = (0..from.requests.len())
        .filter(|&i| matches!(from.requests[i].action, Action::Read(_)))
        .collect();
    if !reads.is_empty() && dice.once_in(5) {
        return (from.requests[dice.pick(&reads)].pieces.clone(), true);
    }
    let len = length(dice, style);
    (from.alloc_pieces(dice, len), false)
}

/// Where a WRITE goes: somewhere new, or where others went before it.
fn write_target(
    dice: &mut Dice,
    to: &mut End,
    targets: &mut Vec<Target>,
    index: usize,
    len: usize,
) -> usize {
    let open = targets.iter_mut().filter(|t| !t.frozen && t.place.len >= len).last();
    if let Some(target) = open.filter(|_| dice.once_in(2)) {
        target.writers.push(index);
        return target.place.offset + dice.below((target.place.len - len) as u64 + 1) as usize;
    }
    let place = to.alloc(dice, len);
    targets.push(Target { place, writers: vec![index], frozen: false });
    place.offset
}

/// Where a READ looks: at bytes of its own, or at what was written before it.
fn read_source(dice: &mut Dice, style: &Style, to: &mut End, targets: &mut [Target]) -> Place {
    if !targets.is_empty() && dice.once_in(3) {
        let target = &mut targets[dice.below(targets.len() as u64) as usize];
        target.frozen = true;
        return target.place;
    }
    let len = length(dice, style);
    to.alloc(dice, len)
}

fn apply(to: &mut End, action: Action, data: &[u8]) {
    if let Action::Write(offset) = action {
        to.after[offset..offset + data.len()].copy_from_slice(data);
    }
}

/// Draws the receive that a request takes, if it takes one.
fn receive(
    dice: &mut Dice,
    style: &Style,
    to: &mut End,
    action: Action,
    data: &[u8],
    imm: Option<u32>,
) {
    let is_send = action == Action::Send;
    if !is_send && imm.is_none() {
        return;
    }
    let spare = if dice.once_in(2) { 0 } else { dice.below(2000) as usize };
    let room = if is_send { data.len() + spare } else { spare };
    let pieces = to.alloc_pieces(dice, room);
    if is_send {
        to.scatter(&pieces, data);
    }
    to.receives.push(Receive {
        pieces,
        data: is_send.then(|| data.to_vec()),
        // Fits: messages here are short.
        byte_len: data.len() as u32,
        imm,
        pause_nanos: if style.late_receives { dice.below(3_000_000) } else { 0 },
    });
}
