//! One network namespace.

use std::ffi::OsStr;
use std::process::{self as own_process, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, path::Path};

use serde_json::Value;

use super::NetnsError;
use crate::process::{self, Finished, ProcessError};

/// What the names begin with. The id of the process that made it follows.
const PREFIX: &str = "urxe-test-";
/// For the small tools that set things up.
const TOOL_LIMIT: Duration = Duration::from_secs(30);
/// Where `ip netns` keeps the names.
const NAMES: &str = "/run/netns";
/// The table of our packet filter.
const TABLE: &str = "urxe_test";

/// A network namespace, deleted on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace, with its loopback interface up. `role` is part of its name.
    ///
    /// # Errors
    ///
    /// That `ip netns add` fails, mostly because this user may not.
    pub fn new(role: &str) -> Result<Self, NetnsError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{role}", own_process::id());
        let names = Path::new(NAMES).join(&name);
        if names.exists() {
            // A process of the same id was killed: no other can have made it.
            tool("ip", ["netns", "delete", &name])?;
        }
        tool("ip", ["netns", "add", &name])?;
        let namespace = Self { name };
        namespace.tool("ip", ["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs in this namespace, and is killed when the thread that started it ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name, "setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program);
        command
    }

    /// Runs a tool in this namespace to its end.
    ///
    /// # Errors
    ///
    /// That it cannot be run, fails or hangs.
    pub fn tool<A: AsRef<OsStr>>(
        &self,
        program: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Finished, NetnsError> {
        let mut command = self.command(program);
        command.args(arguments);
        Ok(process::run(program, &mut command, TOOL_LIMIT)?.success()?)
    }

    /// Drops, from now on, this share of the RoCE packets that arrive here, by chance: 1 to 100
    /// percent.
    ///
    /// The filter sees what an interface hands over: with segmentation offload on at the sender, a
    /// whole batch is one packet, and lost as one.
    ///
    /// # Errors
    ///
    /// That nft fails.
    pub fn drop_arriving(&self, percent: u8) -> Result<(), NetnsError> {
        let chance = format!("numgen random mod 100 >= {}", 100 - percent.clamp(1, 100));
        self.tool("nft", ["add", "table", "inet", TABLE])?;
        self.tool(
            "nft",
            ["add chain inet urxe_test input { type filter hook input priority 0 ; }"],
        )?;
        let rule = format!("add rule inet {TABLE} input udp dport 4791 {chance} counter drop");
        self.tool("nft", [rule])?;
        Ok(())
    }

    /// How many packets [`drop_arriving`](Self::drop_arriving) has dropped.
    ///
    /// # Errors
    ///
    /// That nft fails, or prints no counter.
    pub fn dropped(&self) -> Result<u64, NetnsError> {
        let listed = self.tool("nft", ["-j", "list", "table", "inet", TABLE])?;
        let rules: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        let counter = rules["nftables"].as_array().into_iter().flatten().find_map(|object| {
            let parts = object["rule"]["expr"].as_array()?;
            parts.iter().find_map(|part| part["counter"]["packets"].as_u64())
        });
        counter.ok_or(NetnsError::Output {
            tool: "nft",
            expected: "packet counter",
            output: listed.stdout,
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = tool("ip", ["netns", "delete", &self.name]) {
            // The next run tries again.
            eprintln!("cannot delete a namespace: {error}");
        }
    }
}

fn tool<'a>(
    program: &str,
    arguments: impl IntoIterator<Item = &'a str>,
) -> Result<Finished, ProcessError> {
    let mut command = Command::new(program);
    command.args(arguments);
    process::run(program, &mut command, TOOL_LIMIT)?.success()
}

/// Deletes the namespaces whose process is gone.
fn remove_leftovers() -> Result<(), NetnsError> {
    static DONE: Mutex<bool> = Mutex::new(false);
    // One thread does it, once; the others wait for it.
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if *done {
        return Ok(());
    }
    *done = true;
    // Without the folder, there has never been a namespace.
    let Ok(entries) = fs::read_dir(NAMES) else { return Ok(()) };
    for entry in entries {
        let entry = entry.map_err(|source| NetnsError::Os { what: "read /run/netns", source })?;
        if let Some(name) = entry.file_name().to_str().filter(|name| is_leftover(name)) {
            // Another test program may do the same at this time, and be first.
            if let Err(error) = tool("ip", ["netns", "delete", name])
                && Path::new(NAMES).join(name).exists()
            {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Whether a namespace of this name was made by a process that is gone.
fn is_leftover(name: &str) -> bool {
    let id = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
    let id = id.and_then(|id| id.parse::<u32>().ok());
    id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::with_namespaces;

    #[test]
    fn leftovers_are_told_by_their_name() {
        assert!(is_leftover("urxe-test-4294967295-0-a"));
        assert!(!is_leftover(&format!("urxe-test-{}-0-a", own_process::id())));
        assert!(!is_leftover("urxe-test-x-0-a"));
        assert!(!is_leftover("somebody-else-1-0"));
    }

    #[test]
    fn a_namespace_is_gone_after_a_panic() {
        with_namespaces("netns::namespace::tests::a_namespace_is_gone_after_a_panic", || {
            let thread = std::thread::spawn(|| {
                let namespace = Namespace::new("panic").unwrap();
                assert!(Path::new(NAMES).join(namespace.name()).exists());
                std::panic::panic_any(namespace.name().to_owned());
            });
            let name = *thread.join().unwrap_err().downcast::<String>().unwrap();
            assert!(!Path::new(NAMES).join(name).exists());
        });
    }

    #[test]
    fn dropped_packets_are_counted() {
        with_namespaces("netns::namespace::tests::dropped_packets_are_counted", || {
            let namespace = Namespace::new("loss").unwrap();
            namespace.drop_arriving(100).unwrap();
            assert_eq!(namespace.dropped().unwrap(), 0);
            namespace.tool("bash", ["-c", "echo x > /dev/udp/127.0.0.1/4791"]).unwrap();
            assert_eq!(namespace.dropped().unwrap(), 1);
            namespace.tool("bash", ["-c", "echo x > /dev/udp/127.0.0.1/4792"]).unwrap();
            assert_eq!(namespace.dropped().unwrap(), 1);
        });
    }
}
