//! Whether and how a test may make network namespaces.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::namespace::Namespace;
use crate::left_out::missing;
use crate::process::{self, Finished, ProcessError};

/// Set in the copy of a test that runs in a user namespace.
const INSIDE_VARIABLE: &str = "URXE_TESTKIT_IN_USER_NAMESPACE";
/// What the namespace tests need of the host; Debian's packages are iproute2, ethtool, nftables,
/// tshark (with dumpcap) and util-linux.
const TOOLS: [&str; 7] = ["ip", "ethtool", "nft", "dumpcap", "tshark", "setpriv", "unshare"];
/// A test of this kind takes seconds; a build of the command may be part of it.
const TEST_LIMIT: Duration = Duration::from_secs(1200);
/// A user, network and mount namespace, with a place of its own for the names of namespaces.
const ENTER: &str = r#"mount -t tmpfs tmpfs /run && exec "$0" "$@""#;

/// How namespaces can be made.
enum Access {
    /// By this process.
    Direct,
    /// In a user namespace, as its root.
    UserNamespace,
    /// Not at all, for this reason.
    None(String),
}

/// Runs `test` where it may make network namespaces: here, or in a copy of this program in a user
/// namespace, told to run the one test of the name `name`.
///
/// Where neither is allowed, or a tool is missing, it says what is left out and why.
///
/// # Panics
///
/// When the test fails, and, with `CI=true` in the environment, when it would be left out.
pub fn with_namespaces(name: &str, test: impl FnOnce()) {
    match access() {
        Access::Direct => test(),
        Access::UserNamespace => match in_user_namespace(name) {
            Ok(finished) if finished.status.success() => {}
            Ok(finished) => panic!("{finished}"),
            Err(error) => panic!("{error}"),
        },
        Access::None(reason) => {
            missing(&format!("{name}: {reason}"));
        }
    }
}

fn access() -> Access {
    let lacking: Vec<_> = TOOLS.into_iter().filter(|tool| !process::is_installed(tool)).collect();
    if !lacking.is_empty() {
        return Access::None(format!("not installed: {}", lacking.join(", ")));
    }
    let Err(direct) = Namespace::new("probe") else { return Access::Direct };
    if env::var_os(INSIDE_VARIABLE).is_some() {
        return Access::None(format!("no namespaces in a user namespace: {direct}"));
    }
    let probe = user_namespace("true".into(), &[]).and_then(Finished::success);
    match probe {
        Ok(_) => Access::UserNamespace,
        Err(user) => Access::None(format!("no namespaces as this user: {direct}; {user}")),
    }
}

fn in_user_namespace(name: &str) -> Result<Finished, ProcessError> {
    let program = env::current_exe()
        .map_err(|source| ProcessError::Start { label: "this test".into(), source })?;
    user_namespace(program, &["--exact", name, "--nocapture", "--include-ignored"])
}

fn user_namespace(program: PathBuf, arguments: &[&str]) -> Result<Finished, ProcessError> {
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--net", "--mount", "sh", "-c", ENTER])
        .arg(program)
        .args(arguments)
        .env(INSIDE_VARIABLE, "1");
    process::run("the test in a user namespace", &mut command, TEST_LIMIT)
}
