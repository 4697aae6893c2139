//! Packets that come together, as a link over sockets gives them.

use rxe_core::{Instant, PacketRun, Path, Shard};

/// Bytes between two packets.
const GAP: usize = 4;

/// Packets of one path and length in a row that were received and not yet given to the shard.
pub(super) struct Together {
    /// So many at most; 1 for one by one.
    most: usize,
    path: Option<Path>,
    /// Bytes of the first packet.
    len: usize,
    count: usize,
    /// Each with a gap behind.
    bytes: Vec<u8>,
    /// The last one was shorter, so it is the last of the run.
    is_ended: bool,
}

impl Together {
    /// Of the link of a slot: all kinds are among a few of them.
    pub(super) fn new(slot: u8) -> Self {
        let most = [62, 1, 5][usize::from(slot) % 3];
        Self { most, path: None, len: 0, count: 0, bytes: Vec::new(), is_ended: false }
    }

    /// Takes a packet; what does not go together with it is given to the shard before.
    pub(super) fn add(&mut self, now: Instant, path: &Path, packet: &[u8], shard: &mut Shard) {
        let fits = self.path == Some(*path) && packet.len() <= self.len && !self.is_ended;
        if !fits || self.count >= self.most {
            self.give(now, shard);
            (self.path, self.len) = (Some(*path), packet.len());
        }
        self.bytes.extend_from_slice(packet);
        self.bytes.extend_from_slice(&[0xee; GAP]);
        self.count += 1;
        self.is_ended = packet.len() < self.len;
    }

    /// Gives what there is to the shard.
    pub(super) fn give(&mut self, now: Instant, shard: &mut Shard) {
        if let Some(path) = self.path.take() {
            let end = self.bytes.len() - GAP;
            shard.handle_packets(now, &path, PacketRun::new(&self.bytes[..end], self.len, GAP));
        }
        self.bytes.clear();
        (self.count, self.is_ended) = (0, false);
    }
}
