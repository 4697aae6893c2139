//! Which socket of an address gets a packet, when several shards, of one process or of several of
//! the same user, receive on it.
//!
//! All shards bind UDP port 4791 of the address with `SO_REUSEPORT`; a classic BPF program picks
//! the socket by the slot, the top byte of the destination QPN (abi.md section 6). The kernel
//! knows the sockets of such a group by index: a new one is appended, and closing one moves the
//! *last* into its place, also when a process is killed. Any member may renew the program, and the
//! last one to do so is right.
//!
//! A socket alone needs no program. Where a process has an address for itself, its [`AddressGroup`]
//! knows the order of the sockets, and renews the program at each change. Otherwise nobody knows
//! it, and the process's steward finds it out by a survey: when a socket has joined or left, and
//! when packets came to wrong sockets, which is the sign that some process is gone. The program
//! takes probes to their index.
//!
//! Steering only saves work. The kernel looks at the first packet of a coalesced buffer alone,
//! and packets to QP 1 or to an unknown slot go to any member, by hash. So whoever receives looks
//! at the slot again and forwards what is not its own.
//!
//! A socket leaves the kernel's group when its last handle is closed. Whoever shares the handle to
//! wait on it must give it up no later than the link goes: until then the port stays taken, and
//! packets may be steered to a socket that nobody reads.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;

use super::probe::QPN_PREFIX;
use super::{holder, sys};
use crate::host::os_errno;
use crate::slots::fork::{Generation, PerProcess, Tracked};
use crate::slots::{detour, registry, steward};

/// The UDP port of RoCEv2 (`ROCE_V2_UDP_DPORT`).
pub const ROCE_PORT: u16 = 4791;

/// Why a shard cannot receive on an address.
#[derive(Debug, Error)]
pub enum BindError {
    /// Something that is not urxe holds the port.
    #[error(
        "UDP port {ROCE_PORT} on {address} is taken: is rdma_rxe loaded on this host? Unload it, \
         or give urxe another address. (A process on the packet link, URXE_LINK=packet, has its \
         addresses for itself too.)"
    )]
    PortTaken {
        /// The address.
        address: IpAddr,
    },
    /// Another user has the port: of urxe, or of something else for this very address.
    #[error(
        "user {user} has UDP port {ROCE_PORT} on {address}: processes of one user may share an \
         address; give this one another address of an interface (on lo any of 127.0.0.0/8 will do)"
    )]
    AddressInUse {
        /// The address.
        address: IpAddr,
        /// The effective user id of whoever made the socket.
        user: u32,
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
///
/// The lock is taken last: whoever has it calls nothing that takes another.
static GROUPS: PerProcess<Mutex<HashMap<SocketAddr, AddressGroup>>> = PerProcess::new();

/// The sockets of this process on one address.
#[derive(Debug, Default)]
struct AddressGroup {
    /// In the kernel's order, unless the group is mixed.
    members: Vec<Member>,
    /// Other processes may have been in the group when one of the members joined or left.
    is_mixed: bool,
}

#[derive(Debug)]
struct Member {
    slot: u8,
    /// Dropped before the socket.
    _tracked: Tracked,
    socket: Arc<OwnedFd>,
}

/// A shard's place in the group of an address. It leaves the group when this is dropped.
#[derive(Debug)]
pub(super) struct Membership {
    address: SocketAddr,
    slot: u8,
    has_left: bool,
    born: Generation,
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
        let mut groups = GROUPS.get().lock();
        if groups.get(&address).is_some_and(|group| group.place(slot).is_some()) {
            return Err(BindError::SlotTaken { address: ip, slot });
        }
        let socket = Arc::new(bind_receiver(address, prepare)?);
        let group = groups.entry(address).or_default();
        // Asked when the socket is there: who comes later is behind it, or sees it.
        let others = others_on(address, group.members.len() + 1);
        group.is_mixed |= others > 0;
        let tracked = Tracked::new(&socket);
        group.members.push(Member { slot, _tracked: tracked, socket: Arc::clone(&socket) });
        let steered = group.steer_first(others);
        let needs_survey = group.is_mixed;
        let membership = Self { address, slot, has_left: false, born: Generation::now() };
        drop(groups);
        if let Err(error) = steered {
            drop(socket);
            return Err(BindError::os(ip, "steer packets to shards")(error));
        }
        if needs_survey {
            steward::survey(address);
        }
        Ok((membership, socket))
    }

    /// Leaves the group, after `drain` has taken what has come to `socket`, the last handle.
    ///
    /// The program no longer names the socket by then, if the order is known. The lock is held
    /// throughout, so no two members leave at once: what the kernel steers by an index that is no
    /// longer right comes to one that is read, or will be drained.
    pub(super) fn leave(mut self, socket: Arc<OwnedFd>, drain: impl FnOnce(BorrowedFd<'_>)) {
        let mut groups = GROUPS.get().lock();
        let mut is_shared = false;
        if let Some(group) = groups.get_mut(&self.address) {
            is_shared = group.note_others(self.address);
            if let Err(error) = group.steer_past(self.slot) {
                warn_of_steering(self.address, &error);
            }
        }
        drain(socket.as_fd());
        drop(socket);
        let left = self.remove(&mut groups);
        drop(groups);
        self.tell(left, is_shared);
    }

    /// Closes the socket of this member, and renews the program, if the order is known.
    fn remove(&mut self, groups: &mut HashMap<SocketAddr, AddressGroup>) -> Left {
        if std::mem::replace(&mut self.has_left, true) || !self.born.is_now() {
            return Left::Nothing;
        }
        let Some(group) = groups.get_mut(&self.address) else { return Left::Nothing };
        let Some(index) = group.place(self.slot) else { return Left::Nothing };
        // This closes the socket, and does as the kernel: the last moves into the freed place.
        group.members.swap_remove(index);
        if group.members.is_empty() {
            groups.remove(&self.address);
            return Left::Nobody;
        }
        if group.is_mixed {
            return Left::Some;
        }
        if let Err(error) = group.steer() {
            // The old program steers some packets to wrong shards; they are forwarded.
            warn_of_steering(self.address, &error);
        }
        Left::Nothing
    }

    /// Sees to it that the order of those who stay is found out. Without the lock of the groups.
    fn tell(&self, left: Left, is_shared: bool) {
        match left {
            Left::Nothing => {}
            Left::Some => steward::survey(self.address),
            Left::Nobody if is_shared => tell_others(self.address, self.slot),
            Left::Nobody => {}
        }
    }
}

/// Who of this process is left in a group that a member has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// Nothing is to be done.
    Nothing,
    /// Others, whose order is not known.
    Some,
    /// Nobody.
    Nobody,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.has_left && self.born.is_now() {
            let mut groups = GROUPS.get().lock();
            let group = groups.get_mut(&self.address);
            let is_shared = group.is_some_and(|group| group.note_others(self.address));
            let left = self.remove(&mut groups);
            drop(groups);
            self.tell(left, is_shared);
        }
    }
}

/// Makes a receive socket and binds it.
fn bind_receiver(
    address: SocketAddr,
    prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> Result<OwnedFd, BindError> {
    let ip = address.ip();
    let socket = sys::udp_socket(ip).map_err(BindError::os(ip, "make a socket"))?;
    prepare(&socket).map_err(BindError::os(ip, "set the options of a receive socket"))?;
    sys::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
        .map_err(BindError::os(ip, "share the port among shards"))?;
    sys::bind(socket.as_fd(), address).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => match holder::other_user(address) {
            Some(user) => BindError::AddressInUse { address: ip, user },
            None => BindError::PortTaken { address: ip },
        },
        Some(libc::EADDRNOTAVAIL) => BindError::NotLocal { address: ip },
        _ => BindError::Os { address: ip, what: "bind the RoCE port", source: error },
    })?;
    Ok(socket)
}

/// How many sockets of other processes receive on the address too, where `own` are of this one.
fn others_on(address: SocketAddr, own: usize) -> usize {
    holder::sockets_on(address).map_or_else(
        |error| {
            tracing::debug!(target: "rxe::net", %address, %error, "looks for other processes");
            // Any of them may be there, and a survey tells.
            registry::foreign_slots().map_or(usize::MAX, |slots| slots.len())
        },
        |count| count.saturating_sub(own),
    )
}

/// Processes that are asked for a survey when the last socket of this one has left.
const ASKED_MAX: usize = 4;

/// Asks other processes to renew the program; were all of them deaf, packets that go astray would
/// tell them.
fn tell_others(address: SocketAddr, slot: u8) {
    let Some((_, inbox)) = registry::inbox_of(&[slot]) else { return };
    for slot in registry::foreign_slots().unwrap_or_default().into_iter().take(ASKED_MAX) {
        if let Err(error) = detour::ask_for_survey(&inbox, slot, address) {
            tracing::debug!(target: "rxe::net", slot, %error, "cannot ask for a survey");
        }
    }
}

fn warn_of_steering(address: SocketAddr, error: &io::Error) {
    tracing::warn!(target: "rxe::net", %address, %error, "cannot renew the steering program");
}

/// The addresses of this process with this IP address: one, or more of different scope.
pub(crate) fn addresses_of(ip: IpAddr) -> Vec<SocketAddr> {
    GROUPS.get().lock().keys().filter(|address| address.ip() == ip).copied().collect()
}

/// Whether this process receives on the address.
pub(crate) fn has(address: SocketAddr) -> bool {
    GROUPS.get().lock().contains_key(&address)
}

/// The slots of this process that receive on an address; `None` when it has none, or knows the
/// order of the group without a survey.
pub(crate) fn members_to_survey(address: SocketAddr) -> Option<Vec<u8>> {
    let groups = GROUPS.get().lock();
    let group = groups.get(&address)?;
    (group.is_mixed || others_on(address, group.members.len()) > 0).then(|| group.slots())
}

/// Gives the group of an address the program for an order that was found by a survey.
pub(crate) fn install(address: SocketAddr, order: &[Option<u8>]) {
    let groups = GROUPS.get().lock();
    let Some(group) = groups.get(&address) else { return };
    let places = order.iter().zip(0..).filter_map(|(slot, index)| Some(((*slot)?, index)));
    if let Err(error) = group.attach(&program(places, u32::MAX)) {
        warn_of_steering(address, &error);
    }
}

impl AddressGroup {
    /// Notes whether there are sockets of other processes in the group, and returns it.
    fn note_others(&mut self, address: SocketAddr) -> bool {
        let is_shared = others_on(address, self.members.len()) > 0;
        self.is_mixed |= is_shared;
        is_shared
    }

    /// The place of a slot among the members.
    fn place(&self, slot: u8) -> Option<usize> {
        self.members.iter().position(|member| member.slot == slot)
    }

    fn slots(&self) -> Vec<u8> {
        self.members.iter().map(|member| member.slot).collect()
    }

    /// Gives the group a program when a member has joined, and there are so many of other
    /// processes.
    fn steer_first(&self, others: usize) -> io::Result<()> {
        match (self.is_mixed, self.members.len(), others) {
            // Alone: it gets all there is, and each program would only take time.
            (false, 1, _) => Ok(()),
            (false, ..) => self.steer(),
            // The other one was alone. It came before, unless both came at once: the survey tells.
            // Until then nothing goes astray: what is passed on may be overtaken by what is not,
            // which an unreliable service takes for a loss.
            (true, 1, 1) => self.attach(&program_beside_one(&self.slots())),
            // There is one, which serves all others until the survey is done.
            (true, ..) => Ok(()),
        }
    }

    /// Gives the group the program for the order of the members, which is known.
    fn steer(&self) -> io::Result<()> {
        self.attach(&steering_program(&self.slots()))
    }

    /// Gives the group a program that leaves out one of several members, if the order is known.
    fn steer_past(&self, slot: u8) -> io::Result<()> {
        match self.place(slot) {
            Some(leaving) if self.members.len() > 1 && !self.is_mixed => {
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

/// The program that returns the index in `slots` of a packet's slot.
///
/// It sees the UDP payload from offset 0, that is BTH, whose bytes 5 to 7 are the destination
/// QPN. A probe goes to the index that it is for. For any other slot it returns an index beyond
/// the group: then the kernel takes its hash. A packet too short to have a slot goes to the first:
/// a load out of bounds returns 0.
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

/// The program for a socket, the slot of which is in `slots`, that has joined the only other one:
/// what is not for it is for that one, whatever its slot.
fn program_beside_one(slots: &[u8]) -> Vec<libc::sock_filter> {
    program(slots.iter().copied().zip(1..), 0)
}

/// The program that returns the index of a packet's slot, and `other` for any other slot.
fn program(places: impl Iterator<Item = (u8, u32)>, other: u32) -> Vec<libc::sock_filter> {
    let instruction =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 4);
    let and = |mask| instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask);
    let shift = |bits| instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, bits);
    // Equal: go on to the next; else skip so many.
    let equal = |k, skip| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, k);
    let finish = |index| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, index);
    let mut program = vec![load, and(0x00ff_ffff), shift(16)];
    for (slot, index) in places {
        program.extend([equal(u32::from(slot), 1), finish(index)]);
    }
    program.extend([
        // A probe: what is left is the index.
        equal(QPN_PREFIX >> 8, 7),
        load,
        and(0x00ff_ffff),
        shift(8),
        equal(QPN_PREFIX, 3),
        load,
        and(0xff),
    ]);
    program.push(instruction(libc::BPF_RET | libc::BPF_A, 0, 0, 0));
    program.push(finish(other));
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
                0x16 => return a,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn the_program_maps_the_slot_to_its_place() {
        let slots: Vec<u8> = (1..=254).rev().collect();
        let program = steering_program(&slots);
        for slot in 0..=255_u8 {
            let packet = [0x64, 0, 0xff, 0xff, 0xff, slot, 0xf0, 0x12, 0x80];
            let expected = slots.iter().position(|other| *other == slot);
            assert_eq!(run(&program, &packet), expected.map_or(u32::MAX, |index| index as u32));
        }
        assert_eq!(run(&program, &[0; 7]), 0);
    }

    #[test]
    fn beside_one_other_socket_all_goes_to_it_but_what_has_the_own_slot() {
        let program = program_beside_one(&[9]);
        for slot in 0..=255_u8 {
            let packet = [0x64, 0, 0xff, 0xff, 0xff, slot, 0xf0, 0x12, 0x80];
            assert_eq!(run(&program, &packet), u32::from(slot == 9));
        }
    }

    #[test]
    fn a_probe_goes_to_the_index_that_it_is_for() {
        let steering = steering_program(&[9, 7]);
        for program in [steering, program_beside_one(&[9]), program_without(&[1, 2], 0)] {
            for index in 0..=255_u8 {
                let packet = [0xff, 0, 0xff, 0xff, 0, 0xff, 0xff, index, 0];
                assert_eq!(run(&program, &packet), u32::from(index));
            }
        }
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
