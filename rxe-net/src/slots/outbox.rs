//! Letters that wait until their readers have room for them.
//!
//! An inbox holds ten letters (`net.unix.max_dgram_qlen`). What is passed on of a queue pair's
//! traffic may be lost beyond that, since retransmission repairs it within milliseconds. Messages of
//! connection management come again after seconds only, so they wait here instead.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rxe_core::path::Path;

use super::inbox::Line;
use super::letter::PacketLetter;

/// Letters for one name at most; each has room for 146 messages of connection management.
const LETTERS_MAX: usize = 8;
/// Names that have letters waiting at most.
const NAMES_MAX: usize = 64;

/// The letters that wait.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Vec<Waiting>,
}

/// What waits for one name.
#[derive(Debug)]
struct Waiting {
    to: SocketAddrUnix,
    line: Arc<Line>,
    /// In their order, none of them empty.
    letters: VecDeque<PacketLetter>,
}

impl Outbox {
    /// Whether something waits for a name: what is sent there now would arrive before it.
    pub(super) fn has_any_for(&self, to: &SocketAddrUnix) -> bool {
        self.waiting.iter().any(|waiting| waiting.to == *to)
    }

    /// Keeps a packet for a name; whether it is the first one, for which [`Self::lines`] has a new
    /// line.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` when nobody has the name, `ENOBUFS` when as much waits as may; otherwise that
    /// of the system, which has no descriptor left.
    pub(super) fn keep(
        &mut self,
        to: &SocketAddrUnix,
        path: &Path,
        bytes: &[u8],
    ) -> io::Result<bool> {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.to == *to) {
            return waiting.add(path, bytes).map(|()| false);
        }
        if self.waiting.len() >= NAMES_MAX {
            return Err(Errno::NOBUFS.into());
        }
        let line = Arc::new(Line::connect(to)?);
        let mut waiting = Waiting { to: to.clone(), line, letters: VecDeque::new() };
        waiting.add(path, bytes)?;
        self.waiting.push(waiting);
        Ok(true)
    }

    /// The lines that are waited for: each is writable when its reader has room.
    pub(super) fn lines(&self) -> Vec<Arc<Line>> {
        self.waiting.iter().map(|waiting| waiting.line.clone()).collect()
    }

    /// Sends what there is room for, and drops what nobody reads any more.
    pub(super) fn send(&mut self) {
        self.waiting.retain_mut(|waiting| {
            if let Err(error) = waiting.send() {
                let count: usize = waiting.letters.iter().map(PacketLetter::count).sum();
                let to = &waiting.to;
                tracing::debug!(target: "rxe::net", ?to, %error, count, "packets to QP1 are lost");
                return false;
            }
            !waiting.letters.is_empty()
        });
    }
}

impl Waiting {
    fn add(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.letters.back_mut().is_some_and(|last| last.push(path, bytes)) {
            return Ok(());
        }
        let mut letter = PacketLetter::default();
        if self.letters.len() >= LETTERS_MAX || !letter.push(path, bytes) {
            return Err(Errno::NOBUFS.into());
        }
        self.letters.push_back(letter);
        Ok(())
    }

    /// Sends until there is no more room.
    fn send(&mut self) -> io::Result<()> {
        while let Some(first) = self.letters.front() {
            match self.line.send(first.bytes()) {
                Ok(()) => drop(self.letters.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gid_table::Gid;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::super::inbox::{Inbox, Received};
    use super::super::letter::{Letter, MAX_LETTER};
    use super::*;

    fn name(what: &str) -> SocketAddrUnix {
        let name = format!("urxe/test/outbox/{what}/{}", std::process::id());
        SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
    }

    fn keep(outbox: &mut Outbox, to: &SocketAddrUnix, number: u32) -> io::Result<bool> {
        let path = Path::new(Gid::ZERO, Gid::ZERO);
        let mut bytes = [0; 284];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        outbox.keep(to, &path, &bytes)
    }

    /// The numbers in the next letter.
    fn read(inbox: &Inbox) -> Vec<u32> {
        let mut buffer = vec![0; MAX_LETTER + 1];
        match inbox.receive(&mut buffer).unwrap() {
            Received::Letter(bytes) => match Letter::read(bytes) {
                Some(Letter::Packets(packets)) => packets
                    .map(|(_, packet)| u32::from_ne_bytes(packet[..4].try_into().unwrap()))
                    .collect(),
                other => panic!("{other:?}"),
            },
            _ => Vec::new(),
        }
    }

    /// Whether a line is writable within a moment.
    fn has_room(outbox: &Outbox) -> bool {
        let lines = outbox.lines();
        let mut fds: Vec<_> =
            lines.iter().map(|line| PollFd::new(&**line, PollFlags::OUT)).collect();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).unwrap() > 0
    }

    #[test]
    fn what_finds_no_room_waits_for_it_in_its_order() {
        let to = name("order");
        let inbox = Inbox::bind(&to).unwrap();
        let other = Line::connect(&to).unwrap();
        let full = (0..100).position(|_| other.send(b"full").is_err()).expect("it has an end");
        let mut outbox = Outbox::default();
        assert!(!outbox.has_any_for(&to));
        for number in 0..500 {
            assert_eq!(keep(&mut outbox, &to, number).unwrap(), number == 0);
        }
        outbox.send();
        assert!(outbox.has_any_for(&to), "there was no room");
        assert!(!has_room(&outbox), "whoever waits for room would not sleep");
        let mut buffer = [0; 16];
        for _ in 0..full {
            assert_eq!(inbox.receive(&mut buffer).unwrap(), Received::Letter(b"full"));
        }
        assert!(has_room(&outbox), "whoever waits is woken");
        outbox.send();
        assert!(!outbox.has_any_for(&to) && outbox.lines().is_empty());
        let read: Vec<_> = (0..4).flat_map(|_| read(&inbox)).collect();
        assert_eq!(read, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn what_waits_has_a_bound_and_goes_with_its_reader() {
        let to = name("bound");
        let error = keep(&mut Outbox::default(), &to, 0).expect_err("nobody has the name");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let inbox = Inbox::bind(&to).unwrap();
        let other = Line::connect(&to).unwrap();
        while other.send(b"full").is_ok() {}
        let mut outbox = Outbox::default();
        let error = (0..1 << 16).find_map(|number| keep(&mut outbox, &to, number).err());
        let error = error.expect("there is a bound");
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
        assert_eq!(outbox.waiting[0].letters.len(), LETTERS_MAX);
        drop(inbox);
        assert!(has_room(&outbox), "whoever waits is woken");
        outbox.send();
        assert!(outbox.waiting.is_empty());
    }
}
