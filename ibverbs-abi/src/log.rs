//! What the layers tell, on standard error, as `URXE_LOG` asks for it.

use std::io::{self, IsTerminal, Write};
use std::sync::Once;

use tracing_subscriber::EnvFilter;

/// Names what is told, by target and level: `warn`, `debug`, `rxe::abi=trace`.
const VARIABLE: &str = "URXE_LOG";

/// Starts the log, once: errors alone, or what the environment asks for.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let asked = std::env::var(VARIABLE).unwrap_or_else(|_| "error".to_owned());
        let filter = EnvFilter::try_new(&asked);
        let (filter, fault) = match filter {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new("error"), Some(error)),
        };
        let started = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| StandardError)
            .with_ansi(io::stderr().is_terminal())
            // Where standard error takes nothing, there is nobody to tell that to: an attempt to do
            // so there would end the thread.
            .log_internal_errors(false)
            .try_init();
        // Only this library's code shares its log, so nobody can have been there before, but for
        // tests, which may have one of their own.
        if let (Ok(()), Some(error)) = (started, fault) {
            tracing::error!(target: "rxe::abi", "{VARIABLE}={asked}: {error}");
        }
    });
}

/// Standard error. Each write is a system call, not the C library's function, which is a cancellation
/// point (src/call.rs).
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let (fd, from, len) = (libc::STDERR_FILENO, text.as_ptr(), text.len());
        // SAFETY: so many bytes are there, and they are only read.
        let written = unsafe { libc::syscall(libc::SYS_write, fd, from, len) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
