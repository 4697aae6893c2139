//! Following the host, for all devices and listeners of the process.

use std::io;
use std::sync::Arc;
use std::thread::Builder;

use gid_table::InterfaceInfo;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rxe_core::cq::Notify;
use rxe_net::host::{Following, follow};
use rxe_net::runtime::EventFd;

use crate::manager::host_changed;

/// A thread that is told of each change of the host's interfaces while this lives, which is as long
/// as the process does.
///
/// Contexts follow the host too, and before it: they were told first. What is to be done here opens
/// devices, which the thread that follows must not.
#[derive(Debug)]
pub(crate) struct Watch {
    _following: Following,
}

/// What the thread that follows leaves for ours.
struct Left {
    wake: EventFd,
    /// The interfaces, if they have changed since.
    interfaces: Mutex<Option<Vec<InterfaceInfo>>>,
}

impl Watch {
    /// Starts it.
    pub(crate) fn start() -> io::Result<Self> {
        let left = Arc::new(Left { wake: EventFd::new()?, interfaces: Mutex::default() });
        let of_thread = left.clone();
        Builder::new().name("cm host".to_owned()).spawn(move || run(&of_thread))?;
        let following = follow(move |interfaces| {
            *left.interfaces.lock() = Some(interfaces.to_vec());
            left.wake.notify();
        })
        .map_err(io::Error::other)?;
        Ok(Self { _following: following })
    }
}

fn run(left: &Left) {
    loop {
        let mut fds = [PollFd::new(&left.wake, PollFlags::IN)];
        if let Err(error) = poll(&mut fds, None)
            && error != rustix::io::Errno::INTR
        {
            return tracing::error!(target: "rxe::cm", %error, "the host is not followed any more");
        }
        while left.wake.take() {}
        let interfaces = left.interfaces.lock().take();
        if let Some(interfaces) = interfaces {
            host_changed(&interfaces);
        }
    }
}
