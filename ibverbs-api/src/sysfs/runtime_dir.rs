//! A folder that belongs to the user, for what processes share while they run.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::geteuid;
use thiserror::Error;

/// How many names are tried where other users hold them.
const NAMES_MAX: u32 = 8;

/// Why there is no folder for what processes share while they run.
#[derive(Debug, Error)]
#[error(
    "no private folder can be made in {}: {source} (set XDG_RUNTIME_DIR to a folder that is yours)",
    tried.display()
)]
pub struct RuntimeDirError {
    /// Where it was tried last.
    pub tried: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl RuntimeDirError {
    /// The errno for a caller in C.
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(Errno::ACCESS.raw_os_error())
    }
}

/// The folder of this user: `urxe` in `XDG_RUNTIME_DIR`, or `urxe-UID` in the temporary folder.
///
/// It is made when it is not there. It belongs to the effective user, who alone may enter it, and
/// its path has no character that separates paths in `LD_LIBRARY_PATH` or `LD_PRELOAD`.
///
/// # Errors
///
/// [`RuntimeDirError`] when none can be made.
pub fn runtime_dir() -> Result<PathBuf, RuntimeDirError> {
    let own = geteuid().as_raw();
    // After su or sudo the variable may still name the folder of another user.
    let session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(session) = session.filter(|path| is_plain(path) && is_private_to(path, own)) {
        let path = session.join("urxe");
        if make_private(&path, own).is_ok() {
            return Ok(path);
        }
    }
    let temporary = Some(env::temp_dir()).filter(|path| is_plain(path));
    let temporary = temporary.unwrap_or_else(|| PathBuf::from("/tmp"));
    in_shared(&temporary, own)
}

/// The folder in one that others may write to as well, and may have taken the names in.
fn in_shared(parent: &Path, own: u32) -> Result<PathBuf, RuntimeDirError> {
    let mut tried = parent.join(format!("urxe-{own}"));
    for number in 1..=NAMES_MAX {
        match make_private(&tried, own) {
            Ok(()) => return Ok(tried),
            Err(source) if number == NAMES_MAX || !tried.exists() => {
                return Err(RuntimeDirError { tried, source });
            }
            Err(_) => tried = parent.join(format!("urxe-{own}.{number}")),
        }
    }
    unreachable!("the last name either serves or is refused")
}

/// Makes the folder, or finds that it is there and private.
fn make_private(path: &Path, own: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if is_private_to(path, own) {
        return Ok(());
    }
    let reason = "it is there, but not a folder of this user alone";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// Whether this is a folder, no link, which `own` owns and nobody else may write to.
fn is_private_to(path: &Path, own: u32) -> bool {
    let is_private =
        |found: fs::Metadata| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0;
    path.is_absolute() && fs::symlink_metadata(path).is_ok_and(is_private)
}

/// Whether the path can stand in `LD_LIBRARY_PATH` and `LD_PRELOAD` (ld.so(8)).
fn is_plain(path: &Path) -> bool {
    path.is_absolute() && !path.as_os_str().as_bytes().iter().any(|byte| b" :;\t\n".contains(byte))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("urxe-unit-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_name_that_another_holds_is_passed_over() {
        let parent = scratch("runtime-dir");
        let own = geteuid().as_raw();
        let first = in_shared(&parent, own).unwrap();
        assert_eq!(first, parent.join(format!("urxe-{own}")));
        assert_eq!(fs::metadata(&first).unwrap().mode() & 0o777, 0o700);
        assert_eq!(in_shared(&parent, own).unwrap(), first, "it is found again");

        // Writable by all: anybody may have put something there.
        fs::set_permissions(&first, fs::Permissions::from_mode(0o777)).unwrap();
        let second = in_shared(&parent, own).unwrap();
        assert_eq!(second, parent.join(format!("urxe-{own}.1")));

        // A link leads to where another wants it.
        fs::remove_dir(&second).unwrap();
        symlink("/tmp", &second).unwrap();
        assert_eq!(in_shared(&parent, own).unwrap(), parent.join(format!("urxe-{own}.2")));
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn where_nothing_can_be_made_the_place_is_told() {
        let error = in_shared(Path::new("/proc/nowhere"), 0).unwrap_err();
        assert!(error.to_string().contains("/proc/nowhere/urxe-0"), "{error}");
        assert_ne!(error.errno(), 0);
    }

    #[test]
    fn paths_that_the_loader_would_split_are_not_used() {
        assert!(is_plain(Path::new("/run/user/1000")));
        for path in ["/run/a b", "/run/a:b", "/run/a;b", "run"] {
            assert!(!is_plain(Path::new(path)), "{path}");
        }
    }
}
