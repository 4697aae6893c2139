//! The pace of a queue pair that was told of congestion: the reaction point of DCQCN.
//!
//! Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015), section 3.3.
//! A queue pair has a limiter from its first CNP until it is back at full speed. Its timers are
//! not timers: how often they have fired matters only when something is to be sent, and is found
//! out then. The one deadline is that of the next packet.

use crate::config::CongestionConfig;
use crate::time::Instant;

/// 1, as alpha counts.
const ONE: u64 = 1 << 30;
/// No period is shorter: what is found out late is bounded by this and [`MAX_ROUNDS`].
const SHORTEST_PERIOD: u64 = 1_000;
/// Rounds of a timer that are made up for at once. After so many (0.9 s by default) without a
/// packet, the rate is that of the last one.
const MAX_ROUNDS: u64 = 1 << 14;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// How fast a queue pair may send after a CNP.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    /// R_C, in bytes per second.
    rate: u64,
    /// R_T: where the rate goes back to.
    target: u64,
    /// The average of how often marks come, of [`ONE`].
    alpha: u64,
    alpha_since: Instant,
    rate_since: Instant,
    /// Bytes sent since the byte counter went round.
    bytes: u64,
    /// Rounds of the timer and of the byte counter since the last CNP.
    timer_rounds: u32,
    byte_rounds: u32,
    /// The next packet may leave then.
    next_send: Instant,
}

impl RateLimiter {
    /// A queue pair that sends at line rate, and gets its first CNP.
    pub(crate) fn new(config: &CongestionConfig, now: Instant) -> Self {
        let rate = config.line_rate.max(1);
        let mut limiter = Self {
            rate,
            target: rate,
            alpha: ONE,
            alpha_since: now,
            rate_since: now,
            bytes: 0,
            timer_rounds: 0,
            byte_rounds: 0,
            next_send: now,
        };
        limiter.cut(config, now);
        limiter
    }

    /// Takes in a CNP.
    pub(crate) fn on_cnp(&mut self, config: &CongestionConfig, now: Instant) {
        self.catch_up(config, now);
        self.cut(config, now);
    }

    fn cut(&mut self, config: &CongestionConfig, now: Instant) {
        self.target = self.rate;
        // In 128 bits, where nothing wraps; the result is at most the rate.
        let cut = u128::from(self.rate) * u128::from(self.alpha) / u128::from(2 * ONE);
        self.rate = (self.rate - cut as u64).max(config.min_rate).clamp(1, config.line_rate.max(1));
        self.alpha += (ONE - self.alpha) >> gain_shift(config);
        (self.alpha_since, self.rate_since) = (now, now);
        (self.bytes, self.timer_rounds, self.byte_rounds) = (0, 0, 0);
    }

    /// Whether the queue pair is back at full speed and the congestion forgotten.
    ///
    /// True at the first asking only after [`Self::wait`] or [`Self::on_cnp`] has looked at the
    /// time.
    pub(crate) fn is_over(&self, config: &CongestionConfig) -> bool {
        self.rate >= config.line_rate && self.alpha <= ONE >> gain_shift(config)
    }

    /// When the next packet may leave, if that is later than now.
    pub(crate) fn wait(&mut self, config: &CongestionConfig, now: Instant) -> Option<Instant> {
        self.catch_up(config, now);
        // What was not sent before that is not made up for.
        let earliest = now.as_nanos().saturating_sub(config.catch_up_nanos);
        self.next_send = self.next_send.max(Instant::from_nanos(earliest));
        (self.next_send > now).then_some(self.next_send)
    }

    /// Counts a packet of `len` bytes that has been sent.
    pub(crate) fn on_sent(&mut self, config: &CongestionConfig, len: usize) {
        let len = len as u64;
        // Not 0, so that the division is no problem; a packet has at most some KiB.
        self.next_send = self.next_send.plus_nanos(len * NANOS_PER_SECOND / self.rate);
        self.bytes += len;
        if self.bytes >= config.byte_counter.max(1) {
            self.bytes = 0;
            self.byte_rounds = self.byte_rounds.saturating_add(1);
            self.increase(config);
        }
    }

    /// Lets the timers fire that should have, until `now`.
    fn catch_up(&mut self, config: &CongestionConfig, now: Instant) {
        let rounds = take_rounds(&mut self.alpha_since, config.alpha_timer_nanos, now);
        for _ in 0..rounds {
            self.alpha -= self.alpha >> gain_shift(config);
        }
        let rounds = take_rounds(&mut self.rate_since, config.rate_timer_nanos, now);
        for _ in 0..rounds {
            self.timer_rounds = self.timer_rounds.saturating_add(1);
            self.increase(config);
        }
    }

    /// One step up: figure 7 of the paper.
    fn increase(&mut self, config: &CongestionConfig) {
        let (most, least) =
            (self.timer_rounds.max(self.byte_rounds), self.timer_rounds.min(self.byte_rounds));
        let growth = if most < config.fast_recovery {
            0
        } else if least > config.fast_recovery {
            let rounds = u64::from(least - config.fast_recovery);
            config.hyper_increase.saturating_mul(rounds)
        } else {
            config.additive_increase
        };
        let line_rate = config.line_rate.max(1);
        self.target = self.target.saturating_add(growth).min(line_rate);
        // Halfway there, rounded so that it arrives.
        self.rate += self.target.saturating_sub(self.rate).div_ceil(2);
    }

    #[cfg(test)]
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }
}

fn gain_shift(config: &CongestionConfig) -> u8 {
    config.gain_shift.min(31)
}

/// How often a timer has fired since `since`, which moves on by as much.
fn take_rounds(since: &mut Instant, period: u64, now: Instant) -> u64 {
    let period = period.max(SHORTEST_PERIOD);
    let rounds = now.nanos_since(*since) / period;
    *since = since.plus_nanos(rounds * period);
    rounds.min(MAX_ROUNDS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: u64 = 5_000_000_000;

    fn config() -> CongestionConfig {
        CongestionConfig::default()
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn the_first_cnp_halves_the_rate_and_fast_recovery_comes_halfway_back_each_time() {
        let mut limiter = RateLimiter::new(&config(), at(0));
        assert_eq!(limiter.rate(), LINE / 2);
        let mut rates = Vec::new();
        for round in 1..=4 {
            limiter.catch_up(&config(), at(round * 55_000));
            rates.push(limiter.rate());
        }
        assert_eq!(rates, [3_750_000_000, 4_375_000_000, 4_687_500_000, 4_843_750_000]);
    }

    #[test]
    fn after_fast_recovery_the_target_grows_beyond_where_it_was() {
        let mut limiter = RateLimiter::new(&config(), at(0));
        // A second one: the target is half of line rate now.
        limiter.on_cnp(&config(), at(1));
        assert_eq!(limiter.target, LINE / 2);
        limiter.catch_up(&config(), at(1 + 4 * 55_000));
        assert_eq!(limiter.target, LINE / 2, "fast recovery");
        limiter.catch_up(&config(), at(1 + 7 * 55_000));
        assert_eq!(limiter.target, LINE / 2 + 3 * 5_000_000, "40 Mbit/s a step");
    }

    #[test]
    fn timer_and_byte_counter_together_make_it_hyper() {
        let mut limiter = RateLimiter::new(&config(), at(0));
        limiter.on_cnp(&config(), at(1));
        for round in 0..6 {
            (0..2_500).for_each(|_| limiter.on_sent(&config(), 4_000));
            assert_eq!(limiter.byte_rounds, round + 1);
        }
        let target = limiter.target;
        limiter.catch_up(&config(), at(1 + 5 * 55_000));
        // Rounds 1 to 5 of the timer: the lesser of both is not beyond 5 yet.
        assert_eq!(limiter.target, target + 5 * 5_000_000);
        limiter.catch_up(&config(), at(1 + 6 * 55_000));
        assert_eq!(limiter.target, target + 5 * 5_000_000 + 50_000_000);
    }

    #[test]
    fn alpha_falls_without_cnps_and_so_do_the_cuts() {
        let mut limiter = RateLimiter::new(&config(), at(0));
        assert_eq!(limiter.alpha, ONE);
        limiter.catch_up(&config(), at(55_000));
        assert_eq!(limiter.alpha, ONE - ONE / 256);
        // After 177 rounds, half of it is left: 255/256 to the power of 177.
        limiter.catch_up(&config(), at(177 * 55_000));
        let half = ONE / 2;
        assert!(limiter.alpha.abs_diff(half) < ONE / 500, "{}", limiter.alpha);
        let before = limiter.rate();
        limiter.on_cnp(&config(), at(177 * 55_000));
        let cut = before - limiter.rate();
        assert!(cut.abs_diff(before / 4) < before / 500, "{cut} of {before}");
    }

    #[test]
    fn packets_leave_at_the_rate_and_what_was_missed_is_made_up_for_up_to_a_bound() {
        let config = CongestionConfig { line_rate: 2_000_000, min_rate: 1_000_000, ..config() };
        // 1 byte a microsecond; the timers do not matter within the first 55.
        let mut limiter = RateLimiter::new(&config, at(0));
        assert_eq!(limiter.wait(&config, at(0)), None);
        limiter.on_sent(&config, 10);
        assert_eq!(limiter.wait(&config, at(1)), Some(at(10_000)));
        assert_eq!(limiter.wait(&config, at(10_000)), None);
        limiter.on_sent(&config, 10);
        // Late by 20 us: the next two leave at once.
        assert_eq!(limiter.wait(&config, at(40_000)), None);
        limiter.on_sent(&config, 20);
        assert_eq!(limiter.wait(&config, at(40_000)), None);
        limiter.on_sent(&config, 10);
        assert_eq!(limiter.wait(&config, at(40_000)), Some(at(50_000)));
        // Very late: only 100 us of it count.
        assert_eq!(limiter.wait(&config, at(1_000_000)), None);
        assert_eq!(limiter.next_send, at(900_000));
    }

    #[test]
    fn a_queue_pair_left_alone_comes_back_to_full_speed() {
        let mut limiter = RateLimiter::new(&config(), at(0));
        (1..100).for_each(|round| limiter.on_cnp(&config(), at(round * 50_000)));
        assert_eq!(limiter.rate(), config().min_rate);
        limiter.catch_up(&config(), at(40_000_000));
        assert!(limiter.rate() < LINE && !limiter.is_over(&config()));
        assert_eq!(limiter.wait(&config(), at(u64::MAX / 2)), None);
        assert!(limiter.is_over(&config()));
    }

    proptest! {
        /// Whatever the parameters are: no panic, no rate out of bounds, and an end of all waiting.
        #[test]
        fn any_parameters(
            values in prop::array::uniform8(prop_oneof![0..3_u64, 0..1_u64 << 20, any::<u64>()]),
            shift: u8,
            steps in prop::collection::vec((0..4_u8, 0..1_u64 << 40), 0..20),
        ) {
            let [line_rate, min_rate, alpha, rate, byte_counter, additive, hyper, catch_up] = values;
            let config = CongestionConfig {
                line_rate,
                min_rate,
                gain_shift: shift,
                alpha_timer_nanos: alpha,
                rate_timer_nanos: rate,
                byte_counter,
                additive_increase: additive,
                hyper_increase: hyper,
                catch_up_nanos: catch_up,
                ..config()
            };
            let mut now = at(0);
            let mut limiter = RateLimiter::new(&config, now);
            for (what, nanos) in steps {
                now = now.plus_nanos(nanos);
                match what {
                    0 => limiter.on_cnp(&config, now),
                    1 => limiter.on_sent(&config, (nanos % 5_000) as usize),
                    _ => if let Some(at) = limiter.wait(&config, now) {
                        prop_assert!(at > now);
                        now = at;
                        prop_assert_eq!(limiter.wait(&config, now), None);
                    },
                }
                prop_assert!((1..=line_rate.max(1)).contains(&limiter.rate()));
                prop_assert!(limiter.alpha <= ONE);
            }
        }
    }
}
