//! The sleep of a thread that waits for a completion event, and is woken by packets.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;

use ibverbs_api::{CompletionChannel, SOCKETS_MAX, Sleep, Sockets};

use crate::call::{Refused, last_errno};
use crate::signals::Handlers;

unsafe extern "C-unwind" {
    /// `ppoll(2)` of the C library, where a thread that waits ends when it is cancelled.
    #[link_name = "ppoll"]
    fn ppoll_or_end(
        fds: *mut libc::pollfd,
        count: c_ulong,
        timeout: *const libc::timespec,
        mask: *const c_void,
    ) -> c_int;
}

/// How a sleep has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slept {
    /// There are packets.
    BySocket,
    /// There is an event, or there was one.
    Told,
    /// It failed with this errno.
    Failed(c_int),
}

/// One sleep for an event.
///
/// It has nothing to drop, since a thread may end in it (`pthread_cancel(3)`). The sockets may be
/// closed while it sleeps on them, if the program closes the device meanwhile; the kernel keeps them
/// that long, and then only the channel's descriptor wakes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nap {
    /// `None` where the program does not sleep, or has no need to.
    sleep: Option<Sleep>,
    /// The channel's descriptor, and the sockets after it.
    fds: [libc::pollfd; 1 + SOCKETS_MAX],
    count: usize,
}

impl Default for Nap {
    fn default() -> Self {
        let nothing = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        Self { sleep: None, fds: [nothing; 1 + SOCKETS_MAX], count: 0 }
    }
}

impl Nap {
    /// Begins a sleep on the events of a channel, unless there is one, or the program does not want
    /// to wait (`O_NONBLOCK`). The descriptor of the channel.
    pub(crate) fn begin(&mut self, channel: &CompletionChannel) -> Result<c_int, Refused> {
        let fd = channel.as_fd().as_raw_fd();
        if channel.has_events() || !may_block(fd)? {
            return Ok(fd);
        }
        let mut sockets = Sockets::default();
        // Where it cannot be told what a signal is to do to it, the sleep is a read, as ever.
        if !Handlers::agree() {
            channel.leave_sockets();
            return Ok(fd);
        }
        self.sleep = Some(channel.begin_sleep(&mut sockets));
        let sockets = sockets.iter().map(|socket| socket.as_raw_fd());
        for (place, fd) in self.fds.iter_mut().zip([fd].into_iter().chain(sockets)) {
            place.fd = fd;
            self.count += 1;
        }
        Ok(fd)
    }

    /// Whether it was begun: then it is to be ended.
    pub(crate) fn has_begun(&self) -> bool {
        self.sleep.is_some()
    }

    /// Whether it is to sleep on sockets.
    pub(crate) fn has_sockets(&self) -> bool {
        self.count > 1
    }

    /// Sleeps on the channel's descriptor and on the sockets. The thread may be cancelled then.
    pub(crate) fn sleep(&mut self) -> Slept {
        let (fds, count) = (self.fds.as_mut_ptr(), self.count as c_ulong);
        // SAFETY: so many are there. It may unwind, and there is nothing to drop.
        if unsafe { ppoll_or_end(fds, count, ptr::null(), ptr::null()) } < 0 {
            return Slept::Failed(last_errno());
        }
        match self.fds[1..self.count].iter().any(|socket| socket.revents != 0) {
            true => Slept::BySocket,
            false => Slept::Told,
        }
    }

    /// Ends a sleep: whether there is an event now.
    pub(crate) fn end(&self, channel: &CompletionChannel, slept: Slept) -> Result<c_int, Refused> {
        let Some(sleep) = self.sleep else { return Ok(0) };
        let found = match slept {
            Slept::BySocket => Ok(channel.serve_sleep(sleep)),
            Slept::Told => Ok(true),
            // The read that it stands for would have gone on.
            Slept::Failed(libc::EINTR) if Handlers::now() != Handlers::Interrupt => Ok(false),
            Slept::Failed(errno) => Err(Refused::new(errno, "the sleep for an event has ended")),
        };
        channel.end_sleep(sleep);
        found.map(c_int::from)
    }
}

/// Whether a read of a descriptor waits.
fn may_block(fd: RawFd) -> Result<bool, Refused> {
    // SAFETY: it reads the flags of a descriptor, which the channel holds.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(Refused::os("the flags of a descriptor"));
    }
    Ok(flags & libc::O_NONBLOCK == 0)
}
