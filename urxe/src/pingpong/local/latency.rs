//! How long a small message takes: SEND there and back, both ends polling.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{SendData, SendFlags, SendOp, SendWr, WaitError, WcOpcode, WorkCompletion};

use super::end::{End, Pair};
use super::report::Quantiles;
use crate::pingpong::error::PingpongError;
use crate::pingpong::pattern;

/// Slots of an end: one to send from, the others to receive into.
pub(super) const SLOTS: usize = 4;
/// The slot to send from.
const SEND_SLOT: usize = 0;
/// Exchanges before those that count.
const WARM_UP: u64 = 50;
/// How long a message may take: everything is in this process, so nothing good takes this long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Empty polls in a row before the core is offered to others: about as long as a message takes.
/// Where both ends share a core, they wait for each other no longer than that.
const SPINS: u32 = 16;

/// Plays `iters` exchanges of messages of `size` bytes; every byte of each is checked.
pub(super) fn measure(pair: &Pair, size: usize, iters: u32) -> Result<Quantiles, PingpongError> {
    let count = u64::from(iters) + WARM_UP;
    let failed = AtomicBool::new(false);
    let client = Player::new(&pair.active, 0, size, &failed);
    let server = Player::new(&pair.passive, 1, size, &failed);
    pair.active.post_receives(SEND_SLOT + 1..SLOTS)?;
    pair.passive.post_receives(SEND_SLOT + 1..SLOTS)?;
    let mut round_trips = thread::scope(|scope| {
        let serving = scope.spawn(move || server.guard(|server| server.serve(count)));
        let played = client.guard(|client| client.play(count));
        let served = serving.join().map_err(|_| PingpongError::Panicked)?;
        match (played, served) {
            // The client only gave up since the server had failed.
            (Err(PingpongError::Wait(_)), Err(served)) => Err(served),
            (played, served) => served.and(played),
        }
    })?;
    Ok(Quantiles::of_halves(&mut round_trips))
}

/// A message that came.
#[derive(Clone, Copy)]
struct Arrival {
    slot: usize,
    byte_len: u32,
    at: Instant,
}

/// One end of the exchange.
struct Player<'a> {
    end: &'a End,
    /// 0 or 1: the messages of both differ.
    side: u64,
    size: usize,
    /// Set when one end cannot go on.
    failed: &'a AtomicBool,
    /// The message that came and was not taken yet.
    arrived: Option<Arrival>,
    /// What was sent may have to be sent again, so its slot must stay as it is.
    unacked: bool,
    bytes: Vec<u8>,
    completions: Vec<WorkCompletion>,
}

impl<'a> Player<'a> {
    fn new(end: &'a End, side: u64, size: usize, failed: &'a AtomicBool) -> Self {
        let (bytes, completions) = (vec![0; size], Vec::with_capacity(SLOTS));
        Self { end, side, size, failed, arrived: None, unacked: false, bytes, completions }
    }

    /// Tells the other end when this one cannot go on.
    fn guard<T>(
        mut self,
        play: impl FnOnce(&mut Self) -> Result<T, PingpongError>,
    ) -> Result<T, PingpongError> {
        let result = play(&mut self);
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// Sends `count` messages and awaits the answer to each; returns how long those after the first
    /// few took.
    ///
    /// Messages are made and checked while no clock runs.
    fn play(&mut self, count: u64) -> Result<Vec<Duration>, PingpongError> {
        let mut round_trips = Vec::new();
        for message in 0..count {
            self.make(message)?;
            let start = Instant::now();
            self.send()?;
            let arrival = self.take_arrival()?;
            if message >= WARM_UP {
                round_trips.push(arrival.at - start);
            }
            self.check(message, arrival)?;
        }
        self.await_ack()?;
        Ok(round_trips)
    }

    /// Answers `count` messages. The answer is made before the message comes, and the message is
    /// checked while the answer is under way, so neither takes part in the time.
    fn serve(&mut self, count: u64) -> Result<(), PingpongError> {
        for message in 0..count {
            self.make(message)?;
            let arrival = self.take_arrival()?;
            self.send()?;
            self.check(message, arrival)?;
        }
        self.await_ack()
    }

    /// Puts the next message into its slot, once that is free.
    fn make(&mut self, message: u64) -> Result<(), PingpongError> {
        self.await_ack()?;
        pattern::fill(seed(self.side, message), &mut self.bytes);
        Ok(self.end.mr.buffer().write_at(self.end.offset(SEND_SLOT), &self.bytes)?)
    }

    fn send(&mut self) -> Result<(), PingpongError> {
        self.unacked = true;
        Ok(self.end.qp.post_send(&SendWr {
            wr_id: SEND_SLOT as u64,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&self.end.sge(SEND_SLOT)),
            srq_number: None,
        })?)
    }

    /// Checks a message of the other end, and posts its slot again.
    fn check(&mut self, message: u64, arrival: Arrival) -> Result<(), PingpongError> {
        let Arrival { slot, byte_len, .. } = arrival;
        if byte_len as usize != self.size {
            return Err(PingpongError::Length { message, got: byte_len, wanted: self.size });
        }
        self.end.mr.buffer().read_at(self.end.offset(slot), &mut self.bytes)?;
        match pattern::first_difference(seed(1 - self.side, message), &self.bytes) {
            Some(offset) => Err(PingpongError::Data { what: "SEND", message, offset }),
            None => self.end.post_receives(slot..slot + 1),
        }
    }

    fn take_arrival(&mut self) -> Result<Arrival, PingpongError> {
        self.poll_until(|player| player.arrived.take())
    }

    fn await_ack(&mut self) -> Result<(), PingpongError> {
        self.poll_until(|player| (!player.unacked).then_some(()))
    }

    /// Polls until `ready` gives something.
    fn poll_until<T>(
        &mut self,
        ready: impl Fn(&mut Self) -> Option<T>,
    ) -> Result<T, PingpongError> {
        let (mut idle, start) = (0u32, Instant::now());
        loop {
            if let Some(value) = ready(self) {
                return Ok(value);
            }
            self.completions.clear();
            if self.end.poll(SLOTS, &mut self.completions)? == 0 {
                idle += 1;
                if idle.is_multiple_of(SPINS) {
                    self.rest(start)?;
                }
                continue;
            }
            idle = 0;
            for completion in &self.completions {
                match completion.opcode {
                    WcOpcode::Send => self.unacked = false,
                    _ => {
                        let (slot, byte_len) = (completion.wr_id as usize, completion.byte_len);
                        self.arrived = Some(Arrival { slot, byte_len, at: Instant::now() });
                    }
                }
            }
        }
    }

    /// Offers the core to others, after having polled in vain for a while.
    fn rest(&self, since: Instant) -> Result<(), PingpongError> {
        thread::yield_now();
        if since.elapsed() > PATIENCE || self.failed.load(Ordering::Acquire) {
            return Err(WaitError::TimedOut(PATIENCE).into());
        }
        Ok(())
    }
}

/// The pattern of a message; far apart, since those of neighbouring seeds resemble each other.
const fn seed(side: u64, message: u64) -> u64 {
    (message << 1 | side) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pingpong::test_port;

    fn connected(size: usize) -> Pair {
        test_port::retried(|| {
            let device = ibverbs_api::Device::by_name("rxe_lo")?;
            let contexts = [device.open()?, device.open()?];
            let wanted = crate::pingpong::port::Wanted::Family { ipv6: true };
            let gid = crate::pingpong::port::choose_gid(&contexts[0], 1, wanted)?;
            Pair::connect(&contexts, &gid, ibverbs_api::Mtu::M4096, [SLOTS; 2], size)
        })
        .expect("a pair")
    }

    #[test]
    fn times_are_of_real_messages() {
        let times = measure(&connected(100), 100, 20).expect("right");
        assert!(times.min > Duration::from_nanos(500), "{times:?}");
        assert!(times.min <= times.median && times.median <= times.p99, "{times:?}");
    }

    #[test]
    fn a_message_out_of_turn_or_of_another_length_is_found() {
        let pair = connected(64);
        let failed = AtomicBool::new(false);
        let player = |end, side| Player::new(end, side, 64, &failed);
        let (mut client, mut server) = (player(&pair.active, 0), player(&pair.passive, 1));
        pair.passive.post_receives(SEND_SLOT + 1..SLOTS).expect("posted");
        client.make(5).expect("made");
        client.send().expect("sent");
        let arrival = server.take_arrival().expect("arrived");
        let error = server.check(4, arrival).expect_err("found");
        assert!(matches!(error, PingpongError::Data { message: 4, .. }), "{error}");
        let short = Arrival { byte_len: 63, ..arrival };
        assert!(matches!(server.check(5, short), Err(PingpongError::Length { got: 63, .. })));
        server.check(5, arrival).expect("the right one");
    }
}
