//! What can be set of an identifier before it is used.

use rxe_wire::mad::cm::TimeoutExponent;

use super::CmId;
use crate::address::{MAX_CM_RETRIES, PACKET_LIFETIME, RESPONSE_TIMEOUT};

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(super) reuse: bool,
    pub(super) af_only: bool,
    pub(super) tos: u8,
    pub(super) ack_timeout: Option<u8>,
    pub(super) min_rnr_timer: u8,
    pub(super) response_timeout: TimeoutExponent,
    pub(super) max_cm_retries: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reuse: false,
            af_only: false,
            tos: 0,
            ack_timeout: None,
            min_rnr_timer: 0,
            response_timeout: RESPONSE_TIMEOUT,
            max_cm_retries: MAX_CM_RETRIES,
        }
    }
}

impl Options {
    /// How long a packet lives: an ACK timeout that was set stands for both ways.
    pub(crate) fn packet_lifetime(&self) -> TimeoutExponent {
        match self.ack_timeout {
            Some(timeout) => TimeoutExponent::new(timeout.saturating_sub(1)),
            None => PACKET_LIFETIME,
        }
    }

    /// The ACK timeout of queue pairs, if it was set.
    pub(crate) const fn ack_timeout(&self) -> Option<u8> {
        self.ack_timeout
    }
}

impl CmId {
    /// Lets others bind the same address, if they let us too (C: `rdma_set_reuseaddr`).
    pub fn set_reuse_addr(&self, reuse: bool) {
        self.inner.state.lock().options.reuse = reuse;
    }

    /// Keeps a listener for all IPv6 addresses from being one for IPv4 too (C: `rdma_set_afonly`).
    pub fn set_af_only(&self, only: bool) {
        self.inner.state.lock().options.af_only = only;
    }

    /// Sets the traffic class of what is sent (C: `rdma_set_service_type`).
    pub fn set_service_type(&self, tos: u8) {
        self.inner.state.lock().options.tos = tos;
    }

    /// Sets the ACK timeout of the queue pair, 5 bits: 4.096 µs × 2^`timeout` (C:
    /// `rdma_set_ack_timeout`).
    pub fn set_ack_timeout(&self, timeout: u8) {
        self.inner.state.lock().options.ack_timeout = Some(timeout & 0x1f);
    }

    /// Sets the RNR timer that the peer is told, 5 bits (C: `rdma_set_min_rnr_timer`).
    pub fn set_min_rnr_timer(&self, timer: u8) {
        self.inner.state.lock().options.min_rnr_timer = timer & 0x1f;
    }

    /// Sets how long the peer may take to answer a message, 4.096 µs × 2^`timeout`, and how often
    /// the message is sent again, 15 times at most. C has no counterpart; the defaults are Linux's,
    /// about a minute in all. A timeout of 16 and 4 retries are less than 4 seconds.
    pub fn set_patience(&self, timeout: u8, retries: u8) {
        let mut state = self.inner.state.lock();
        state.options.response_timeout = TimeoutExponent::new(timeout);
        state.options.max_cm_retries = retries.min(15);
    }
}
