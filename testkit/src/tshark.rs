//! What tshark, a decoder that is not ours, reads in a capture.
//!
//! It does not check iCRCs; `urxe dump` does. Its guess that some payloads are RPC over RDMA is
//! switched off: with small payloads it is wrong.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Finished, ProcessError};

/// Long enough for some ten thousand packets on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A capture, read by tshark.
#[derive(Clone, Copy, Debug)]
pub struct Tshark<'a> {
    capture: &'a Path,
}

impl<'a> Tshark<'a> {
    /// Reads the capture in this file.
    pub const fn new(capture: &'a Path) -> Self {
        Self { capture }
    }

    /// The values of `fields` in every packet that the display filter `filter` selects (an empty
    /// filter selects all). A field that a packet lacks is an empty text.
    ///
    /// # Errors
    ///
    /// That tshark fails, or is not there.
    pub fn fields(&self, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>, ProcessError> {
        let mut command = self.command(filter);
        command.args(["-T", "fields"]);
        for field in fields {
            command.args(["-e", field]);
        }
        let finished = Self::run(&mut command)?;
        let split = |line: &str| line.split('\t').map(String::from).collect();
        Ok(finished.stdout.lines().map(split).collect())
    }

    /// How many packets the display filter selects; an empty filter selects all.
    ///
    /// # Errors
    ///
    /// As [`fields`](Self::fields).
    pub fn count(&self, filter: &str) -> Result<usize, ProcessError> {
        Ok(self.fields(filter, &["frame.number"])?.len())
    }

    /// One line for each packet that tshark finds malformed, as tshark shows it.
    ///
    /// # Errors
    ///
    /// As [`fields`](Self::fields).
    pub fn malformed(&self) -> Result<Vec<String>, ProcessError> {
        let finished = Self::run(&mut self.command("_ws.malformed || _ws.short"))?;
        Ok(finished.stdout.lines().map(String::from).collect())
    }

    /// Writes the packets that the display filter selects to `file`, a classic pcap file.
    ///
    /// # Errors
    ///
    /// As [`fields`](Self::fields).
    pub fn extract(&self, filter: &str, file: &Path) -> Result<(), ProcessError> {
        let mut command = self.command(filter);
        command.args(["-F", "pcap", "-w"]).arg(file);
        Self::run(&mut command).map(|_| ())
    }

    fn command(&self, filter: &str) -> Command {
        let mut command = Command::new("tshark");
        command.args(["--disable-protocol", "rpcordma", "-n", "-r"]).arg(self.capture);
        // Nobody's own preferences.
        command.env("WIRESHARK_CONFIG_DIR", env::temp_dir().join("urxe-no-such-folder"));
        if !filter.is_empty() {
            command.args(["-Y", filter]);
        }
        command
    }

    fn run(command: &mut Command) -> Result<Finished, ProcessError> {
        process::run("tshark", command, LIMIT)?.success()
    }
}
