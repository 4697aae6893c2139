//! What can be set of an identifier before it is used.

use rxe_wire::mad::cm::TimeoutExponent;

use super::{CmId, Phase};
use crate::address::{MAX_CM_RETRIES, PACKET_LIFETIME, RESPONSE_TIMEOUT, is_of_datagrams};
use crate::error::OptionError;
use crate::manager::is_v6_alone;

/// What an option is of (C: `RDMA_OPTION_ID`, `RDMA_OPTION_IB`; the values are the same).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(i32)]
pub enum OptionLevel {
    /// Identifiers.
    Id = 0,
    /// InfiniBand's path records, which RoCE does not have: there is no option.
    Ib = 1,
}

/// C: `RDMA_OPTION_ID_TOS`.
const TOS: i32 = 0;
/// C: `RDMA_OPTION_ID_REUSEADDR`.
const REUSEADDR: i32 = 1;
/// C: `RDMA_OPTION_ID_AFONLY`.
const AFONLY: i32 = 2;
/// C: `RDMA_OPTION_ID_ACK_TIMEOUT`.
const ACK_TIMEOUT: i32 = 3;
/// The greatest ACK timeout: 5 bits.
const ACK_TIMEOUT_MAX: u8 = 31;
/// The greatest code of an RNR timer: 5 bits.
const RNR_TIMER_MAX: u8 = 31;

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(super) reuse: bool,
    /// Only what the program has said.
    pub(super) af_only: Option<bool>,
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
            af_only: None,
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

    /// Whether all IPv6 addresses are not all IPv4 addresses too.
    pub(super) fn is_v6_alone(&self) -> bool {
        self.af_only.unwrap_or_else(is_v6_alone)
    }

    fn set_reuse(&mut self, phase: Phase, reuse: bool) -> Result<(), OptionError> {
        // As Linux: whoever is bound may begin to share, but not end it.
        if phase != Phase::Idle && (!reuse || phase == Phase::Listening) {
            return Err(OptionError::State(phase.name()));
        }
        self.reuse = reuse;
        Ok(())
    }

    fn set_af_only(&mut self, phase: Phase, only: bool) -> Result<(), OptionError> {
        if !matches!(phase, Phase::Idle | Phase::Bound) {
            return Err(OptionError::State(phase.name()));
        }
        self.af_only = Some(only);
        Ok(())
    }

    /// The ACK timeout of queue pairs, if it was set.
    pub(crate) const fn ack_timeout(&self) -> Option<u8> {
        self.ack_timeout
    }
}

impl CmId {
    /// Sets an option by its number, from the bytes that a program in C passes (C:
    /// `rdma_set_option`): `RDMA_OPTION_ID_TOS` (1 byte), `_REUSEADDR` and `_AFONLY` (an `int`),
    /// `_ACK_TIMEOUT` (1 byte, at most 31).
    ///
    /// # Errors
    ///
    /// [`OptionError`]: there is no such option, the value is not one, or it is too late: an address
    /// is shared from before it is bound on, and a listener keeps its families.
    pub fn set_option(
        &self,
        level: OptionLevel,
        name: i32,
        value: &[u8],
    ) -> Result<(), OptionError> {
        let length = |expected| OptionError::Length { name, have: value.len(), expected };
        let byte = || <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| length(1));
        let flag = || {
            let bytes = <[u8; 4]>::try_from(value).map_err(|_| length(4))?;
            Ok(i32::from_ne_bytes(bytes) != 0)
        };
        let mut state = self.inner.state.lock();
        let (phase, options) = (state.phase, &mut state.options);
        match (level, name) {
            (OptionLevel::Id, TOS) => options.tos = byte()?,
            (OptionLevel::Id, REUSEADDR) => {
                let reuse = flag()?;
                options.set_reuse(phase, reuse)?;
            }
            (OptionLevel::Id, AFONLY) => {
                let only = flag()?;
                options.set_af_only(phase, only)?;
            }
            (OptionLevel::Id, ACK_TIMEOUT) => {
                let timeout = byte()?;
                if is_of_datagrams(self.inner.space) {
                    return Err(OptionError::Datagrams);
                }
                if timeout > ACK_TIMEOUT_MAX {
                    let (value, most) = (timeout.into(), ACK_TIMEOUT_MAX.into());
                    return Err(OptionError::Range { value, most });
                }
                options.ack_timeout = Some(timeout);
            }
            _ => return Err(OptionError::Unknown { level, name }),
        }
        Ok(())
    }

    /// Lets others bind the same address, if they let us too (C: `rdma_set_reuseaddr`).
    ///
    /// # Errors
    ///
    /// [`OptionError::State`]: a listener does not begin to share, and who is bound does not end it.
    pub fn set_reuse_addr(&self, reuse: bool) -> Result<(), OptionError> {
        let mut state = self.inner.state.lock();
        let phase = state.phase;
        state.options.set_reuse(phase, reuse)
    }

    /// Keeps a listener for all IPv6 addresses from being one for IPv4 too (C: `rdma_set_afonly`).
    /// Where it is not called, the host decides (`net.ipv6.bindv6only`).
    ///
    /// # Errors
    ///
    /// [`OptionError::State`] when it listens already, or is past that.
    pub fn set_af_only(&self, only: bool) -> Result<(), OptionError> {
        let mut state = self.inner.state.lock();
        let phase = state.phase;
        state.options.set_af_only(phase, only)
    }

    /// Sets the traffic class of what is sent (C: `rdma_set_service_type`).
    pub fn set_service_type(&self, tos: u8) {
        self.inner.state.lock().options.tos = tos;
    }

    /// Sets the ACK timeout of the queue pair: 4.096 µs × 2^`timeout`, or none for 0; what is beyond
    /// 31 counts as 31 (C: `rdma_set_ack_timeout`).
    pub fn set_ack_timeout(&self, timeout: u8) {
        self.inner.state.lock().options.ack_timeout = Some(timeout.min(ACK_TIMEOUT_MAX));
    }

    /// Sets the RNR timer that the peer is told, by its code; what is beyond 31 counts as 31, half a
    /// second (C: `rdma_set_min_rnr_timer`).
    pub fn set_min_rnr_timer(&self, timer: u8) {
        self.inner.state.lock().options.min_rnr_timer = timer.min(RNR_TIMER_MAX);
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
