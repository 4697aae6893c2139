//! Space for a run of packets that leave in one segmented send.

use crate::path::TransmitRun;

/// Where packets of one length are written one behind the other, each followed by a gap for what
/// the link adds. The last one may be shorter; then the run is at its end.
#[derive(Debug)]
pub(crate) struct RunBuf<'a> {
    buf: &'a mut [u8],
    gap: usize,
    max: u32,
    /// Length of each packet but the last.
    len: usize,
    last_len: usize,
    count: u32,
    /// Packets behind the first one that have their sum behind them.
    summed: u32,
    /// Where the next packet begins.
    next: usize,
}

impl<'a> RunBuf<'a> {
    /// A run of at most `max` packets, of which the first, of `len` bytes, stands in `buf` already.
    pub(crate) const fn new(buf: &'a mut [u8], gap: usize, max: u32, len: usize) -> Self {
        Self { buf, gap, max, len, last_len: len, count: 1, summed: 0, next: len + gap }
    }

    /// Packets that there are.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Length of the last packet.
    pub(crate) const fn last_len(&self) -> usize {
        self.last_len
    }

    /// How many packets behind the first one have their sum in the gap behind them.
    pub(crate) const fn summed(&self) -> u32 {
        self.summed
    }

    /// How many more packets of the run's length there may be; 0 also when it is at its end, or
    /// when packets of `len` bytes are too long for it.
    pub(crate) fn room_for(&self, len: usize) -> u32 {
        if len > self.len || self.last_len < self.len {
            return 0;
        }
        let fits = self.buf.len().saturating_sub(self.next) / (self.len + self.gap);
        u32::try_from(fits).unwrap_or(u32::MAX).min(self.max - self.count)
    }

    /// Space for the next packet, if there may be one: as much as the first one has.
    pub(crate) fn next(&mut self) -> Option<&mut [u8]> {
        if self.last_len < self.len || self.count >= self.max {
            return None;
        }
        self.buf.get_mut(self.next..self.next + self.len + self.gap)?.get_mut(..self.len)
    }

    /// As [`Self::push`], for a packet of which the sum is known.
    pub(crate) fn push_summed(&mut self, len: usize, sum: u32) {
        let end = self.next + len;
        // Those that have one are the first ones.
        if self.gap >= TransmitRun::SUM_LEN
            && self.summed + 1 == self.count
            && let Some(place) = self.buf.get_mut(end..end + TransmitRun::SUM_LEN)
        {
            place.copy_from_slice(&sum.to_le_bytes());
            self.summed += 1;
        }
        self.push(len);
    }

    /// Takes the first `len` bytes of [`Self::next`] as a packet.
    pub(crate) fn push(&mut self, len: usize) {
        self.last_len = len;
        self.count += 1;
        self.next += len + self.gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_packet_ends_the_run() {
        let mut buf = [0; 100];
        let mut run = RunBuf::new(&mut buf, 4, 9, 16);
        assert_eq!(run.room_for(16), 4);
        assert_eq!(run.room_for(17), 0);
        run.next().expect("room").fill(1);
        run.push(16);
        assert_eq!((run.count(), run.room_for(12)), (2, 3));
        run.next().expect("room")[..12].fill(2);
        run.push(12);
        assert_eq!((run.count(), run.last_len()), (3, 12));
        assert!(run.next().is_none());
        assert_eq!(run.room_for(1), 0);
        assert_eq!((buf[19], buf[20], buf[35], buf[40], buf[51], buf[52]), (0, 1, 1, 2, 2, 0));
    }

    #[test]
    fn those_that_have_sums_are_the_first_ones() {
        let mut buf = [0; 100];
        let mut run = RunBuf::new(&mut buf, 4, 9, 16);
        run.push_summed(16, 0x0403_0201);
        run.push(16);
        // Behind one without, whoever reads them would not find it.
        run.push_summed(16, 0x0807_0605);
        assert_eq!((run.count(), run.summed()), (4, 1));
        assert_eq!((&buf[36..40], &buf[76..80]), (&[1, 2, 3, 4][..], &[0; 4][..]));
        // Nor is there room for one in a smaller gap.
        let mut run = RunBuf::new(&mut buf, 0, 9, 16);
        run.push_summed(16, 1);
        assert_eq!(run.summed(), 0);
    }

    #[test]
    fn the_number_of_packets_is_limited() {
        let mut buf = [0; 100];
        let mut run = RunBuf::new(&mut buf, 4, 2, 16);
        run.push(16);
        assert!(run.next().is_none());
    }
}
