//! The notification point of DCQCN: tells the sender of marked packets to slow down.

use rxe_wire::hdr::Bth;
use rxe_wire::{Opcode, PKey, Qpn};

use crate::config::CongestionConfig;
use crate::time::Instant;

/// Bytes after BTH that a CNP reserves (facts.md section 1).
const CNP_RESERVED: usize = 16;

/// What a queue pair remembers of the CNPs that it sends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notifier {
    last: Option<Instant>,
    is_due: bool,
}

impl Notifier {
    /// Takes note of a marked packet: a CNP is due, unless there was one only just now.
    pub(crate) fn on_marked(&mut self, config: &CongestionConfig, now: Instant) {
        let interval = config.cnp_interval_nanos;
        if self.is_due || self.last.is_some_and(|last| now.nanos_since(last) < interval) {
            return;
        }
        self.is_due = true;
        self.last = Some(now);
    }

    /// Whether a CNP is to be sent.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Writes the CNP that is due to the queue pair `dest_qpn`; its length.
    pub(crate) fn write(&mut self, dest_qpn: Qpn, buf: &mut [u8]) -> usize {
        self.is_due = false;
        let (opcode, pkey) = (Opcode::CNP, PKey::DEFAULT);
        let bth = Bth { opcode, becn: true, pkey, dest_qpn, ..Bth::default() };
        let end = Bth::LEN + CNP_RESERVED;
        let written = bth.write(buf).is_ok();
        let reserved = buf.get_mut(Bth::LEN..end).map(|reserved| reserved.fill(0));
        debug_assert!(written && reserved.is_some(), "the caller gives room for any packet");
        end
    }
}
