//! Services: which process gets the requests of connection management for one.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;
use rxe_wire::mad::cm::ServiceId;
use thiserror::Error;

use super::fork::{Generation, PerProcess};
use super::inbox::Inbox;
use super::name;
use super::steward::{self, Steward};
use crate::host::os_errno;

/// Why a service cannot be registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegisterServiceError {
    /// Somebody on this host, of any user, serves it on the same address.
    #[error(
        "service {id} is served on {} already: end that, or take another number or address",
        .address.map_or("all addresses".to_owned(), |address| address.to_string())
    )]
    Taken {
        /// The service.
        id: ServiceId,
        /// The address; `None` for all.
        address: Option<IpAddr>,
    },
    /// The device is lost, or it is that of the process that this one was forked from.
    #[error("the device is lost, or was opened before this process was forked: open it here")]
    DeviceLost,
    /// The system refused a socket.
    #[error("cannot register a service: {0}")]
    Os(#[from] io::Error),
}

impl RegisterServiceError {
    /// The errno that `rdma_listen` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Taken { .. } => libc::EADDRINUSE,
            Self::DeviceLost => libc::EIO,
            Self::Os(error) => os_errno(error),
        }
    }
}

/// A service and the address it is served on; `None` for all.
type Key = (ServiceId, Option<IpAddr>);

/// The services of this process, each with the slot of the QP1 that gets its requests.
static OWN: PerProcess<RwLock<HashMap<Key, u8>>> = PerProcess::new();

/// A service that this process serves, until it is dropped.
///
/// Requests (REQ, SIDR_REQ) for it that come to the address go to the QP1 of one shard, whichever
/// process's socket they came to.
#[derive(Debug)]
pub struct ServiceRegistration {
    key: Key,
    inbox: Arc<Inbox>,
    steward: Arc<Steward>,
    born: Generation,
}

impl ServiceRegistration {
    /// Registers a service for the QP1 of the shard `slot`.
    pub(crate) fn new(key: Key, slot: u8) -> Result<Self, RegisterServiceError> {
        let (id, address) = key;
        let steward = steward::of_this_process()?;
        let inbox = Inbox::bind(&name::of_service(id, address)?).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EADDRINUSE) => RegisterServiceError::Taken { id, address },
                _ => error.into(),
            }
        })?;
        let inbox = Arc::new(inbox);
        OWN.get().write().insert(key, slot);
        steward.serve(slot, inbox.clone());
        Ok(Self { key, inbox, steward, born: Generation::now() })
    }

    /// The service.
    pub const fn id(&self) -> ServiceId {
        self.key.0
    }

    /// The address it is served on; `None` for all.
    pub const fn address(&self) -> Option<IpAddr> {
        self.key.1
    }
}

impl Drop for ServiceRegistration {
    fn drop(&mut self) {
        if self.born.is_now() {
            OWN.get().write().remove(&self.key);
            self.steward.dismiss(&self.inbox);
        }
    }
}

/// The slot of this process that serves a service on an address, or on all.
pub(crate) fn own_slot(id: ServiceId, address: Option<IpAddr>) -> Option<u8> {
    OWN.get().read().get(&(id, address)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_registered_once_for_each_address_and_free_again() {
        // A number of this test run's own: others may run on this host.
        let id = ServiceId(0x7e57_0000_0000_0000 | u64::from(std::process::id()));
        let address: IpAddr = "127.0.0.1".parse().expect("an address");
        let one = ServiceRegistration::new((id, Some(address)), 9).expect("free");
        let error = ServiceRegistration::new((id, Some(address)), 8).expect_err("taken");
        assert!(matches!(error, RegisterServiceError::Taken { .. }), "{error}");
        assert_eq!(error.errno(), libc::EADDRINUSE);
        let all = ServiceRegistration::new((id, None), 7).expect("all addresses");
        assert_eq!((own_slot(id, Some(address)), own_slot(id, None)), (Some(9), Some(7)));
        drop(all);
        assert_eq!(own_slot(id, None), None);
        drop(one);
        // The steward may hold the inbox for a moment.
        let start = std::time::Instant::now();
        while let Err(error) = ServiceRegistration::new((id, Some(address)), 8) {
            assert!(start.elapsed().as_secs() < 10, "{error}");
            std::thread::yield_now();
        }
    }
}
