//! Which socket of an address gets a packet, when several shards of a process receive on it.
//!
//! All shards bind UDP port 4791 of the address with `SO_REUSEPORT`; a classic BPF program picks
//! the socket by the slot, the top byte of the destination QPN (abi.md section 6). The kernel
//! knows the sockets of a group by index: a new one is appended, and closing one moves the *last*
//! into its place. [`AddressGroup`] keeps the same order and renews the program at each change.
//!
//! Steering only saves work. The kernel looks at the first packet of a coalesced buffer alone,
//! and packets to QP 1 or to an unknown slot go to any member, by hash. So whoever receives looks
//! at the slot again and forwards what is not its own.
//!
//! A socket leaves the kernel's group when its last handle is closed. Whoever shares the handle to
//! wait on it must give it up no later than the link goes: until then the port stays taken, and
//! packets may be steered to a socket that nobody reads.
//!
//! One process has an address for itself: it holds an abstract AF_UNIX name, which is scoped to
//! the network namespace and gone with the process. Several processes on one address need a name
//! per slot instead of per address, and agreement on the order of the group; all of that would
//! live in this file.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;

use super::sys;
use crate::host::os_errno;

/// The UDP port of RoCEv2 (`ROCE_V2_UDP_DPORT`).
pub const ROCE_PORT: u16 = 4791;

/// Why a shard cannot receive on an address.
#[derive(Debug, Error)]
pub enum BindError {
    /// Something that is not urxe holds the port.
    #[error(
        "UDP port {ROCE_PORT} on {address} is taken: is rdma_rxe loaded on this host? Unload it, \
         or give urxe another address"
    )]
    PortTaken {
        /// The address.
        address: IpAddr,
    },
    /// Another process runs urxe on this address.
    #[error(
        "{address} is in use by another urxe process: one process may use an address; give this \
         one another address of an interface (such as by: ip address add 127.0.0.2/8 dev lo)"
    )]
    AddressInUse {
        /// The address.
        address: IpAddr,
    },
    /// A shard with this slot receives on the address already.
    #[error("slot {slot} receives on {address} already: each shard needs a slot of its own")]
    SlotTaken {
        /// The address.
        address: IpAddr,
        /// The slot.
        slot: u8,
    },
    /// The host does not own the address.
    #[error("{address} is not an address of this host: use one that `ip address` shows")]
    NotLocal {
        /// The address.
        address: IpAddr,
    },
    /// The operating system refused something else.
    #[error("cannot {what} on {address}: {source}")]
    Os {
        /// The address.
        address: IpAddr,
        /// What was attempted.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl BindError {
    /// The errno that stands for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::PortTaken { .. } | Self::AddressInUse { .. } | Self::SlotTaken { .. } => {
                libc::EADDRINUSE
            }
            Self::NotLocal { .. } => libc::EADDRNOTAVAIL,
            Self::Os { source, .. } => os_errno(source),
        }
    }

    pub(super) fn os(address: IpAddr, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { address, what, source }
    }
}

/// The addresses that this process receives on, each with its group of sockets.
static GROUPS: Mutex<Option<HashMap<SocketAddr, AddressGroup>>> = Mutex::new(None);

/// The sockets of this process on one address, in the kernel's order.
#[derive(Debug)]
struct AddressGroup {
    members: Vec<Member>,
    /// Holds the address for this process, as long as it is open.
    _lock: UnixDatagram,
}

#[derive(Debug)]
struct Member {
    slot: u8,
    socket: Arc<OwnedFd>,
}

/// A shard's place in the group of an address. It leaves the group when this is dropped.
#[derive(Debug)]
pub(super) struct Membership {
    address: SocketAddr,
    slot: u8,
    has_left: bool,
}

impl Membership {
    /// Makes the receive socket of the shard `slot` on `address`.
    ///
    /// `prepare` sets the options of the new socket before it is bound. Drop the socket before
    /// the membership, which then closes it: so the order of the group is known.
    pub(super) fn join(
        address: SocketAddr,
        slot: u8,
        prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> Result<(Self, Arc<OwnedFd>), BindError> {
        let ip = address.ip();
        let mut groups = GROUPS.lock();
        let groups = groups.get_or_insert_default();
        if let Some(group) = groups.get(&address)
            && group.members.iter().any(|member| member.slot == slot)
        {
            return Err(BindError::SlotTaken { address: ip, slot });
        }
        let new_lock = match groups.get(&address) {
            Some(_) => None,
            None => Some(lock(address)?),
        };
        let socket = sys::udp_socket(ip).map_err(BindError::os(ip, "make a socket"))?;
        prepare(&socket).map_err(BindError::os(ip, "set the options of a receive socket"))?;
        sys::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
            .map_err(BindError::os(ip, "share the port among shards"))?;
        sys::bind(socket.as_fd(), address).map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => BindError::PortTaken { address: ip },
            Some(libc::EADDRNOTAVAIL) => BindError::NotLocal { address: ip },
            _ => BindError::Os { address: ip, what: "bind the RoCE port", source: error },
        })?;
        let socket = Arc::new(socket);
        let member = Member { slot, socket: Arc::clone(&socket) };
        match new_lock {
            Some(lock) => {
                let group = AddressGroup { members: vec![member], _lock: lock };
                groups.insert(address, group);
            }
            None => {
                if let Some(group) = groups.get_mut(&address) {
                    group.members.push(member);
                    if let Err(error) = group.steer() {
                        group.members.pop();
                        return Err(BindError::os(ip, "steer packets to shards")(error));
                    }
                }
            }
        }
        Ok((Self { address, slot, has_left: false }, socket))
    }
}

impl Membership {
    /// Leaves the group, after `drain` has taken what has come to `socket`, the last handle.
    ///
    /// The program no longer names the socket by then. The lock is held throughout, so no two
    /// members leave at once: what the kernel steers by an index that is no longer right comes to
    /// one that is read, or will be drained.
    pub(super) fn leave(mut self, socket: Arc<OwnedFd>, drain: impl FnOnce(BorrowedFd<'_>)) {
        let mut groups = GROUPS.lock();
        let group = groups.as_ref().and_then(|groups| groups.get(&self.address));
        if let Some(Err(error)) = group.map(|group| group.steer_past(self.slot)) {
            tracing::warn!(address = %self.address, %error, "cannot renew the steering program");
        }
        drain(socket.as_fd());
        drop(socket);
        self.remove(&mut groups);
    }

    /// Closes the socket of this member, and renews the program.
    fn remove(&mut self, groups: &mut Option<HashMap<SocketAddr, AddressGroup>>) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let Some(groups) = groups else { return };
        let Some(group) = groups.get_mut(&self.address) else { return };
        let Some(index) = group.place(self.slot) else { return };
        // This closes the socket, and does as the kernel: the last moves into the freed place.
        group.members.swap_remove(index);
        if group.members.is_empty() {
            groups.remove(&self.address);
        } else if let Err(error) = group.steer() {
            // The old program steers some packets to wrong shards; they are forwarded.
            tracing::warn!(address = %self.address, %error, "cannot renew the steering program");
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.has_left {
            self.remove(&mut GROUPS.lock());
        }
    }
}

impl AddressGroup {
    /// The place of a slot in the group.
    fn place(&self, slot: u8) -> Option<usize> {
        self.members.iter().position(|member| member.slot == slot)
    }

    fn slots(&self) -> Vec<u8> {
        self.members.iter().map(|member| member.slot).collect()
    }

    /// Gives the group the program for its present order.
    fn steer(&self) -> io::Result<()> {
        self.attach(&steering_program(&self.slots()))
    }

    /// Gives the group a program that leaves out one of several members.
    fn steer_past(&self, slot: u8) -> io::Result<()> {
        match self.place(slot) {
            Some(leaving) if self.members.len() > 1 => {
                self.attach(&program_without(&self.slots(), leaving))
            }
            _ => Ok(()),
        }
    }

    fn attach(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        match self.members.last() {
            Some(member) => sys::attach_reuseport_program(member.socket.as_fd(), program),
            None => Ok(()),
        }
    }
}

/// How often a lock that is held is tried again, and the pause before each attempt: a child of
/// this process holds all descriptors between fork and exec, also those closed here meanwhile.
const LOCK_ATTEMPTS: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Takes the address for this process.
fn lock(address: SocketAddr) -> Result<UnixDatagram, BindError> {
    let name = format!("urxe/address/{address}");
    let name = std::os::unix::net::SocketAddr::from_abstract_name(name)
        .map_err(BindError::os(address.ip(), "name the lock"))?;
    for _ in 0..LOCK_ATTEMPTS {
        match UnixDatagram::bind_addr(&name) {
            Ok(lock) => return Ok(lock),
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(error) => return Err(BindError::os(address.ip(), "take the lock")(error)),
        }
    }
    Err(BindError::AddressInUse { address: address.ip() })
}

/// The program that returns the index in `slots` of a packet's slot.
///
/// It sees the UDP payload from offset 0, that is BTH, whose bytes 5 to 7 are the destination
/// QPN. For any other slot it returns an index beyond the group: then the kernel takes its hash.
/// A packet too short to have a slot goes to the first: a load out of bounds returns 0.
fn steering_program(slots: &[u8]) -> Vec<libc::sock_filter> {
    program(slots.iter().copied().zip(0..), u32::MAX)
}

/// As [`steering_program`], but nothing comes to the member at index `leaving`.
///
/// Everything for it, or for an unknown slot, comes to one whose index stays what it is when the
/// member is gone, if there is one: not to the last.
fn program_without(slots: &[u8], leaving: usize) -> Vec<libc::sock_filter> {
    let others = || slots.iter().copied().zip(0..).filter(|(_, at)| *at as usize != leaving);
    let heir = others().next().map_or(u32::MAX, |(_, index)| index);
    program(others(), heir)
}

/// The program that returns the index of a packet's slot, and `other` for any other slot.
fn program(places: impl Iterator<Item = (u8, u32)>, other: u32) -> Vec<libc::sock_filter> {
    let instruction =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 4),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 0x00ff_ffff),
        instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 16),
    ];
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    for (slot, index) in places {
        // Equal: go on to the return that follows; else skip it.
        program.push(instruction(equal, 0, 1, u32::from(slot)));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, index));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, other));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program of the instructions used here on a packet.
    fn run(program: &[libc::sock_filter], packet: &[u8]) -> u32 {
        let (mut pc, mut a) = (0, 0_u32);
        loop {
            let step = &program[pc];
            pc += 1;
            match u32::from(step.code) {
                0x20 => {
                    let at = step.k as usize;
                    let Some(word) = packet.get(at..at + 4) else { return 0 };
                    a = u32::from_be_bytes(word.try_into().expect("four bytes"));
                }
                0x54 => a &= step.k,
                0x74 => a >>= step.k,
                0x15 => pc += usize::from(if a == step.k { step.jt } else { step.jf }),
                0x06 => return step.k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn the_program_maps_the_slot_to_its_place() {
        let slots: Vec<u8> = (1..=254).rev().collect();
        let program = steering_program(&slots);
        for slot in 0..=255_u8 {
            let packet = [0x64, 0, 0xff, 0xff, 0xff, slot, 0xff, 0x12, 0x80];
            let expected = slots.iter().position(|other| *other == slot);
            assert_eq!(run(&program, &packet), expected.map_or(u32::MAX, |index| index as u32));
        }
        assert_eq!(run(&program, &[0; 7]), 0);
    }

    #[test]
    fn nothing_comes_to_a_member_that_leaves() {
        let slots = [40, 50, 60];
        for leaving in 0..3 {
            let program = program_without(&slots, leaving);
            for (slot, place) in [(40, Some(0)), (50, Some(1)), (60, Some(2)), (70, None)] {
                let packet = [0x64, 0, 0xff, 0xff, 0xff, slot, 0xff, 0x12, 0x80];
                let heir = if leaving == 0 { 1 } else { 0 };
                let expected = place.filter(|place| *place != leaving).unwrap_or(heir);
                assert_eq!(
                    run(&program, &packet),
                    expected as u32,
                    "slot {slot}, {leaving} leaves"
                );
            }
        }
    }
}
