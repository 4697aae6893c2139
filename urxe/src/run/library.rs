//! Where urxe's libraries are: beside the command, in a build tree or installed.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ibverbs_api::sysfs::{RuntimeDirError, runtime_dir};
use thiserror::Error;

/// The names that programs ask the loader for.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// What cargo calls the one file behind both.
const BUILT: &str = "libibverbs_abi.so";
/// The preload library, in a build tree and installed.
const PRELOAD: &str = "liburxe_preload.so";

/// Why there is no library to run a program on.
#[derive(Debug, Error)]
pub(super) enum LibraryError {
    #[error(
        "cannot find urxe's libibverbs.so.1: looked for {}. `cargo build --release` builds it beside \
         the command in a source tree, and ./install.sh there installs both",
        list(looked)
    )]
    NotFound { looked: Vec<PathBuf> },
    #[error("cannot tell where this command is: {0}")]
    Own(#[source] io::Error),
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    #[error("cannot make the link {}: {source}", path.display())]
    Link { path: PathBuf, source: io::Error },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// The libraries, under the names that the loader wants.
#[derive(Debug)]
pub(super) struct Library {
    /// A folder with `libibverbs.so.1` and `librdmacm.so.1`, fit for `LD_LIBRARY_PATH`.
    pub(super) folder: PathBuf,
    /// The preload library, where it is there.
    pub(super) preload: Option<PathBuf>,
}

impl Library {
    /// Finds them beside this command.
    pub(super) fn find() -> Result<Self, LibraryError> {
        let own = env::current_exe().map_err(LibraryError::Own)?;
        Self::find_beside(own.parent().unwrap_or_else(|| Path::new("/")))
    }

    fn find_beside(bin: &Path) -> Result<Self, LibraryError> {
        // Of a build tree first: a command there wants what was built with it.
        let built = [bin.join(BUILT), bin.join("deps").join(BUILT)];
        let installed = ["lib", "lib64"].map(|lib| bin.join("..").join(lib).join("urxe"));
        if let Some(file) = newest(&built) {
            let preload = newest(&[bin.join(PRELOAD), bin.join("deps").join(PRELOAD)]);
            return Self::linked(&file, preload.as_deref());
        }
        let has_all = |folder: &&PathBuf| NAMES.iter().all(|name| folder.join(name).exists());
        let Some(folder) = installed.iter().find(has_all) else {
            let names = installed.iter().map(|folder| folder.join(NAMES[0]));
            return Err(LibraryError::NotFound {
                looked: built.into_iter().chain(names).collect(),
            });
        };
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let preload = Some(folder.join(PRELOAD)).filter(|path| path.exists());
        // The loader takes some characters for the end of a path.
        if folder.as_os_str().as_bytes().iter().any(|byte| b" :;\t\n".contains(byte)) {
            return Self::linked(&folder.join(NAMES[0]), preload.as_deref());
        }
        Ok(Self { folder, preload })
    }

    /// The libraries through links in a folder of the user: both names lead to one file, which the
    /// loader then maps once.
    fn linked(file: &Path, preload: Option<&Path>) -> Result<Self, LibraryError> {
        let mut hasher = DefaultHasher::new();
        file.hash(&mut hasher);
        let folder = runtime_dir()?.join(format!("lib/{:016x}", hasher.finish()));
        let failed = |source| LibraryError::Link { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        for name in NAMES {
            link(file, &folder.join(name))?;
        }
        let preload = match preload {
            Some(preload) => {
                link(preload, &folder.join(PRELOAD))?;
                Some(folder.join(PRELOAD))
            }
            None => None,
        };
        Ok(Self { folder, preload })
    }

    /// The library itself, under its first name.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.join(NAMES[0])
    }

    /// Whether a folder has another library of one of the names, which programs would get.
    pub(super) fn is_shadowed_by(&self, folder: &Path) -> bool {
        let is_other = |name: &&str| {
            let other = fs::canonicalize(folder.join(name));
            let own = fs::canonicalize(self.folder.join(name));
            other.is_ok_and(|other| own.ok().as_ref() != Some(&other))
        };
        NAMES.iter().any(is_other)
    }
}

/// The file that was written last, of those that are there: `cargo build` puts a library beside the
/// command, `cargo test` leaves it in `deps`.
fn newest(files: &[PathBuf]) -> Option<PathBuf> {
    let age = |path: &&PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    // Of several equal ones `max_by_key` takes the last.
    files.iter().rev().filter(|path| path.exists()).max_by_key(age).cloned()
}

/// Makes `at` a link to `target`, in one step: other processes may be starting programs.
fn link(target: &Path, at: &Path) -> Result<(), LibraryError> {
    if fs::read_link(at).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let failed = |source| LibraryError::Link { path: at.to_owned(), source };
    let unfinished = at.with_extension(format!("new-{}", std::process::id()));
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    symlink(target, &unfinished).and_then(|()| fs::rename(&unfinished, at)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A folder of a test, gone with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("urxe-unit-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(fs::canonicalize(path).unwrap())
        }

        fn file(&self, path: &str, age: u64) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            File::create(&path).unwrap().set_modified(time).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn of_a_build_tree_the_newest_is_taken() {
        let tree = Scratch::new("library-newest");
        let old = tree.file(BUILT, 20);
        let new = tree.file(&format!("deps/{BUILT}"), 10);
        assert_eq!(newest(&[old.clone(), new.clone()]), Some(new.clone()));
        assert_eq!(newest(&[new.clone(), old.clone()]), Some(new));
        assert_eq!(newest(&[tree.0.join("none"), old.clone()]), Some(old));
        assert_eq!(newest(&[tree.0.join("none")]), None);
    }

    #[test]
    fn both_names_lead_to_the_library_of_a_build_tree() {
        let tree = Scratch::new("library-links");
        let file = tree.file(BUILT, 0);
        let preload = tree.file(PRELOAD, 0);
        let library = Library::find_beside(&tree.0).unwrap();
        for name in NAMES {
            assert_eq!(fs::canonicalize(library.folder.join(name)).unwrap(), file);
        }
        assert_eq!(fs::canonicalize(library.preload.as_ref().unwrap()).unwrap(), preload);
        assert!(!library.is_shadowed_by(&tree.0));
        let other = tree.file("other/librdmacm.so.1", 0);
        assert!(library.is_shadowed_by(other.parent().unwrap()));
        fs::remove_dir_all(&library.folder).unwrap();
    }

    #[test]
    fn an_installed_library_is_found_from_bin() {
        let prefix = Scratch::new("library-installed");
        let bin = prefix.file("bin/urxe", 0);
        let bin = bin.parent().unwrap();
        let error = Library::find_beside(bin).unwrap_err().to_string();
        for place in [BUILT, "deps/libibverbs_abi.so", "lib/urxe/libibverbs.so.1"] {
            assert!(error.contains(place), "{error}");
        }
        prefix.file("lib/urxe/libibverbs.so.1", 0);
        prefix.file("lib/urxe/librdmacm.so.1", 0);
        let library = Library::find_beside(bin).unwrap();
        assert_eq!((library.folder, library.preload), (prefix.0.join("lib/urxe"), None));
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_reached_by_links() {
        let prefix = Scratch::new("library with a space");
        let bin = prefix.file("bin/urxe", 0);
        let file = prefix.file("lib/urxe/libibverbs.so.1", 0);
        prefix.file("lib/urxe/librdmacm.so.1", 0);
        let library = Library::find_beside(bin.parent().unwrap()).unwrap();
        assert!(!library.folder.to_str().unwrap().contains(' '));
        assert_eq!(fs::canonicalize(library.file()).unwrap(), file);
        fs::remove_dir_all(&library.folder).unwrap();
    }
}
