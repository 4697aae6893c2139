//! A socket to the kernel's tables of interfaces and addresses: rtnetlink(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

use super::message::{Message, Received, read, request};
use super::table::{HostTable, Progress, Reading};
use crate::slots::fork::Tracked;

/// Those of interfaces, IPv4 and IPv6 addresses (`RTMGRP_LINK`, `_IPV4_IFADDR`, `_IPV6_IFADDR` of
/// `<linux/rtnetlink.h>`).
const GROUPS: u32 = 0x1 | 0x10 | 0x100;
/// The kernel answers at once; a sandbox that does not is left after so long.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// How often a table is read that changes while it is.
const READINGS: u32 = 10;
/// More than the kernel puts into one buffer (32 KiB).
const BUFFER_LEN: usize = 1 << 16;

/// A socket of rtnetlink.
#[derive(Debug)]
pub(super) struct RouteSocket {
    /// Declared before the descriptor, so that it is dropped before.
    _tracked: Tracked,
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl RouteSocket {
    /// Opens a socket, which is told of changes if `follows`.
    ///
    /// # Errors
    ///
    /// Those of the system, mostly that a sandbox does not have such sockets.
    pub(super) fn open(follows: bool) -> io::Result<Self> {
        // No protocol means NETLINK_ROUTE, which is 0.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let tracked = Tracked::new(&fd);
        bind(&fd, &SocketAddrNetlink::new(0, if follows { GROUPS } else { 0 }))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIME))?;
        Ok(Self { _tracked: tracked, fd, buffer: vec![0; BUFFER_LEN], sequence: 0 })
    }

    /// The descriptor, to wait for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads all interfaces and addresses.
    ///
    /// # Errors
    ///
    /// Those of the system, and that the kernel's answer makes no sense.
    pub(super) fn read_table(&mut self) -> io::Result<HostTable> {
        for _ in 0..READINGS {
            if let Some(table) = self.try_read_table()? {
                return Ok(table);
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// As [`Self::read_table`]; `None` when something has changed while it was listed.
    fn try_read_table(&mut self) -> io::Result<Option<HostTable>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut reading = Reading::new(self.sequence);
        self.ask(&reading)?;
        loop {
            let all = match self.receive(RecvFlags::empty()) {
                Ok(all) => all,
                // More has changed meanwhile than the socket holds. The listing goes on, and has to
                // be heard to its end, before which the kernel takes no other request for one.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    reading.note_loss();
                    continue;
                }
                Err(error) => return Err(error),
            };
            for received in all {
                match reading.handle(received) {
                    Progress::Wait => {}
                    Progress::Ask(_) => self.ask(&reading)?,
                    Progress::Whole => return Ok(Some(reading.into_table())),
                    Progress::Again => return Ok(None),
                    Progress::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }

    fn ask(&mut self, reading: &Reading) -> io::Result<()> {
        let (listing, sequence) = reading.listing();
        self.sequence = sequence;
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &request(listing, sequence), SendFlags::empty(), &kernel)?;
        Ok(())
    }

    /// Asks for one thing, by the request that `make` gives for its number; the kernel answers
    /// before the request returns. `None` where there is no such thing.
    ///
    /// # Errors
    ///
    /// Those of the system; `WouldBlock` when the kernel has not answered.
    pub(super) fn ask_one(
        &mut self,
        make: impl FnOnce(u32) -> Vec<u8>,
    ) -> io::Result<Option<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = make(self.sequence);
        sendto(&self.fd, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        loop {
            // Answers to earlier requests may still wait, where one of them failed in between.
            let answers = self.receive(RecvFlags::DONTWAIT)?;
            let is_own = |received: &Received| received.sequence == self.sequence;
            if let Some(own) = answers.into_iter().find(is_own) {
                // An answer of its own says only that there is none.
                let message = Some(own.message);
                return Ok(message.filter(|m| !matches!(m, Message::Answer(_) | Message::Done)));
            }
        }
    }

    /// The messages that wait, without waiting for any.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is none; `ENOBUFS` when some were lost, so that all is to be read
    /// anew.
    pub(super) fn receive_waiting(&mut self) -> io::Result<Vec<Received>> {
        self.receive(RecvFlags::DONTWAIT)
    }

    fn receive(&mut self, flags: RecvFlags) -> io::Result<Vec<Received>> {
        loop {
            match recvfrom(&self.fd, &mut self.buffer[..], flags | RecvFlags::TRUNC) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                // Longer than the buffer: the rest is lost.
                Ok((_, len, _)) if len > self.buffer.len() => return Err(Errno::NOBUFS.into()),
                Ok((_, len, from)) => {
                    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    // Another process, one with privileges, may send here; it is not the kernel.
                    if from.is_none_or(|from| from.pid() == 0) {
                        return read(&self.buffer[..len]).map_err(io::Error::other);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::request_route;
    use super::*;

    #[test]
    fn an_answer_that_nobody_took_is_not_taken_for_the_next_one() {
        let mut socket = RouteSocket::open(false).expect("no sandbox");
        let kernel = SocketAddrNetlink::new(0, 0);
        let nowhere = request_route(Some(u32::MAX >> 1), [127, 0, 0, 1].into(), 77);
        sendto(&socket.fd, &nowhere, SendFlags::empty(), &kernel).expect("asked");
        let ask = |sequence| request_route(None, [127, 0, 0, 1].into(), sequence);
        for _ in 0..2 {
            let answer = socket.ask_one(ask);
            // In a namespace where lo is down there is no way there, which is an answer too.
            assert!(matches!(answer, Ok(None | Some(Message::Route(_)))), "{answer:?}");
        }
        let error = socket.receive(RecvFlags::DONTWAIT).expect_err("nothing is left");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
