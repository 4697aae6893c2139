//! Tests that nobody else on the host may disturb.

use std::any::type_name;
use std::env;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::left_out::left_out;
use crate::process::{self, Finished, ProcessError};

/// Set in the copy of a test that runs in a namespace of its own.
const INSIDE_VARIABLE: &str = "URXE_TESTKIT_ALONE";
/// In a new network namespace, before the program: there is nothing yet but `lo`, which is down.
const ENTER: &str = r#"ip link set lo up && exec "$0" "$@""#;
/// A test of this kind takes seconds.
const TEST_LIMIT: Duration = Duration::from_secs(600);

/// Runs `test`, which is the closure that the body of a test consists of, in a copy of this program
/// that has a network namespace for itself, with its loopback interface up: there nobody else has
/// addresses, ports and slots. Root is not needed.
///
/// Where no such namespace can be made, it says so, and runs the test here: then others on this host
/// may disturb it.
///
/// # Panics
///
/// When the test fails.
pub fn alone<F: FnOnce()>(test: F) {
    if env::var_os(INSIDE_VARIABLE).is_some() {
        return test();
    }
    if let Err(reason) = can_be_alone() {
        left_out(&format!("a network namespace of its own for {}: {reason}", name_of::<F>()));
        return test();
    }
    match run_alone(name_of::<F>()) {
        // A name that no test has would run none, and all would be well.
        Ok(finished) if finished.status.success() && finished.stdout.contains("1 passed") => {}
        Ok(finished) => panic!("{finished}"),
        Err(error) => panic!("{error}"),
    }
}

/// The name of a test, as the program that has it knows it, by the type of a closure in it:
/// `program::module::test::{{closure}}`.
fn name_of<F>() -> &'static str {
    let path = type_name::<F>();
    let path = path.strip_suffix("::{{closure}}").unwrap_or(path);
    path.split_once("::").map_or(path, |(_, name)| name)
}

/// Whether such a namespace can be made; if not, why.
fn can_be_alone() -> Result<(), &'static str> {
    static CAN: OnceLock<Result<(), String>> = OnceLock::new();
    let probe = || match in_namespace("true", &[]).and_then(Finished::success) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    CAN.get_or_init(probe).as_ref().copied().map_err(String::as_str)
}

fn run_alone(name: &str) -> Result<Finished, ProcessError> {
    let program = env::current_exe()
        .map_err(|source| ProcessError::Start { label: "this test".into(), source })?;
    let arguments = ["--exact", name, "--nocapture", "--include-ignored"];
    in_namespace(&program.to_string_lossy(), &arguments)
}

fn in_namespace(program: &str, arguments: &[&str]) -> Result<Finished, ProcessError> {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", ENTER, program]).args(arguments);
    command.env(INSIDE_VARIABLE, "1");
    process::run("the test in a network namespace", &mut command, TEST_LIMIT)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_test_is_known_by_its_closure() {
        fn of<F: FnOnce()>(_: F) -> &'static str {
            name_of::<F>()
        }
        assert_eq!(of(|| ()), "netns::alone::tests::a_test_is_known_by_its_closure");
    }

    #[test]
    fn a_port_that_is_taken_here_is_free_there() {
        let port = || UdpSocket::bind("[::1]:4790");
        let outside = env::var_os(INSIDE_VARIABLE).is_none().then(port);
        alone(|| {
            if can_be_alone().is_ok() {
                port().unwrap();
            }
        });
        drop(outside);
    }

    #[test]
    fn a_test_that_fails_there_fails_here() {
        assert!(env::var_os(INSIDE_VARIABLE).is_none(), "by design");
        if can_be_alone().is_err() {
            return;
        }
        let test = || ();
        let panic = std::panic::catch_unwind(|| alone(test)).unwrap_err();
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains("by design"), "{message}");
    }
}
