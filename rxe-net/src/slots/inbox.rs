//! The inbox of a slot: a datagram socket with an abstract name.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, recvmsg, send, sendto, socket_with,
};
use rustix::process::{geteuid, getuid};

use super::fork::Tracked;

/// A datagram socket with an abstract name. The name is free again when this is dropped.
///
/// It also sends: to other inboxes.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Declared before the descriptor, so that it is dropped before.
    _tracked: Tracked,
    socket: OwnedFd,
}

/// What came to an inbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received<'a> {
    /// A letter of a process of this user.
    Letter(&'a [u8]),
    /// Something of another user, or too long: it is dropped.
    Strange,
    /// Nothing more.
    Nothing,
}

impl Inbox {
    /// Takes a name.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` when somebody has it; otherwise that of the system call.
    pub(crate) fn bind(name: &SocketAddrUnix) -> io::Result<Self> {
        let socket = socket()?;
        // Before the name is there, so that nothing comes without credentials.
        set_socket_passcred(&socket, true)?;
        bind(&socket, name)?;
        Ok(Self { _tracked: Tracked::new(&socket), socket })
    }

    /// Sends a letter, without waiting.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` when nobody has the name, `EAGAIN` when the inbox there is full: it holds
    /// `net.unix.max_dgram_qlen` letters, 10 by default.
    pub(crate) fn send(&self, to: &SocketAddrUnix, letter: &[u8]) -> io::Result<()> {
        sendto(&self.socket, letter, SendFlags::DONTWAIT, to)?;
        Ok(())
    }

    /// Takes the next letter into `buffer`, without waiting.
    ///
    /// # Errors
    ///
    /// Those of the system that do not go away.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Received<'a>> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmCredentials(1))];
        // Descriptors that somebody sends along find no room: the kernel closes them.
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::DONTWAIT;
        let message = match recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Ok(message) => message,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                return Ok(Received::Nothing);
            }
            Err(error) => return Err(error.into()),
        };
        let is_whole = !message.flags.contains(rustix::net::ReturnFlags::TRUNC);
        let is_ours = control.drain().any(|part| match part {
            // The kernel tells the real user of whoever sent it; a set-user-id program has two.
            RecvAncillaryMessage::ScmCredentials(of) => of.uid == geteuid() || of.uid == getuid(),
            _ => false,
        });
        match buffer.get(..message.bytes) {
            Some(letter) if is_ours && is_whole => Ok(Received::Letter(letter)),
            _ => Ok(Received::Strange),
        }
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A way to one inbox. It is writable when there is room for a letter there, or nobody any more.
#[derive(Debug)]
pub(crate) struct Line {
    /// Declared before the descriptor, so that it is dropped before.
    _tracked: Tracked,
    socket: OwnedFd,
}

impl Line {
    /// One to the inbox of this name.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` when nobody has the name; otherwise that of the system call.
    pub(crate) fn connect(to: &SocketAddrUnix) -> io::Result<Self> {
        let socket = socket()?;
        connect(&socket, to)?;
        Ok(Self { _tracked: Tracked::new(&socket), socket })
    }

    /// Sends a letter, without waiting.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` when nobody reads there any more, `EAGAIN` when there is no room.
    pub(crate) fn send(&self, letter: &[u8]) -> io::Result<()> {
        send(&self.socket, letter, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Asks which names somebody has.
#[derive(Debug)]
pub(crate) struct NameProbe(OwnedFd);

impl NameProbe {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(socket()?))
    }

    /// Whether somebody has a name.
    pub(crate) fn is_taken(&self, name: &SocketAddrUnix) -> bool {
        connect(&self.0, name).is_ok()
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// "nobody", as most hosts number that user.
    const ANOTHER_USER: u32 = 65_534;

    /// Sends a text to an abstract name, as another user; false where nobody can become one.
    fn send_as_another_user(name: &str, text: &str) -> bool {
        let program = r#"use Socket; socket(S, AF_UNIX, SOCK_DGRAM, 0) || die $!;
            send(S, $ARGV[1], 0, pack_sockaddr_un("\0$ARGV[0]")) || die $!;"#;
        let mut perl = Command::new("perl");
        perl.args(["-e", program, name, text]).uid(ANOTHER_USER).current_dir("/");
        match perl.status() {
            Ok(status) => status.success(),
            Err(error) => {
                eprintln!("left out: only root can send as another user: {error}");
                false
            }
        }
    }

    #[test]
    fn letters_are_of_the_own_user_and_whole() {
        let name = format!("urxe-test/{}/inbox", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        let inbox = Inbox::bind(&address).expect("free");
        let mut buffer = [0; 8];
        inbox.send(&address, b"own").expect("sent");
        assert_eq!(inbox.receive(&mut buffer).expect("read"), Received::Letter(b"own"));
        inbox.send(&address, b"too long for it").expect("sent");
        assert_eq!(inbox.receive(&mut buffer).expect("read"), Received::Strange);
        if send_as_another_user(&name, "other") {
            assert_eq!(inbox.receive(&mut buffer).expect("read"), Received::Strange);
        }
        assert_eq!(inbox.receive(&mut buffer).expect("read"), Received::Nothing);
    }
}
