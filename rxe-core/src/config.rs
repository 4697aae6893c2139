//! What a device is made of: seed, limits, and what it says of itself.

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
            max_pd: 1 << 20,
            max_qp_rd_atom: 128,
            max_qp_init_rd_atom: 128,
            max_async_events: 1 << 16,
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
}
