//! `urxe dump --json`, run on a capture.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testkit::binary::urxe_binary;
use testkit::process::{self, Finished, ProcessError};

const LIMIT: Duration = Duration::from_secs(120);

/// The closing summary of a dump.
#[derive(Clone, Debug)]
pub struct Dump {
    /// How the command ended.
    pub finished: Finished,
    summary: Value,
}

impl Dump {
    /// Dumps a capture.
    ///
    /// # Errors
    ///
    /// That the command cannot be run, or prints no summary.
    pub fn of(capture: &Path) -> Result<Self, ProcessError> {
        let mut command = Command::new(urxe_binary());
        command.args(["dump", "--json"]).arg(capture);
        let finished = process::run("urxe dump", &mut command, LIMIT)?;
        let last = finished.stdout.lines().last().unwrap_or_default();
        match serde_json::from_str(last) {
            Ok(summary) => Ok(Self { finished, summary }),
            Err(_) => Err(ProcessError::Failed(finished)),
        }
    }

    /// A count of the summary, by its name there.
    ///
    /// # Panics
    ///
    /// When the summary has no such count.
    pub fn count(&self, name: &str) -> u64 {
        match self.summary[name].as_u64() {
            Some(count) => count,
            None => panic!("the summary has no {name}: {}", self.summary),
        }
    }
}
