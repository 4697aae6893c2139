//! Programs that a test runs: their output kept, a limit on their time, gone with the test.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;

/// How often a program is asked whether it has ended or printed something.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What went wrong with a program.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// It could not be started.
    #[error("cannot start {label}: {source}")]
    Start {
        /// What the test calls the program.
        label: String,
        /// The reason.
        source: io::Error,
    },
    /// Waiting for it, or sending it a signal, failed.
    #[error("{label}: {source}")]
    Os {
        /// What the test calls the program.
        label: String,
        /// The reason.
        source: io::Error,
    },
    /// It did not end in its time, and was killed.
    #[error("{label} did not end within {limit:?}; it printed:\n{output}")]
    TimedOut {
        /// What the test calls the program.
        label: String,
        /// The time it had.
        limit: Duration,
        /// Its standard output and standard error.
        output: String,
    },
    /// It ended, or its time did, before it printed what was awaited.
    #[error("{label} did not print {text:?} within {limit:?}; it printed:\n{output}")]
    Silent {
        /// What the test calls the program.
        label: String,
        /// The text that was awaited.
        text: String,
        /// The time it had.
        limit: Duration,
        /// Its standard output and standard error.
        output: String,
    },
    /// It failed where it should not.
    #[error("{0}")]
    Failed(Finished),
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// What the test calls the program.
    pub label: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// How long it ran.
    pub elapsed: Duration,
}

impl Finished {
    /// This, when the program succeeded.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Failed`], with all it printed, otherwise.
    pub fn success(self) -> Result<Self, ProcessError> {
        if self.status.success() { Ok(self) } else { Err(ProcessError::Failed(self)) }
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, status, stdout, stderr, elapsed } = self;
        write!(f, "{label}: {status} after {elapsed:?}\n{stdout}{stderr}")
    }
}

/// A program that runs. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    label: String,
    child: Child,
    started: Instant,
    stdout: Output,
    stderr: Output,
}

/// Starts a program, also one that the test has just written: a child that another thread forked
/// meanwhile has the file open for writing until it runs a program of its own (ETXTBSY).
fn spawn(command: &mut Command) -> io::Result<Child> {
    for _ in 0..100 {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(10));
            }
            started => return started,
        }
    }
    command.spawn()
}

impl Running {
    /// Starts `command`; `label` names it in errors.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Start`].
    pub fn start(label: &str, command: &mut Command) -> Result<Self, ProcessError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            spawn(command).map_err(|source| ProcessError::Start { label: label.into(), source })?;
        let stdout = Output::collect(child.stdout.take());
        let stderr = Output::collect(child.stderr.take());
        Ok(Self { label: label.into(), child, started: Instant::now(), stdout, stderr })
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program has ended.
    ///
    /// # Errors
    ///
    /// [`ProcessError::TimedOut`] when it still runs after `limit`: it is killed then.
    pub fn wait(mut self, limit: Duration) -> Result<Finished, ProcessError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().map_err(|e| self.os_error(e))? {
                return Ok(Finished {
                    label: self.label.clone(),
                    status,
                    elapsed: self.started.elapsed(),
                    stdout: self.stdout.finish(),
                    stderr: self.stderr.finish(),
                });
            }
            if Instant::now() >= deadline {
                let output = self.printed();
                return Err(ProcessError::TimedOut { label: self.label.clone(), limit, output });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the program has printed `text`, on either stream.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Silent`] when it ends without, or does not within `limit`.
    pub fn wait_for_text(&mut self, text: &str, limit: Duration) -> Result<(), ProcessError> {
        let deadline = Instant::now() + limit;
        loop {
            // The order matters: what a program printed before it ended must be seen.
            let over = self.has_ended()? || Instant::now() >= deadline;
            if over {
                self.stdout.settle();
                self.stderr.settle();
            }
            if self.stdout.text().contains(text) || self.stderr.text().contains(text) {
                return Ok(());
            }
            if over {
                return Err(ProcessError::Silent {
                    label: self.label.clone(),
                    text: text.into(),
                    limit,
                    output: self.printed(),
                });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Asks the program to end as Ctrl-C does. The signal goes to this one process.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Os`].
    pub fn interrupt(&self) -> Result<(), ProcessError> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| self.os_error(io::ErrorKind::InvalidInput.into()))?;
        kill_process(id, Signal::INT).map_err(|error| self.os_error(error.into()))
    }

    /// Whether the program has ended.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Os`].
    pub fn has_ended(&mut self) -> Result<bool, ProcessError> {
        let status = self.child.try_wait();
        status.map(|status| status.is_some()).map_err(|error| self.os_error(error))
    }

    /// What the program has printed so far, on both streams.
    pub fn printed(&self) -> String {
        format!("{}{}", self.stdout.text(), self.stderr.text())
    }

    /// Waits until the program has printed so many whole lines on its standard output, and gives
    /// all that it has printed there.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Silent`] when it ends without, or does not within `limit`.
    pub fn wait_for_lines(
        &mut self,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<String>, ProcessError> {
        let deadline = Instant::now() + limit;
        loop {
            let over = self.has_ended()? || Instant::now() >= deadline;
            if over {
                self.stdout.settle();
            }
            let text = self.stdout.text();
            let whole = text.matches('\n').count();
            if whole >= count {
                return Ok(text.lines().take(whole).map(str::to_owned).collect());
            }
            if over {
                let (label, output) = (self.label.clone(), self.printed());
                return Err(ProcessError::Silent {
                    label,
                    text: format!("{count} lines"),
                    limit,
                    output,
                });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn os_error(&self, source: io::Error) -> ProcessError {
        ProcessError::Os { label: self.label.clone(), source }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It fails only when the program has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end.
///
/// # Errors
///
/// As [`Running::start`] and [`Running::wait`]; a program that fails is no error here.
pub fn run(label: &str, command: &mut Command, limit: Duration) -> Result<Finished, ProcessError> {
    Running::start(label, command)?.wait(limit)
}

/// Whether there is a program of this name to run.
pub fn is_installed(program: impl AsRef<OsStr>) -> bool {
    // Root's programs are often outside of the path of other users.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.into_iter().any(|folder| folder.join(program.as_ref()).is_file())
}

/// What a stream has given so far, gathered by a thread.
#[derive(Debug)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Output {
    fn collect(stream: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let thread = stream.map(|mut stream| {
            let bytes = Arc::clone(&bytes);
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                // An error ends the stream just as its end does: the writer is gone.
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    lock(&bytes).extend_from_slice(&buffer[..count]);
                }
            })
        });
        Self { bytes, thread }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.bytes)).into_owned()
    }

    /// Gives the gathering thread of a program that has ended the time to see its last words.
    fn settle(&self) {
        let deadline = Instant::now() + Duration::from_millis(200);
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn finish(&mut self) -> String {
        // A child of the program may hold the stream open, so the thread is not joined for sure.
        self.settle();
        self.text()
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_are_kept() {
        let finished = run("sh", &mut shell("echo out; echo err >&2; exit 3"), LIMIT).unwrap();
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(finished.status.code(), Some(3));
        let error = finished.success().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("err"), "{error}");
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_its_output_told() {
        let start = Instant::now();
        let running = Running::start("hang", &mut shell("echo before; exec sleep 60")).unwrap();
        let id = running.child.id();
        let error = running.wait(Duration::from_millis(300)).unwrap_err();
        assert!(matches!(&error, ProcessError::TimedOut { output, .. } if output == "before\n"));
        assert!(start.elapsed() < LIMIT);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn text_is_awaited_and_its_absence_told() {
        let mut running = Running::start("sh", &mut shell("echo ready; exec sleep 60")).unwrap();
        running.wait_for_text("ready", LIMIT).unwrap();
        running.interrupt().unwrap();
        let finished = running.wait(LIMIT).unwrap();
        assert!(!finished.status.success());

        let mut running = Running::start("sh", &mut shell("echo other")).unwrap();
        let error = running.wait_for_text("ready", LIMIT).unwrap_err();
        assert!(matches!(error, ProcessError::Silent { output, .. } if output == "other\n"));
    }

    #[test]
    fn programs_are_looked_up() {
        assert!(is_installed("sh"));
        assert!(!is_installed("urxe-no-such-program"));
    }
}
