//! The `urxe` command, built once, for tests of other packages.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::process::{self, ProcessError};

/// Names a command to be tested instead of the one of this workspace.
pub const BINARY_VARIABLE: &str = "URXE_BINARY";

/// A build from nothing on a slow machine.
const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// The path of the command: `URXE_BINARY` when it is set, otherwise built here, once, with the
/// libraries that `urxe run` gives to programs.
///
/// Cargo names a package's commands only for the tests of that package. The command is built as
/// for one of those, of the whole workspace: so the features of its dependencies are those of
/// `cargo test --workspace`, whose work is used then. `cargo build` leaves out what tests alone
/// depend on, and would build half of it anew.
///
/// # Panics
///
/// When the build fails, with what cargo said.
pub fn urxe_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match env::var_os(BINARY_VARIABLE) {
        Some(path) => path.into(),
        None => build().unwrap_or_else(|error| panic!("cannot build urxe: {error}")),
    })
}

fn build() -> Result<PathBuf, ProcessError> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["test", "--no-run", "--workspace", "--message-format=json"])
        // One test each of the packages with the command and the two libraries.
        .args(["--test", "dump", "--test", "exports", "--test", "redirect"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if let Some(folder) = target_folder() {
        command.arg("--target-dir").arg(folder);
    }
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let built = process::run("cargo test --no-run", &mut command, BUILD_LIMIT)?.success()?;
    match built.stdout.lines().find_map(executable) {
        Some(path) => Ok(path),
        None => Err(ProcessError::Failed(built)),
    }
}

/// The target folder that the running test is in: `TARGET/PROFILE/deps/TEST`.
fn target_folder() -> Option<PathBuf> {
    let test = env::current_exe().ok()?;
    let profile = test.parent()?.parent()?;
    profile.parent().map(Path::to_owned)
}

/// The command, when this line of cargo's messages tells where it is.
fn executable(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_urxe = message["reason"] == "compiler-artifact" && message["target"]["name"] == "urxe";
    let path = message["executable"].as_str().filter(|_| is_urxe)?;
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_found_in_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"urxe"},"executable":"/x/u"}"#;
        assert_eq!(executable(line), Some("/x/u".into()));
        assert_eq!(executable(&line.replace("urxe", "other")), None);
        assert_eq!(executable(&line.replace("\"/x/u\"", "null")), None);
        assert_eq!(executable("Compiling"), None);
    }
}
