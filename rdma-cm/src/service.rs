//! Services that this process serves on addresses which it may share with others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ibverbs_api::{RegisterServiceError, ServiceId, ServiceRegistration};
use parking_lot::Mutex;

use crate::device::CmDevice;
use crate::error::BindError;

/// How long a service that was given up may look taken at most: a thread may still look into its
/// inbox.
const LINGERS: Duration = Duration::from_millis(200);
/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(1);

type Key = (ServiceId, IpAddr);

/// When this process has given up which service.
static GIVEN_UP: Mutex<Option<HashMap<Key, Instant>>> = Mutex::new(None);

/// A service on one address: its requests come to this process, whichever of those on the address
/// gets them. So two do not serve one address without knowing.
#[derive(Debug)]
pub(crate) struct Service {
    key: Key,
    /// `None` while it is dropped.
    registration: Option<ServiceRegistration>,
}

impl Service {
    /// Enters a service; one that this process itself has just given up is waited for.
    pub(crate) fn register(
        device: &CmDevice,
        service: ServiceId,
        address: IpAddr,
    ) -> Result<Self, BindError> {
        let key = (service, address);
        loop {
            match device.gsi().qp().register_service(service, Some(address)) {
                Ok(registration) => return Ok(Self { key, registration: Some(registration) }),
                Err(RegisterServiceError::Taken { .. }) if lingers(key) => sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The address.
    pub(crate) const fn address(&self) -> IpAddr {
        self.key.1
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.registration = None;
        let now = Instant::now();
        let mut given_up = GIVEN_UP.lock();
        let given_up = given_up.get_or_insert_default();
        given_up.retain(|_, when| now.duration_since(*when) < LINGERS);
        given_up.insert(self.key, now);
    }
}

fn lingers(key: Key) -> bool {
    let given_up = GIVEN_UP.lock();
    let when = given_up.as_ref().and_then(|given_up| given_up.get(&key));
    when.is_some_and(|when| when.elapsed() < LINGERS)
}
