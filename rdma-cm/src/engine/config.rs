//! What an engine is made of.

use rxe_core::Seed;
use rxe_wire::mad::cm::{Guid, PathMtu, TimeoutExponent};

/// How an engine is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmConfig {
    /// Seed of the first communication id and of transaction ids.
    pub seed: Seed,
    /// The top byte of all communication ids: the slot of the QP1 that sends and gets the messages
    /// (`QueuePair::slot` of ibverbs-api). Where several processes share an address, messages find
    /// their process by it.
    pub slot: u8,
    /// GUID of the device.
    pub ca_guid: Guid,
    /// How long the device may delay an acknowledgement (`local_ca_ack_delay`).
    pub ack_delay: TimeoutExponent,
    /// The greatest path MTU that a port can do; a REQ for more is refused.
    pub path_mtu_max: PathMtu,
    /// Connections and lookups at once, those in timewait included. A REQ beyond is refused.
    pub connections_max: usize,
    /// Connections in timewait at once; beyond, the one that is nearest its end leaves early.
    pub timewait_max: usize,
    /// How often a DREQ is sent again at most for a connection that its owner has left already.
    pub orphan_retries_max: u8,
    /// How long the answer to a lookup is kept in case that it is asked for again.
    pub lookup_kept: TimeoutExponent,
}

impl CmConfig {
    /// A configuration with room for 2^18 connections, a quarter of them in timewait.
    pub const fn new(
        seed: Seed,
        slot: u8,
        ca_guid: Guid,
        ack_delay: TimeoutExponent,
        path_mtu_max: PathMtu,
    ) -> Self {
        Self {
            seed,
            slot,
            ca_guid,
            ack_delay,
            path_mtu_max,
            connections_max: 1 << 18,
            timewait_max: 1 << 16,
            orphan_retries_max: 3,
            lookup_kept: TimeoutExponent::new(20),
        }
    }
}
