//! Who of all packet links of a GID, in all processes, does what one of them must do.
//!
//! Each shard's socket gets its own copy of a frame, so packets to QP1, whose number says nothing of
//! shard or process, must be taken in by one alone, which passes them on. And somebody has to hold
//! port 4791 of the address, or the kernel would answer what comes there with ICMP errors.
//!
//! Both is the office of whoever has the port; where the host does not have the address, as that of
//! a default GID, of whoever has an abstract name instead. The kernel frees both when their process
//! ends, however that happens; nobody is told, so the others try to have it now and then.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gid_table::Gid;
use rxe_core::time::Instant;

use crate::slots::fork::Tracked;
use crate::slots::inbox::Inbox;
use crate::slots::name;
use crate::udp::{ROCE_PORT, socket_address, sys};

/// How often one that is somebody else's is asked for.
const PERIOD_NANOS: u64 = 250_000_000;

/// The office of a GID, held or hoped for.
#[derive(Debug)]
pub(super) struct Office {
    gid: Gid,
    ifindex: u32,
    held: Option<Held>,
    next_try: Instant,
}

/// What shows that nobody else has it.
#[derive(Debug)]
enum Held {
    /// The port, by a socket that drops all that comes.
    Port {
        /// Declared before the descriptor, so that it is dropped before.
        _tracked: Tracked,
        _socket: OwnedFd,
    },
    /// The name.
    Name { _inbox: Inbox },
}

impl Office {
    /// That of a GID on an interface. It is tried for at the first [`Self::try_again`].
    pub(super) fn new(gid: Gid, ifindex: u32) -> Self {
        Self { gid, ifindex, held: None, next_try: Instant::ZERO }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// When [`Self::try_again`] is to be called; `None` for never.
    pub(super) fn next_try(&self) -> Option<Instant> {
        self.held.is_none().then_some(self.next_try)
    }

    /// Tries to have it, where it is time to; true when that has just succeeded.
    pub(super) fn try_again(&mut self, now: Instant) -> bool {
        if self.held.is_some() || self.next_try > now {
            return false;
        }
        self.next_try = now.plus_nanos(PERIOD_NANOS);
        match self.take() {
            Ok(held) => self.held = Some(held),
            Err(error) => {
                tracing::trace!(target: "rxe::net", gid = %self.gid, %error, "another one has it");
            }
        }
        self.held.is_some()
    }

    fn take(&self) -> io::Result<Held> {
        match self.hold_port() {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
                let name = name::of_packet_office(self.gid, self.ifindex)?;
                Ok(Held::Name { _inbox: Inbox::bind(&name)? })
            }
            other => other,
        }
    }

    fn hold_port(&self) -> io::Result<Held> {
        let ip = self.gid.to_ip();
        let scope_id = if self.gid.is_link_local() { self.ifindex } else { 0 };
        let socket = sys::udp_socket(ip)?;
        sys::drop_all_input(socket.as_fd())?;
        sys::bind(socket.as_fd(), socket_address(ip, ROCE_PORT, scope_id))?;
        Ok(Held::Port { _tracked: Tracked::new(&socket), _socket: socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_the_next_one_when_that_one_ends() {
        // An address of this host, and one that is nobody's.
        let own = Gid::from_ip(crate::udp::test_address(31));
        let foreign = Gid::default_for_mac([2, 0, 0, 0, std::process::id() as u8, 1]);
        for gid in [own, foreign] {
            let mut one = Office::new(gid, 1);
            let mut two = Office::new(gid, 1);
            let mut now = Instant::ZERO;
            assert!(one.try_again(now) && one.is_held(), "{gid}");
            assert_eq!(one.next_try(), None);
            assert!(!two.try_again(now) && !two.is_held());
            drop(one);
            assert!(!two.try_again(now), "not asked again at once");
            now = two.next_try().expect("it hopes");
            assert!(two.try_again(now) && two.is_held());
            assert!(!two.try_again(now), "told once");
        }
    }
}
