//! `urxe run`, as a user would call it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::binary::urxe_binary;
use testkit::left_out::missing;
use testkit::process::{self, Finished, ProcessError, Running, is_installed};
use testkit::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);

/// `urxe run` with these arguments, not started yet.
pub fn urxe_run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(urxe_binary());
    command.arg("run").args(arguments);
    // What the caller of the tests has is not theirs to see.
    for variable in ["LD_LIBRARY_PATH", "LD_PRELOAD", "URXE_DEVICES", "URXE_PCAP", "URXE_FAULTS"] {
        command.env_remove(variable);
    }
    command
}

/// Runs `urxe run` with these arguments to its end.
///
/// # Errors
///
/// That it cannot be run, or does not end.
pub fn run_under<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<Finished, ProcessError> {
    process::run("urxe run", &mut urxe_run(arguments), LIMIT)
}

/// Starts `urxe run` with these arguments.
///
/// # Errors
///
/// That it cannot be run.
pub fn start_under<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<Running, ProcessError> {
    Running::start("urxe run", &mut urxe_run(arguments))
}

/// Compiles a C program in a folder; `None`, told, where there is no compiler.
///
/// # Errors
///
/// That the compiler fails.
///
/// # Panics
///
/// Under `CI=true`, when there is no compiler.
pub fn compile(
    folder: &Scratch,
    name: &str,
    source: &str,
    options: &[&str],
) -> Result<Option<PathBuf>, CompileError> {
    if !is_installed("cc") {
        missing("what is written in C: cc is not installed");
        return Ok(None);
    }
    let file = folder.file(&format!("{name}.c"));
    std::fs::write(&file, source)?;
    let program = folder.file(name);
    let mut cc = Command::new("cc");
    // Libraries behind what needs them.
    cc.arg("-o").args([program.as_path(), Path::new(&file)]).args(options);
    process::run("cc", &mut cc, LIMIT)?.success()?;
    Ok(Some(program))
}

/// Why a program was not compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The source cannot be written.
    #[error("cannot write the source: {0}")]
    Write(#[from] std::io::Error),
    /// The compiler failed.
    #[error(transparent)]
    Compiler(#[from] ProcessError),
}
