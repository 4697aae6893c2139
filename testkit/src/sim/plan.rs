//! What two ends are to do, drawn before anything runs.
//!
//! Each request has its own bytes at both ends, with random bytes between them that nobody may
//! touch; only WRITEs go to the same place again, so that one that is executed twice shows. A plan
//! may have one flaw, which must end the connection.

use rxe_core::qp::QpType;

use super::dice::Dice;
use super::keys::{KeyKind, KeyPlan};
use super::memory::{Layout, Place, scattered};

/// Bytes that stand before each datagram.
pub const HEADER_LEN: usize = 40;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A SEND.
    Send,
    /// A SEND to a queue pair, named by its place in the world.
    SendTo(usize),
    /// A WRITE to this offset of the peer's memory.
    Write(usize),
    /// A READ from this offset of the peer's memory.
    Read(usize),
    /// Adds to a cell of the peer.
    FetchAdd(usize, u64),
    /// Stores in a cell of the peer, if it holds what was seen there last.
    CompareSwap(usize, u64),
    /// An ATOMIC WRITE to this offset of the peer's memory.
    AtomicWrite(usize),
    /// A FLUSH of a place in the peer's memory.
    Flush(Place),
    /// A SEND that takes a key of the peer away.
    SendInvalidate(usize),
    /// Makes a key of this end.
    MakeKey(usize),
    /// Takes a key of this end away.
    LocalInvalidate(usize),
}

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// The peer's key is not valid any more.
    StaleKey,
    /// The peer's key gives no access from afar.
    LocalKey,
    /// The bytes are not all in the peer's region.
    OutOfRange,
    /// The own key is not valid any more.
    OwnKey,
    /// The peer's key was taken away by a request before.
    TakenKey,
    /// The queue key is wrong: the datagram is for nobody.
    QueueKey,
}

/// What is wrong with a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveFlaw {
    /// It is shorter than the message.
    Short,
    /// Its key is not valid any more.
    Key,
}

/// A send request, and the bytes that it moves.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it does.
    pub action: Action,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key of the peer that it uses, if not that of the whole memory.
    pub via: Option<usize>,
    /// Its bytes at this end.
    pub pieces: Vec<Place>,
    /// Its bytes are given with the request.
    pub inline: bool,
    /// It completes in the queue.
    pub signaled: bool,
    /// It waits for earlier READs and atomics.
    pub fence: bool,
    /// It asks for a solicited event.
    pub solicited: bool,
    /// The bytes that it moves; of an atomic only their number is known before.
    pub data: Vec<u8>,
    /// No other request touches its place at the peer, so that it can be judged when it completes.
    pub is_alone: bool,
    /// Messages that the peer will have got with it and those before it.
    pub messages: usize,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
    /// When it is posted, in nanoseconds after the one before.
    pub pause_nanos: u64,
}

/// A message that is to arrive at an end.
#[derive(Clone, Debug)]
pub struct Message {
    /// The request of the peer that brings it.
    pub request: usize,
    /// The message; `None` for a WRITE with immediate data.
    pub data: Option<Vec<u8>>,
    /// Where the WRITE goes.
    pub target: Option<usize>,
    /// Bytes of the message.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key that it takes away.
    pub invalidates: Option<usize>,
}

/// A receive request.
#[derive(Clone, Debug, Default)]
pub struct Receive {
    /// Where its bytes go.
    pub pieces: Vec<Place>,
    /// When it is posted, in nanoseconds after the one before.
    pub pause_nanos: u64,
    /// What is wrong with it.
    pub flaw: Option<ReceiveFlaw>,
}

/// One end: its memory, and what it posts and gets.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Memory before anything happens.
    pub layout: Layout,
    /// Memory as requests will have changed it when all went well.
    planned: Vec<u8>,
    /// Send requests in order.
    pub requests: Vec<Request>,
    /// Messages in order.
    pub messages: Vec<Message>,
    /// Receive requests in order; none where they come from a shared queue.
    pub receives: Vec<Receive>,
    /// Keys that it makes.
    pub keys: Vec<KeyPlan>,
    /// The program moves this end to the error state when it has posted so many requests.
    pub gives_up_after: Option<usize>,
}

impl End {
    fn alloc(&mut self, dice: &mut Dice, len: usize) -> Place {
        let place = self.layout.alloc(dice, len);
        self.planned.extend_from_slice(&self.layout.bytes[self.planned.len()..]);
        place
    }

    fn alloc_word(&mut self, dice: &mut Dice) -> Place {
        let place = self.layout.alloc_word(dice);
        self.planned.extend_from_slice(&self.layout.bytes[self.planned.len()..]);
        place
    }

    fn alloc_pieces(&mut self, dice: &mut Dice, len: usize) -> Vec<Place> {
        let pieces = self.layout.alloc_pieces(dice, len);
        self.planned.extend_from_slice(&self.layout.bytes[self.planned.len()..]);
        pieces
    }

    fn gather(&self, pieces: &[Place]) -> Vec<u8> {
        pieces.iter().flat_map(|p| &self.planned[p.offset..p.offset + p.len]).copied().collect()
    }

    fn scatter(&mut self, pieces: &[Place], data: &[u8]) {
        for (offset, part) in scattered(pieces, data) {
            self.planned[offset..offset + part.len()].copy_from_slice(part);
        }
    }
}

/// How a plan is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Its service.
    pub service: QpType,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// The most inline data.
    pub max_inline: usize,
    /// Receives come late, so that messages meet none.
    pub late_receives: bool,
    /// The longest message.
    pub longest: usize,
    /// Cells of the peer's host.
    pub cells: usize,
    /// Stands in the immediate data of what is not reliable, so that no two messages are alike.
    pub tag: u32,
    /// Receives come from a shared queue.
    pub shared: bool,
}

impl Style {
    fn is_reliable(&self) -> bool {
        self.service.is_reliable()
    }
}

/// Draws `count` requests of `from` to `to`, and the receives that they take there.
pub fn direction(dice: &mut Dice, style: &Style, from: &mut End, to: &mut End, count: usize) {
    let key = |(at, key): (usize, &KeyPlan)| Target {
        place: key.place,
        writers: Vec::new(),
        frozen: false,
        via: Some(at),
        is_gone: false,
    };
    let mut targets: Vec<Target> = to.keys.iter().enumerate().map(key).collect();
    for _ in 0..count {
        request(dice, style, from, to, &mut targets);
    }
    sign_last(from);
    // A WRITE can be judged on completion if nothing else was written where it went.
    for target in targets.iter().filter(|target| target.writers.len() == 1) {
        from.requests[target.writers[0]].is_alone = true;
    }
    if !style.shared {
        receives(dice, style, to);
    }
}

/// Draws `count` datagrams of `from` to queue pairs among `targets`.
pub fn datagrams(dice: &mut Dice, style: &Style, from: &mut End, targets: &[usize], count: usize) {
    for _ in 0..count {
        let target = dice.pick(targets);
        let (pieces, data) = source(dice, style, from);
        let imm = dice.once_in(2).then_some(());
        let mut request = new_request(dice, style, from, Action::SendTo(target), data, imm);
        request.flaw = dice.once_in(12).then_some(Flaw::QueueKey);
        request.pieces = pieces;
        from.requests.push(request);
    }
    sign_last(from);
}

/// The last request tells that all are done.
fn sign_last(from: &mut End) {
    if let Some(last) = from.requests.last_mut() {
        last.signaled = true;
    }
}

/// Draws the keys that an end makes by its first requests.
pub fn make_keys(dice: &mut Dice, style: &Style, own: &mut End) {
    for key in 0..dice.below(3) as usize {
        let kind = dice.pick(&[
            KeyKind::Window1,
            KeyKind::Window,
            KeyKind::ZeroBasedWindow,
            KeyKind::Fast,
        ]);
        let len = dice.range(16, 8000) as usize;
        let place = own.alloc(dice, len);
        own.keys.push(KeyPlan { kind, place, is_taken: false, last_use: None });
        let mut request = new_request(dice, style, own, Action::MakeKey(key), Vec::new(), None);
        request.signaled = true;
        own.requests.push(request);
    }
}

/// Draws the requests at the end that take keys of the own end away.
pub fn take_keys(dice: &mut Dice, style: &Style, own: &mut End) {
    for key in 0..own.keys.len() {
        let is_fixed = own.keys[key].kind == KeyKind::Window1;
        if is_fixed || own.keys[key].is_taken || dice.once_in(2) {
            continue;
        }
        let action = Action::LocalInvalidate(key);
        let mut request = new_request(dice, style, own, action, Vec::new(), None);
        request.messages = own.requests.last().map_or(0, |last| last.messages);
        request.signaled = true;
        own.requests.push(request);
    }
}

/// Draws a SEND that takes a key of the peer away, if there is one left.
fn invalidate(
    dice: &mut Dice,
    style: &Style,
    from: &mut End,
    to: &mut End,
    targets: &mut [Target],
) -> bool {
    let is_free = |key: &usize| {
        let KeyPlan { kind, is_taken, .. } = to.keys[*key];
        !is_taken && kind != KeyKind::Window1
    };
    let key = |target: &Target| target.via.filter(is_free);
    let Some(key) = targets.iter().find_map(key) else { return false };
    // Nothing uses it from now on.
    for target in targets.iter_mut().filter(|target| target.via == Some(key)) {
        target.is_gone = true;
    }
    to.keys[key].is_taken = true;
    let (pieces, data) = source(dice, style, from);
    let mut request = new_request(dice, style, from, Action::SendInvalidate(key), data, None);
    request.pieces = pieces;
    // READs by the key that lost their answers would come again after it.
    (request.fence, request.inline) = (true, false);
    let index = from.requests.len();
    message(&request, index, to);
    request.messages = to.messages.len();
    from.requests.push(request);
    true
}

/// Memory of the peer that has been written to.
struct Target {
    place: Place,
    writers: Vec<usize>,
    /// A READ has looked at it: it must stay as it is, or what the READ sees would be open.
    frozen: bool,
    /// The key that it is reached by, if not that of the whole memory.
    via: Option<usize>,
    /// That key has been taken away.
    is_gone: bool,
}

fn request(
    dice: &mut Dice,
    style: &Style,
    from: &mut End,
    to: &mut End,
    targets: &mut Vec<Target>,
) {
    let index = from.requests.len();
    if dice.once_in(12) && invalidate(dice, style, from, to, targets) {
        return;
    }
    let kind = dice.below(if style.is_reliable() { 10 } else { 4 });
    let mut via = None;
    let imm = (kind < 4 && kind % 2 == 1).then_some(());
    let mut fenced = false;
    let (action, pieces, data) = match kind {
        0..=3 => {
            let read = earlier_read(dice, from).filter(|(_, data)| data.len() <= style.longest);
            fenced = read.is_some();
            let (pieces, data) = read.unwrap_or_else(|| source(dice, style, from));
            if kind < 2 {
                (Action::Send, pieces, data)
            } else {
                let offset;
                (offset, via) = write_target(dice, to, targets, index, data.len());
                to.scatter(&[Place { offset, len: data.len() }], &data);
                (Action::Write(offset), pieces, data)
            }
        }
        4 | 5 => {
            let place;
            (place, via) = read_source(dice, style, to, targets);
            let data = to.gather(&[place]);
            let pieces = from.alloc_pieces(dice, data.len());
            from.scatter(&pieces, &data);
            (Action::Read(place.offset), pieces, data)
        }
        8 => {
            let (place, pieces) = (to.alloc_word(dice), from.alloc_pieces(dice, 8));
            let data = from.gather(&pieces);
            to.scatter(&[place], &data);
            (Action::AtomicWrite(place.offset), pieces, data)
        }
        9 => {
            let written = targets.iter().find(|target| target.via.is_none());
            let place = written.map_or(Place { offset: 0, len: 0 }, |target| target.place);
            (Action::Flush(place), Vec::new(), Vec::new())
        }
        _ => {
            let cell = dice.below(style.cells as u64) as usize;
            let operand = dice.word();
            let action = if kind == 6 {
                Action::FetchAdd(cell, operand)
            } else {
                Action::CompareSwap(cell, operand)
            };
            (action, from.alloc_pieces(dice, 8), vec![0; 8])
        }
    };
    let mut request = new_request(dice, style, from, action, data, imm);
    (request.pieces, request.via) = (pieces, via);
    if kind == 8 {
        request.is_alone = true;
    }
    if let Some(via) = via {
        to.keys[via].last_use = Some(index);
    }
    if fenced {
        (request.fence, request.inline) = (true, false);
    }
    message(&request, index, to);
    request.messages = to.messages.len();
    from.requests.push(request);
}

fn new_request(
    dice: &mut Dice,
    style: &Style,
    from: &End,
    action: Action,
    data: Vec<u8>,
    imm: Option<()>,
) -> Request {
    let brings = matches!(
        action,
        Action::Send
            | Action::SendTo(_)
            | Action::Write(_)
            | Action::AtomicWrite(_)
            | Action::SendInvalidate(_)
    );
    // What is short is told apart by its immediate data.
    let is_tagged = !style.is_reliable()
        && matches!(action, Action::Send | Action::SendTo(_))
        && data.len() < 8;
    let imm = imm.or_else(|| is_tagged.then_some(())).map(|()| {
        let number = if style.is_reliable() { dice.word() as u32 } else { style.tag };
        number << 16 | from.requests.len() as u32
    });
    Request {
        action,
        imm,
        via: None,
        inline: brings && data.len() <= style.max_inline && dice.once_in(2),
        signaled: !dice.once_in(3),
        fence: dice.once_in(10),
        solicited: dice.once_in(4),
        pieces: Vec::new(),
        data,
        is_alone: !brings,
        messages: 0,
        flaw: None,
        pause_nanos: if dice.once_in(3) { dice.below(2_000_000) } else { 0 },
    }
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
    (len as usize).min(style.longest)
}

/// Bytes to send.
fn source(dice: &mut Dice, style: &Style, from: &mut End) -> (Vec<Place>, Vec<u8>) {
    let len = length(dice, style);
    let pieces = from.alloc_pieces(dice, len);
    let data = from.gather(&pieces);
    (pieces, data)
}

/// Now and then what an earlier READ brings, which has to be waited for.
fn earlier_read(dice: &mut Dice, from: &End) -> Option<(Vec<Place>, Vec<u8>)> {
    let reads: Vec<usize> = (0..from.requests.len())
        .filter(|&i| matches!(from.requests[i].action, Action::Read(_)))
        .collect();
    if reads.is_empty() || !dice.once_in(5) {
        return None;
    }
    let pieces = from.requests[dice.pick(&reads)].pieces.clone();
    let data = from.gather(&pieces);
    Some((pieces, data))
}

/// Where a WRITE goes: somewhere new, or where others went before it.
fn write_target(
    dice: &mut Dice,
    to: &mut End,
    targets: &mut Vec<Target>,
    index: usize,
    len: usize,
) -> (usize, Option<usize>) {
    let open: Vec<usize> = (0..targets.len())
        .filter(|&at| {
            let Target { place, frozen, is_gone, .. } = targets[at];
            !frozen && !is_gone && place.len >= len
        })
        .collect();
    if !open.is_empty() && dice.once_in(2) {
        let target = &mut targets[dice.pick(&open)];
        target.writers.push(index);
        let skip = dice.below((target.place.len - len) as u64 + 1) as usize;
        return (target.place.offset + skip, target.via);
    }
    let place = to.alloc(dice, len);
    let (frozen, via, is_gone) = (false, None, false);
    targets.push(Target { place, writers: vec![index], frozen, via, is_gone });
    (place.offset, None)
}

/// Where a READ looks: at bytes of its own, or at what was written before it.
fn read_source(
    dice: &mut Dice,
    style: &Style,
    to: &mut End,
    targets: &mut [Target],
) -> (Place, Option<usize>) {
    let there: Vec<usize> = (0..targets.len()).filter(|&at| !targets[at].is_gone).collect();
    if !there.is_empty() && dice.once_in(3) {
        let target = &mut targets[dice.pick(&there)];
        target.frozen = true;
        return (target.place, target.via);
    }
    let len = length(dice, style);
    (to.alloc(dice, len), None)
}

/// Notes the message that a request brings, if it brings one.
fn message(request: &Request, index: usize, to: &mut End) {
    let (data, target, invalidates) = match request.action {
        Action::Send => (Some(request.data.clone()), None, None),
        Action::SendInvalidate(key) => (Some(request.data.clone()), None, Some(key)),
        Action::Write(offset) if request.imm.is_some() => (None, Some(offset), None),
        _ => return,
    };
    // Fits: messages here are short.
    let byte_len = request.data.len() as u32;
    let imm = request.imm;
    to.messages.push(Message { request: index, data, target, byte_len, imm, invalidates });
}

/// Draws the receives of an end: as its messages need them.
fn receives(dice: &mut Dice, style: &Style, to: &mut End) {
    let longest = to.messages.iter().map(data_len).max().unwrap_or(0);
    for index in 0..to.messages.len() {
        let spare = if dice.once_in(2) { 0 } else { dice.below(2000) as usize };
        let room = match style.is_reliable() {
            true => data_len(&to.messages[index]) + spare,
            // Which message comes is open; one that is too long is dropped.
            false if dice.once_in(8) => dice.below(longest as u64 + 1) as usize,
            false => longest,
        };
        let pieces = to.alloc_pieces(dice, room);
        to.receives.push(Receive { pieces, pause_nanos: pause(dice, style), flaw: None });
    }
}

/// Draws `count` receives that take any message.
pub fn spare_receives(
    dice: &mut Dice,
    style: &Style,
    layout: &mut Layout,
    count: usize,
) -> Vec<Receive> {
    let header = if style.service == QpType::Ud { HEADER_LEN } else { 0 };
    let receive = |_| {
        let short = header > 0 && dice.once_in(8);
        let room = if short { dice.below(style.longest as u64) as usize } else { style.longest };
        let pieces = layout.alloc_pieces(dice, header + room);
        Receive { pieces, pause_nanos: pause(dice, style), flaw: None }
    };
    (0..count).map(receive).collect()
}

fn pause(dice: &mut Dice, style: &Style) -> u64 {
    if style.late_receives { dice.below(3_000_000) } else { 0 }
}

fn data_len(message: &Message) -> usize {
    message.data.as_ref().map_or(0, Vec::len)
}

/// Puts one flaw into the plan of a connection: it must end in the error state.
pub fn spoil(dice: &mut Dice, style: &Style, ends: [&mut End; 2]) {
    let [first, second] = ends;
    let swap = !second.requests.is_empty() && dice.once_in(2);
    let (from, to) = if swap { (second, first) } else { (first, second) };
    let is_spoilt = match dice.below(6) {
        0 | 1 if style.is_reliable() => spoil_remote(dice, from),
        2 | 3 => spoil_own(dice, from),
        4 | 5 if style.is_reliable() => spoil_receive(dice, to),
        _ => false,
    };
    if !is_spoilt {
        from.gives_up_after = Some(dice.range(1, from.requests.len() as u64) as usize);
    }
}

fn spoil_remote(dice: &mut Dice, from: &mut End) -> bool {
    let flaw = dice.pick(&[Flaw::StaleKey, Flaw::LocalKey, Flaw::OutOfRange]);
    // R28: without data the key does not matter.
    let is_taken = |request: &Request| matches!(request.action, Action::SendInvalidate(_));
    if dice.once_in(2)
        && let Some(taken) = from.requests.iter().position(is_taken)
        && let Action::SendInvalidate(key) = from.requests[taken].action
        && let Some(request) = from.requests[taken..].iter_mut().find(|request| is_plain(request))
    {
        (request.flaw, request.via) = (Some(Flaw::TakenKey), Some(key));
        return true;
    }
    spoil_one(dice, from, flaw, |request| is_plain(request) || request.action.wants_alignment())
}

/// Whether a request reads or writes more than a byte of the peer's memory.
fn is_plain(request: &Request) -> bool {
    matches!(request.action, Action::Write(_) | Action::Read(_)) && request.data.len() > 1
}

fn spoil_own(dice: &mut Dice, from: &mut End) -> bool {
    spoil_one(dice, from, Flaw::OwnKey, |request| !request.inline && !request.data.is_empty())
}

fn spoil_one(dice: &mut Dice, from: &mut End, flaw: Flaw, fits: fn(&Request) -> bool) -> bool {
    let fitting: Vec<usize> =
        (0..from.requests.len()).filter(|&index| fits(&from.requests[index])).collect();
    if fitting.is_empty() {
        return false;
    }
    from.requests[dice.pick(&fitting)].flaw = Some(flaw);
    true
}

fn spoil_receive(dice: &mut Dice, to: &mut End) -> bool {
    let fitting: Vec<usize> =
        (0..to.receives.len()).filter(|&index| data_len(&to.messages[index]) > 0).collect();
    if fitting.is_empty() {
        return false;
    }
    let index = dice.pick(&fitting);
    let len = data_len(&to.messages[index]);
    if dice.once_in(2) {
        to.receives[index].flaw = Some(ReceiveFlaw::Key);
    } else {
        to.receives[index].pieces = to.alloc_pieces(dice, len - 1);
        to.receives[index].flaw = Some(ReceiveFlaw::Short);
    }
    true
}
