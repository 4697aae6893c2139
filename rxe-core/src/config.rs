//! What a device is made of: seed, limits, congestion control, and what it says of itself.

/// The seed of all randomness of a device: from the OS in earnest, fixed in tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed(pub [u8; 32]);

impl Seed {
    /// A seed for tests and simulations, made of a number.
    pub const fn for_test(number: u64) -> Self {
        let mut bytes = [0; 32];
        let number = number.to_le_bytes();
        let mut i = 0;
        while i < number.len() {
            bytes[i] = number[i];
            i += 1;
        }
        Self(bytes)
    }
}

/// Every capacity of a device, as `query_device` reports it (`struct ibv_device_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Queue pairs per shard (`max_qp` is that times the shards).
    pub max_qp: u32,
    /// Work requests per queue (`max_qp_wr`).
    pub max_qp_wr: u32,
    /// Scatter/gather entries per work request (`max_sge`).
    pub max_sge: u32,
    /// Bytes of inline data per work request (`max_inline_data`).
    pub max_inline_data: u32,
    /// Completion queues (`max_cq`).
    pub max_cq: u32,
    /// Entries per completion queue (`max_cqe`).
    pub max_cqe: u32,
    /// Memory regions (`max_mr`).
    pub max_mr: u32,
    /// Shared receive queues (`max_srq`); fewer than 2^24, the numbers that there are.
    pub max_srq: u32,
    /// Receives per shared receive queue (`max_srq_wr`).
    pub max_srq_wr: u32,
    /// Scatter/gather entries per receive of a shared receive queue (`max_srq_sge`).
    pub max_srq_sge: u32,
    /// Address handles (`max_ah`).
    pub max_ah: u32,
    /// Multicast groups (`max_mcast_grp`).
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one multicast group (`max_mcast_qp_attach`).
    pub max_mcast_qp_attach: u32,
    /// XRC domains (`max_xrcd`; C programs cannot ask).
    pub max_xrcd: u32,
    /// Bytes of device memory (`max_dm_size`).
    pub max_dm_size: u64,
    /// Protection domains (`max_pd`).
    pub max_pd: u32,
    /// READs and atomics that a QP answers at once (`max_qp_rd_atom`).
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a QP has outstanding (`max_qp_init_rd_atom`).
    pub max_qp_init_rd_atom: u8,
    /// Async events kept until they are read; beyond that the oldest are dropped and counted.
    pub max_async_events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 65_000,
            max_qp_wr: 1 << 16,
            max_sge: 32,
            max_inline_data: 1024,
            max_cq: 1 << 20,
            max_cqe: 1 << 22,
            max_mr: 1 << 20,
            max_srq: 1 << 20,
            max_srq_wr: 1 << 20,
            max_srq_sge: 32,
            max_ah: 1 << 20,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 1024,
            max_xrcd: 1 << 16,
            max_dm_size: 64 << 20,
            max_pd: 1 << 20,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            max_async_events: 1 << 16,
        }
    }
}

/// Congestion control of a device: DCQCN, as Zhu et al. published it ("Congestion Control for
/// Large-Scale RDMA Deployments", SIGCOMM 2015).
///
/// A receiver that sees a marked packet sends a congestion notification packet (CNP); a sender that
/// gets one slows its queue pair down, and comes back to speed by and by. The defaults are the
/// paper's, where it gives them. Rates are in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionConfig {
    /// Marked packets are answered by CNPs: this device is a notification point.
    pub notify: bool,
    /// CNPs slow a queue pair down: this device is a reaction point.
    pub react: bool,
    /// The least time between two CNPs of a queue pair, in nanoseconds.
    pub cnp_interval_nanos: u64,
    /// The traffic class of CNPs: DSCP 48 by default, and not ECN capable.
    pub cnp_traffic_class: u8,
    /// The rate of a queue pair that nothing holds back.
    pub line_rate: u64,
    /// No queue pair is slowed down to less; at least 1 counts.
    pub min_rate: u64,
    /// The gain g of the average alpha is 2 to the power of minus this; at most 31 counts.
    pub gain_shift: u8,
    /// Alpha decays each time that this passes without a CNP, in nanoseconds; at least 1 µs counts.
    pub alpha_timer_nanos: u64,
    /// The rate grows each time that this passes, in nanoseconds; at least 1 µs counts.
    pub rate_timer_nanos: u64,
    /// The rate grows also each time that so many bytes have been sent; at least 1 counts.
    pub byte_counter: u64,
    /// F: as long as neither the timer nor the byte counter has gone round so many times since the
    /// last CNP, the rate goes halfway back to what it was (fast recovery).
    pub fast_recovery: u32,
    /// R_AI: what the target rate grows by at each step after that (additive increase).
    pub additive_increase: u64,
    /// R_HAI: what it grows by once both have gone round more than F times, times the rounds beyond
    /// (hyper increase; not given in the paper: ten times R_AI, as QCN has it).
    pub hyper_increase: u64,
    /// A queue pair that was woken late sends at once what it could have sent in so many
    /// nanoseconds: threads are scheduled, not instant.
    pub catch_up_nanos: u64,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self {
            notify: true,
            react: true,
            cnp_interval_nanos: 50_000,
            cnp_traffic_class: 48 << 2,
            line_rate: 5_000_000_000,
            min_rate: 1_250_000,
            gain_shift: 8,
            alpha_timer_nanos: 55_000,
            rate_timer_nanos: 55_000,
            byte_counter: 10_000_000,
            fast_recovery: 5,
            additive_increase: 5_000_000,
            hyper_increase: 50_000_000,
            catch_up_nanos: 100_000,
        }
    }
}

/// How a device is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// Seed of all randomness.
    pub seed: Seed,
    /// Capacities.
    pub limits: Limits,
    /// Congestion control.
    pub congestion: CongestionConfig,
}

impl DeviceConfig {
    /// A device of this seed, with the default limits and congestion control.
    pub fn new(seed: Seed) -> Self {
        Self { seed, limits: Limits::default(), congestion: CongestionConfig::default() }
    }
}
