//! UDP port 4791 for tests: the processes of one user have it on an address at a time.

use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{ModifyError, OpenLinkError};

use super::error::PingpongError;
use super::exchange::ExchangeError;

/// How long another user may keep the port: with tests as well.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does `work` again for as long as another user has the port.
pub(super) fn retried<T>(
    mut work: impl FnMut() -> Result<T, PingpongError>,
) -> Result<T, PingpongError> {
    let start = Instant::now();
    loop {
        match work() {
            Err(error) if is_port_taken(&error) && start.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(100));
            }
            result => return result,
        }
    }
}

/// Whether the port is another user's, or this end heard that the other end found it so.
fn is_port_taken(error: &PingpongError) -> bool {
    matches!(
        error,
        PingpongError::Modify(ModifyError::Link(OpenLinkError::Udp(_)))
            | PingpongError::Exchange(ExchangeError::Closed { .. })
    )
}
