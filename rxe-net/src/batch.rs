//! The buffer that packets are written into on their way from the engine to a link.

use std::ops::Range;

use rxe_core::path::{Path, Transmit, TransmitRun};
use rxe_wire::Qpn;

/// Bytes of the invariant CRC that a link appends to each packet (IBA, RoCEv2 annex A17).
pub const ICRC_LEN: usize = 4;

/// Bytes that one segmented send takes at most: the largest IPv4 packet less its headers.
pub const MAX_MESSAGE: usize = 65_535 - 20 - 8;

/// A batch of packets to send: one contiguous buffer, written packet after packet.
///
/// The engine asks for [`room`](Self::room), writes a packet from BTH to its last pad byte there,
/// and [`commit`](Self::commit)s it; the batch keeps 4 bytes behind it for the iCRC, which the
/// link writes. Packets that follow each other in a batch follow each other in memory, so a link
/// can hand a run of them to the kernel as one piece. When there is no room left, the batch must
/// be transmitted first. A batch is made once and used for ever: it allocates afterwards only where
/// it has more groups of packets addressed alike than ever before.
#[derive(Debug)]
pub struct TxBatch {
    bytes: Box<[u8]>,
    /// End of the last packet with its iCRC: where the next one begins.
    end: usize,
    packets: Vec<Record>,
    /// The path of each group of packets, since the batch was last empty.
    paths: Vec<Path>,
    /// The packets written last that can leave as one.
    run: LastRun,
}

/// Packets of one length at the end of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct LastRun {
    /// Length of the first one, with its iCRC.
    head_len: usize,
    bytes: usize,
    /// The last one is shorter, so no other can follow.
    is_closed: bool,
}

impl LastRun {
    const fn push(&mut self, len: usize) {
        if self.is_closed || len > self.head_len || self.bytes + len > MAX_MESSAGE {
            *self = Self { head_len: len, bytes: len, is_closed: false };
        } else {
            self.bytes += len;
            self.is_closed = len < self.head_len;
        }
    }

    /// As [`Self::push`], `count` times.
    const fn push_equal(&mut self, len: usize, count: usize) {
        // What the first two cannot join is closed or of another length; after them it is neither.
        let mut left = count;
        while left > 0 && left + 2 > count {
            self.push(len);
            left -= 1;
        }
        if left > 0 {
            let (have, most) = (self.bytes / len, MAX_MESSAGE / len);
            self.bytes = ((have + left - 1) % most + 1) * len;
        }
    }
}

/// What a batch keeps of each packet: little, since there may be a hundred of them in 10 µs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    /// Where its BTH begins, in bytes from the start of the batch.
    offset: u32,
    /// Bytes from BTH to pad.
    len: u32,
    dest_qpn: Qpn,
    /// Packets of one group are addressed alike.
    group: u32,
    /// Packets from this one on that were committed as a run, and lie there as they were written.
    run: u32,
    flip: Option<u32>,
    /// Whether `flip` has been done to the bytes, so that a second sealing can undo it.
    flipped: bool,
    /// Its sum stands where the iCRC will: see [`TransmitRun::summed`].
    is_summed: bool,
}

impl Record {
    const fn offset(&self) -> usize {
        self.offset as usize
    }

    const fn len(&self) -> usize {
        self.len as usize
    }

    const fn sealed_len(&self) -> usize {
        self.len() + ICRC_LEN
    }

    /// Where it lies, from BTH to pad.
    const fn range(&self) -> Range<usize> {
        self.offset()..self.offset() + self.len()
    }

    /// Where it lies, from BTH to iCRC.
    const fn sealed_range(&self) -> Range<usize> {
        self.offset()..self.offset() + self.sealed_len()
    }
}

/// One packet of a [`TxBatch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxPacket<'a> {
    record: &'a Record,
    path: &'a Path,
}

impl<'a> TxPacket<'a> {
    /// Where the packet's BTH begins, in bytes from the start of the batch.
    pub const fn offset(&self) -> usize {
        self.record.offset()
    }

    /// Bytes from BTH to the end of the iCRC.
    pub const fn sealed_len(&self) -> usize {
        self.record.sealed_len()
    }

    /// Where to.
    pub const fn path(&self) -> &'a Path {
        self.path
    }

    /// Destination QP. Only packets to one slot of one address may share a segmented send.
    pub const fn dest_qpn(&self) -> Qpn {
        self.record.dest_qpn
    }

    /// The bit to flip once the packet is sealed; see [`TxBatch::set_flip`].
    pub const fn flip(&self) -> Option<u32> {
        self.record.flip
    }

    /// What the engine committed.
    pub const fn transmit(&self) -> Transmit {
        Transmit { len: self.record.len(), path: *self.path, dest_qpn: self.dest_qpn() }
    }
}

impl TxBatch {
    /// The largest packet from BTH to pad: a payload of 4096 bytes and every header it can have.
    ///
    /// The longest are those of reliable datagrams (BTH 12, RDETH 4, DETH 8, AtomicETH 28); 64
    /// bytes hold all of them.
    pub const MAX_PACKET: usize = 4096 + 64;
    /// Bytes in a batch of [`TxBatch::new`]: about four full segmented sends.
    pub const DEFAULT_BYTES: usize = 256 * 1024;
    /// Packets that a batch holds at most.
    pub const MAX_PACKETS: usize = 1024;

    /// Makes a batch of [`Self::DEFAULT_BYTES`].
    pub fn new() -> Self {
        Self::with_bytes(Self::DEFAULT_BYTES)
    }

    /// Makes a batch with room for `bytes`: at least one packet of the largest size, at most 4 GiB.
    pub fn with_bytes(bytes: usize) -> Self {
        let bytes = bytes.clamp(Self::MAX_PACKET + ICRC_LEN, u32::MAX as usize);
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
            end: 0,
            packets: Vec::with_capacity(Self::MAX_PACKETS),
            paths: Vec::new(),
            run: LastRun::default(),
        }
    }

    /// Space for one packet of [`Self::MAX_PACKET`] bytes, or `None` when the batch is full.
    ///
    /// The bytes there are whatever an earlier packet left: the writer must write all it commits.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        if !self.has_room(Self::MAX_PACKET) {
            return None;
        }
        Some(&mut self.bytes[self.end..self.end + Self::MAX_PACKET])
    }

    /// Space for packets that can join those written last in one segmented send, or for one that
    /// cannot; `None` when the batch is full.
    ///
    /// It is as long as [`Self::MAX_PACKET`] at least, and the bytes there are whatever earlier
    /// packets left. [`Self::max_run`] tells how many packets may be written.
    pub fn run_room(&mut self) -> Option<&mut [u8]> {
        if !self.has_room(Self::MAX_PACKET) {
            return None;
        }
        let taken = if self.run.is_closed { 0 } else { self.run.bytes };
        let len = (MAX_MESSAGE - taken).max(Self::MAX_PACKET + ICRC_LEN);
        let end = (self.end + len).min(self.bytes.len());
        Some(&mut self.bytes[self.end..end])
    }

    /// How many more packets the batch may have.
    pub fn max_run(&self) -> u32 {
        // Fits: it is at most `MAX_PACKETS`.
        (Self::MAX_PACKETS - self.packets.len()) as u32
    }

    /// Takes the packets at the start of [`run_room`](Self::run_room), each followed by
    /// [`ICRC_LEN`] free bytes, as the next ones.
    ///
    /// # Panics
    ///
    /// As [`commit`](Self::commit).
    pub fn commit_run(&mut self, run: &TransmitRun) {
        let TransmitRun { first, count, last_len, summed } = *run;
        let stride = first.len + ICRC_LEN;
        let before_last = count.saturating_sub(1);
        let offset_of_last = self.end + before_last as usize * stride;
        let end = offset_of_last + last_len + ICRC_LEN;
        assert!(
            first.len <= Self::MAX_PACKET
                && last_len <= first.len
                && end <= self.bytes.len()
                && self.packets.len() + count as usize <= Self::MAX_PACKETS,
            "a run without room: {count} packets of {} bytes",
            first.len
        );
        let head = self.record(first);
        self.packets.extend((0..before_last).map(|index| Record {
            // Fits, as all of the batch does.
            offset: head.offset + index * stride as u32,
            run: count - index,
            is_summed: (1..=summed).contains(&index),
            ..head
        }));
        let is_summed = (1..=summed).contains(&before_last);
        let (offset, len) = (offset_of_last as u32, last_len as u32);
        self.packets.push(Record { offset, len, is_summed, ..head });
        self.end = end;
        self.run.push_equal(stride, before_last as usize);
        self.run.push(last_len + ICRC_LEN);
    }

    /// Of the packet that begins where the last one ended.
    fn record(&mut self, transmit: Transmit) -> Record {
        let Transmit { len, path, dest_qpn } = transmit;
        let alike = self.packets.last().filter(|last| {
            self.path(last) == Some(&path) && last.dest_qpn.slot() == dest_qpn.slot()
        });
        let group = match alike {
            Some(last) => last.group,
            None => {
                self.paths.push(path);
                self.paths.len() as u32 - 1
            }
        };
        // Both fit: they lie within the batch.
        let (offset, len) = (self.end as u32, len as u32);
        let (run, is_summed, flip, flipped) = (1, false, None, false);
        Record { offset, len, dest_qpn, group, run, flip, flipped, is_summed }
    }

    fn path(&self, record: &Record) -> Option<&Path> {
        self.paths.get(record.group as usize)
    }

    fn has_room(&self, len: usize) -> bool {
        self.packets.len() < Self::MAX_PACKETS && self.bytes.len() - self.end >= len + ICRC_LEN
    }

    /// Takes the first `transmit.len` bytes of [`room`](Self::room) as the next packet.
    ///
    /// # Panics
    ///
    /// When the packet is longer than [`Self::MAX_PACKET`] or there was no room: a bug of the
    /// writer, which cannot have written it.
    pub fn commit(&mut self, transmit: Transmit) {
        let last_len = transmit.len;
        self.commit_run(&TransmitRun { first: transmit, count: 1, last_len, summed: 0 });
    }

    /// Appends a packet kept elsewhere, `bytes` from BTH to pad; false when there is no room.
    ///
    /// `transmit.len` is ignored: the length is that of `bytes`.
    #[must_use]
    pub fn push_copy(&mut self, bytes: &[u8], transmit: Transmit, flip: Option<u32>) -> bool {
        if bytes.len() > Self::MAX_PACKET || !self.has_room(bytes.len()) {
            return false;
        }
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.commit(Transmit { len: bytes.len(), ..transmit });
        self.set_flip(self.packets.len() - 1, flip);
        true
    }

    /// Keeps the packets that `keep` says true for; it gets each with its bytes from BTH to pad.
    ///
    /// The memory of the others is free again only after [`clear`](Self::clear).
    pub fn retain(&mut self, mut keep: impl FnMut(&TxPacket<'_>, &[u8]) -> bool) {
        let Self { bytes, packets, paths, .. } = self;
        let before = packets.len();
        packets.retain(|record| {
            let path = paths.get(record.group as usize);
            path.is_some_and(|path| keep(&TxPacket { record, path }, &bytes[record.range()]))
        });
        if self.packets.len() < before {
            // What was a run may have holes.
            self.packets.iter_mut().for_each(|packet| packet.run = 1);
        }
    }

    /// Sets the bit of packet `index` that is flipped after the iCRC has been computed.
    ///
    /// Bit `n` is bit `n % 8` (of value `1 << (n % 8)`) of byte `n / 8` counted from BTH, the iCRC
    /// included; `n` counts modulo the sealed length. This is how injected corruption is made.
    pub fn set_flip(&mut self, index: usize, bit: Option<u32>) {
        if let Some(packet) = self.packets.get_mut(index) {
            unflip(&mut self.bytes, packet);
            packet.flip = bit;
        }
    }

    /// Writes the iCRC of packet `index`; see [`seal_run`](Self::seal_run).
    ///
    /// Does nothing for an index too high.
    pub fn seal(&mut self, index: usize, icrc: impl FnOnce(&[u8], Option<u32>) -> [u8; ICRC_LEN]) {
        let Some(packet) = self.packets.get_mut(index) else { return };
        seal(&mut self.bytes, packet, icrc);
    }

    /// Writes the iCRCs of `count` packets from `first` on, and flips the bits asked for by
    /// [`set_flip`](Self::set_flip).
    ///
    /// `icrc` computes it of the number of the packet among these and of its bytes from BTH to
    /// pad. It also gets the sum of these bytes where it is known: see [`TransmitRun::summed`].
    ///
    /// A packet may be sealed again, for another identification: the flip is undone first.
    /// Does nothing when there are not so many packets.
    pub fn seal_run(
        &mut self,
        first: usize,
        count: usize,
        mut icrc: impl FnMut(usize, &[u8], Option<u32>) -> [u8; ICRC_LEN],
    ) {
        let packets = first.checked_add(count).and_then(|end| self.packets.get_mut(first..end));
        for (number, packet) in packets.unwrap_or_default().iter_mut().enumerate() {
            seal(&mut self.bytes, packet, |body, sum| icrc(number, body, sum));
        }
    }

    /// Whether the packets written last fill a segmented send, so that they may as well leave: the
    /// receiver works on them while more is written.
    ///
    /// A segmented send takes packets of one length, the last of which may be shorter. A batch
    /// that ends otherwise is better filled further.
    pub const fn fills_message(&self) -> bool {
        !self.run.is_closed && self.run.bytes + self.run.head_len > MAX_MESSAGE
    }

    /// How long a packet may be for which those written before are to wait: a longer one cannot join
    /// them, and they had better leave now. Where there is room enough, it may have any length.
    ///
    /// The longer ones are the first and the last packet of a message, which have more headers, so
    /// the packets between two of these are a send, which does not grow by waiting. Were the batch
    /// filled to its end, that would cut some such send in two; and in half of it there is room for
    /// another one. To leave it earlier gains nothing: what leaves in a row costs the host less, the
    /// receiver being busy with the first of it meanwhile.
    pub(crate) const fn longest_awaited(&self) -> usize {
        match self.run {
            _ if self.end < self.bytes.len() / 2 => Self::MAX_PACKET,
            LastRun { bytes, .. } if bytes < MAX_MESSAGE / 2 => Self::MAX_PACKET,
            LastRun { is_closed: true, .. } => 0,
            LastRun { head_len, .. } => head_len - ICRC_LEN,
        }
    }

    /// Forgets the first `count` packets, which have left or are lost; the others stay in order.
    ///
    /// The memory of the first ones is free again only when all are gone.
    pub fn drop_front(&mut self, count: usize) {
        if count >= self.packets.len() {
            self.clear();
        } else {
            self.packets.drain(..count);
        }
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Forgets all packets, so that the buffer is empty again.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.paths.clear();
        self.end = 0;
        self.run = LastRun::default();
    }

    /// The packet of this number, in the order of sending.
    pub fn packet(&self, index: usize) -> Option<TxPacket<'_>> {
        let record = self.packets.get(index)?;
        Some(TxPacket { record, path: self.path(record)? })
    }

    /// The packets in the order of sending, each with its bytes from BTH to pad.
    pub fn iter(&self) -> impl Iterator<Item = (TxPacket<'_>, &[u8])> {
        (0..self.len()).filter_map(|index| Some((self.packet(index)?, self.unsealed(index)?)))
    }

    /// The bytes of packet `index` from BTH to pad.
    pub fn unsealed(&self, index: usize) -> Option<&[u8]> {
        Some(&self.bytes[self.packets.get(index)?.range()])
    }

    /// The bytes of packet `index` from BTH to iCRC; the iCRC is right only once it is sealed.
    pub fn sealed(&self, index: usize) -> Option<&[u8]> {
        Some(&self.bytes[self.packets.get(index)?.sealed_range()])
    }

    /// The memory of `count` packets from `first` on, when they lie one after another in it.
    ///
    /// This is what one segmented send takes. `None` when a packet was removed or moved between
    /// them, or there are not so many.
    pub fn sealed_run(&self, first: usize, count: usize) -> Option<&[u8]> {
        let packets = self.packets.get(first..first.checked_add(count)?)?;
        let (head, tail) = (packets.first()?, packets.last()?);
        // From the first packet of a known run to that of the next.
        let mut rest = packets;
        while let Some((last, behind)) = first_run(rest) {
            if behind.first().is_some_and(|next| last.sealed_range().end != next.offset()) {
                return None;
            }
            rest = behind;
        }
        Some(&self.bytes[head.offset()..tail.sealed_range().end])
    }
}

impl TxBatch {
    /// How many packets from `first` on can leave as one segmented send of so many at most.
    ///
    /// At least 1, also for an index too high.
    pub(crate) fn run_len(&self, first: usize, max_segments: usize) -> usize {
        let packets = self.packets.get(first..).unwrap_or_default();
        let Some(head) = packets.first() else { return 1 };
        let most = packets.len().min(max_segments);
        let (mut count, mut bytes, mut last_len) = (0, 0, head.sealed_len());
        while count < most {
            let packet = &packets[count];
            let len = packet.sealed_len();
            let fits = packet.offset() == head.offset() + bytes
                && bytes + len <= MAX_MESSAGE
                // A shorter packet ends the run.
                && last_len == head.sealed_len()
                && len <= last_len
                && packet.group == head.group;
            if !fits {
                break;
            }
            // Those that it was committed with fit as well, as many as there is room for.
            let known = if len < last_len { 1 } else { packet.run as usize };
            count += known.min((MAX_MESSAGE - bytes) / len).min(most - count);
            let last = &packets[count - 1];
            last_len = last.sealed_len();
            bytes = last.offset() + last_len - head.offset();
        }
        count.max(1)
    }
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

/// The last packet of the known run that `packets` begin with, and those behind it.
fn first_run(packets: &[Record]) -> Option<(&Record, &[Record])> {
    let len = (packets.first()?.run as usize).min(packets.len());
    let (run, behind) = packets.split_at(len);
    Some((run.last()?, behind))
}

/// Writes the iCRC of a packet, computed by `icrc`, and flips its bit.
#[inline]
fn seal(
    bytes: &mut [u8],
    packet: &mut Record,
    icrc: impl FnOnce(&[u8], Option<u32>) -> [u8; ICRC_LEN],
) {
    unflip(bytes, packet);
    let sealed = &mut bytes[packet.sealed_range()];
    let (body, crc) = sealed.split_at_mut(packet.len());
    // Only once: then the iCRC stands there.
    let is_summed = std::mem::take(&mut packet.is_summed);
    let sum = if is_summed { crc.first_chunk().map(|sum| u32::from_le_bytes(*sum)) } else { None };
    crc.copy_from_slice(&icrc(body, sum));
    if let Some(bit) = packet.flip {
        flip_bit(sealed, bit);
        packet.flipped = true;
    }
}

#[inline]
fn unflip(bytes: &mut [u8], packet: &mut Record) {
    if let (true, Some(bit)) = (packet.flipped, packet.flip) {
        flip_bit(&mut bytes[packet.sealed_range()], bit);
        packet.flipped = false;
    }
}

fn flip_bit(sealed: &mut [u8], bit: u32) {
    let bit = bit as usize % (sealed.len() * 8);
    sealed[bit / 8] ^= 1 << (bit % 8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use gid_table::Gid;

    fn transmit(len: usize) -> Transmit {
        let path = Path::new(Gid::ZERO, Gid::ZERO);
        Transmit { len, path, dest_qpn: Qpn::new(0x11) }
    }

    fn write(batch: &mut TxBatch, bytes: &[u8]) {
        batch.room().expect("room")[..bytes.len()].copy_from_slice(bytes);
        batch.commit(transmit(bytes.len()));
    }

    fn contents(batch: &TxBatch) -> Vec<Vec<u8>> {
        batch.iter().map(|(_, bytes)| bytes.to_vec()).collect()
    }

    #[test]
    fn packets_follow_each_other_with_space_for_the_icrc() {
        let mut batch = TxBatch::new();
        write(&mut batch, b"first");
        write(&mut batch, b"second");
        assert_eq!(contents(&batch), [b"first".to_vec(), b"second".to_vec()]);
        batch.seal(0, |_, _| *b"AAAA");
        batch.seal(1, |_, _| *b"BBBB");
        assert_eq!(batch.sealed_run(0, 2), Some(b"firstAAAAsecondBBBB".as_slice()));
        assert_eq!(batch.sealed_run(1, 2), None);
        assert_eq!(batch.sealed_run(0, usize::MAX), None);
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(batch.sealed(0), None);
    }

    #[test]
    fn a_full_batch_has_no_room_and_does_not_grow() {
        let mut batch = TxBatch::new();
        let mut count = 0;
        while batch.room().is_some() {
            batch.commit(transmit(TxBatch::MAX_PACKET));
            count += 1;
        }
        assert_eq!(count, TxBatch::DEFAULT_BYTES / (TxBatch::MAX_PACKET + ICRC_LEN));
        assert!(!batch.push_copy(&[0; TxBatch::MAX_PACKET], transmit(0), None), "no room");
        batch.clear();
        let capacity = batch.packets.capacity();
        for _ in 0..TxBatch::MAX_PACKETS {
            write(&mut batch, b"x");
        }
        assert!(batch.room().is_none());
        assert_eq!(batch.packets.capacity(), capacity);
    }

    #[test]
    fn a_run_is_as_good_as_its_packets() {
        let mut one = TxBatch::new();
        let mut other = TxBatch::new();
        // Of all cases: joins, closes, is cut at 64 KiB, and begins behind a longer packet.
        let runs = [(1, 1052, 1052), (1, 1036, 1036), (61, 1036, 1036), (40, 1036, 500)];
        for (count, len, last_len) in runs.into_iter().chain([(3, 500, 500), (2, 400, 12)]) {
            let first = transmit(len);
            one.commit_run(&TransmitRun { first, count, last_len, summed: 0 });
            for _ in 1..count {
                other.commit(first);
            }
            other.commit(transmit(last_len));
            assert_eq!(one.fills_message(), other.fills_message());
            let of = |batch: &TxBatch| {
                let LastRun { head_len, bytes, is_closed } = batch.run;
                (head_len, bytes, is_closed, batch.end)
            };
            assert_eq!(of(&one), of(&other));
        }
        assert_eq!(one.len(), other.len());
        for (a, b) in one.packets.iter().zip(&other.packets) {
            assert_eq!((a.offset, a.len, b.run), (b.offset, b.len, 1));
        }
        assert_eq!(one.packets[2].run, 61);
        assert_eq!(one.sealed_run(1, 80).map(<[u8]>::len), Some(80 * 1040));
        // From the middle of a run, and into the next one.
        one.drop_front(60);
        assert_eq!(one.packets[0].run, 3);
        assert_eq!(one.sealed_run(0, 4).map(<[u8]>::len), Some(4 * 1040));
        // A hole in the run that is known.
        let mut index = 0;
        one.retain(|_, _| {
            index += 1;
            index != 2
        });
        assert_eq!(one.sealed_run(0, 2), None);
        assert_eq!(one.sealed_run(1, 2).map(<[u8]>::len), Some(2 * 1040));
    }

    proptest::proptest! {
        #[test]
        fn many_at_once_are_as_good_as_one_by_one(
            before in proptest::collection::vec(1_usize..3000, 0..6),
            len in 1_usize..3000,
            count in 0_usize..200,
        ) {
            let mut one = LastRun::default();
            before.iter().for_each(|&len| one.push(len));
            let mut other = one;
            one.push_equal(len, count);
            (0..count).for_each(|_| other.push(len));
            proptest::prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
        }
    }

    #[test]
    fn faults_can_drop_and_add() {
        let mut batch = TxBatch::new();
        for bytes in [b"a", b"b", b"c"] {
            write(&mut batch, bytes);
        }
        batch.retain(|_, bytes| bytes != b"b");
        assert_eq!(batch.sealed_run(0, 2), None, "there is a hole between them");
        assert!(batch.push_copy(b"kept", transmit(0), Some(3)));
        assert_eq!(contents(&batch), [&b"a"[..], b"c", b"kept"]);
        assert_eq!(batch.packet(2).and_then(|packet| packet.flip()), Some(3));
        assert!(!batch.push_copy(&[0; TxBatch::MAX_PACKET + 1], transmit(0), None));
    }

    #[test]
    fn what_is_behind_the_packets_dropped_stays_in_order() {
        let mut batch = TxBatch::new();
        for bytes in [b"a", b"b", b"c"] {
            write(&mut batch, bytes);
        }
        batch.drop_front(1);
        assert_eq!(contents(&batch), [b"b", b"c"]);
        batch.drop_front(0);
        assert_eq!(batch.len(), 2);
        batch.drop_front(2);
        assert_eq!((batch.len(), batch.end), (0, 0), "all memory is free again");
    }

    #[test]
    fn a_flip_survives_sealing_again() {
        let mut batch = TxBatch::new();
        write(&mut batch, &[0, 0]);
        batch.set_flip(0, Some(9));
        for _ in 0..2 {
            batch.seal(0, |body, _| {
                assert_eq!(body, [0, 0], "the iCRC is that of the intact packet");
                [7; 4]
            });
            assert_eq!(batch.sealed(0), Some([0, 2, 7, 7, 7, 7].as_slice()));
        }
        batch.set_flip(0, None);
        assert_eq!(batch.unsealed(0), Some([0, 0].as_slice()));
        // The bit counts modulo the sealed length, so that any number is harmless.
        batch.set_flip(0, Some(48));
        batch.seal(0, |_, _| [0; 4]);
        assert_eq!(batch.unsealed(0), Some([1, 0].as_slice()));
    }

    #[test]
    fn a_sum_is_told_once_and_of_those_packets_that_have_one() {
        let mut batch = TxBatch::new();
        write(&mut batch, b"before");
        // The first packet has none, whatever is behind it; nor has what follows the last that has.
        let bytes = b"one\x09\0\0\0two\x01\0\0\0red\x02\0\0\0for\x09\0\0\0";
        batch.run_room().expect("room")[..bytes.len()].copy_from_slice(bytes);
        let run = TransmitRun { first: transmit(3), count: 4, last_len: 3, summed: 2 };
        batch.commit_run(&run);
        let mut told = Vec::new();
        let mut seal = |batch: &mut TxBatch| {
            batch.seal_run(1, 4, |number, body, sum| {
                told.push((number, body.to_vec(), sum));
                [7; 4]
            });
        };
        seal(&mut batch);
        seal(&mut batch);
        let bodies = [b"one", b"two", b"red", b"for"].map(|body| body.to_vec());
        let once = |sums: [Option<u32>; 4]| {
            let numbered = bodies.iter().cloned().zip(sums).enumerate();
            numbered.map(|(number, (body, sum))| (number, body, sum)).collect::<Vec<_>>()
        };
        // Sealed again, where the sums were is what was written there.
        let expected = [once([None, Some(1), Some(2), None]), once([None; 4])].concat();
        assert_eq!(told, expected);
        assert_eq!(batch.sealed(2), Some(b"two\x07\x07\x07\x07".as_slice()));
    }

    #[test]
    fn a_message_is_full_when_no_packet_of_its_length_fits() {
        let mut batch = TxBatch::new();
        // A WRITE: the first packet is 16 bytes longer, so what follows it begins a message.
        batch.commit(transmit(1052));
        batch.commit(transmit(1036));
        assert!(!batch.fills_message());
        for _ in 0..61 {
            batch.commit(transmit(1036));
            assert!(!batch.fills_message());
        }
        batch.commit(transmit(1036));
        assert!(batch.fills_message(), "62 packets of 1040 bytes, of 65,507");
        batch.clear();
        assert!(!batch.fills_message());
        // A shorter packet ends a message that is not full.
        batch.commit(transmit(1036));
        batch.commit(transmit(12));
        assert!(!batch.fills_message());
    }

    #[test]
    fn longer_packets_are_waited_for_until_half_of_the_batch_is_full() {
        let mut batch = TxBatch::new();
        // Of READ responses: the last packet of one and the first of the next are longer.
        let long = transmit(1040);
        let runs = [(long, 2, 1036), (transmit(1036), 61, 1036), (long, 3, 1036)];
        let mut write = |index: usize| {
            let (first, count, last_len) = runs[index];
            batch.commit_run(&TransmitRun { first, count, last_len, summed: 0 });
            batch.longest_awaited()
        };
        let any = TxBatch::MAX_PACKET;
        assert_eq!([0, 1, 2, 1].map(&mut write), [any, any, any, 1036]);
        // What is few goes on waiting for more.
        assert_eq!([2, 1].map(&mut write), [any, 1036]);
        // Nothing joins a shorter one.
        batch.commit(transmit(12));
        assert_eq!(batch.longest_awaited(), 0);
    }
}
