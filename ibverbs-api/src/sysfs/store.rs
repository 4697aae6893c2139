//! The folders on disk: written whole or not at all, shared, and removed when nobody wants them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::runtime_dir::RuntimeDirError;
use super::tree::{Node, Tree};

/// A folder that nobody has asked for in this time is removed.
const UNUSED_LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The beginning of the name of a folder that is being written, or taken away.
const UNFINISHED: &str = ".new-";

/// Why the folder cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// There is no place for it.
    #[error(transparent)]
    Place(#[from] RuntimeDirError),
    /// It cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// What was being written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl PublishError {
    /// The errno for a caller in C.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Place(error) => error.errno(),
            Self::Write { source, .. } => {
                source.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error())
            }
        }
    }
}

/// Writes the tree to a folder in `base`, unless it is there.
pub(super) fn publish(base: &Path, tree: &Tree) -> Result<PathBuf, PublishError> {
    let path = base.join(tree.key());
    let failed = |source| PublishError::Write { path: path.clone(), source };
    if is_whole(&path, tree) {
        // Who removes unused ones goes by this time. Without it the folder is still right.
        if let Err(error) = File::open(&path).and_then(|dir| dir.set_modified(SystemTime::now())) {
            tracing::debug!(target: "rxe::sysfs", path = %path.display(), %error, "not marked as used");
        }
        return Ok(path);
    }
    fs::create_dir_all(base).map_err(failed)?;
    remove_unused(base);
    let unfinished = base.join(unfinished_name());
    let written = write(&unfinished, tree).and_then(|()| put_in_place(&unfinished, &path, tree));
    if written.is_err() && unfinished.exists() {
        remove(&unfinished);
    }
    written.map_err(failed)?;
    Ok(path)
}

/// Whether the folder has all that the tree has: what cleans temporary folders takes single files.
fn is_whole(path: &Path, tree: &Tree) -> bool {
    tree.nodes().all(|(name, node)| {
        let name = path.join(name);
        match node {
            Node::File(text) => fs::read(name).is_ok_and(|found| found == text.as_bytes()),
            Node::Link(target) => fs::read_link(name).is_ok_and(|found| found == *target),
            Node::EmptyFolder => name.is_dir(),
        }
    })
}

fn write(folder: &Path, tree: &Tree) -> io::Result<()> {
    for (name, node) in tree.nodes() {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match node {
            Node::File(text) => fs::write(&path, text)?,
            Node::Link(target) => symlink(target, &path)?,
            Node::EmptyFolder => fs::create_dir(&path)?,
        }
    }
    Ok(())
}

/// Gives the finished folder its name. Another process may be faster, with the same content.
fn put_in_place(unfinished: &Path, path: &Path, tree: &Tree) -> io::Result<()> {
    let Err(error) = fs::rename(unfinished, path) else { return Ok(()) };
    if !path.exists() {
        return Err(error);
    }
    if !is_whole(path, tree) {
        let broken = path.with_file_name(unfinished_name());
        fs::rename(path, &broken)?;
        remove(&broken);
        // A third process may have come between: then its folder is as good.
        match fs::rename(unfinished, path) {
            Err(error) if !is_whole(path, tree) => return Err(error),
            Ok(()) => return Ok(()),
            Err(_) => {}
        }
    }
    remove(unfinished);
    Ok(())
}

/// A name that no other thread or living process uses.
fn unfinished_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{UNFINISHED}{}-{count}", std::process::id())
}

/// Removes folders that nobody has asked for in a long time, and what killed processes left.
fn remove_unused(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).map(|time| time.elapsed());
        let unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
        // Nothing takes a minute to be written.
        let limit = if unfinished { Duration::from_secs(60) } else { UNUSED_LIMIT };
        if matches!(age, Ok(Ok(age)) if age > limit) {
            remove(&entry.path());
        }
    }
}

/// Removes a folder of ours; one that stays takes some room, and the next process tries again.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::debug!(target: "rxe::sysfs", path = %path.display(), %error, "not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;

    /// A folder of a test, gone with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("urxe-unit-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            remove(&self.0);
        }
    }

    #[test]
    fn one_content_is_one_folder() {
        let base = Scratch::new("store-one");
        let tree = Tree::of(&[test_device("lo", 1)]);
        let path = publish(&base.0, &tree).unwrap();
        assert!(is_whole(&path, &tree));
        assert_eq!(publish(&base.0, &tree).unwrap(), path);
        assert_eq!(base.names(), [tree.key()]);
        let other = Tree::of(&[test_device("eth0", 2)]);
        assert_ne!(publish(&base.0, &other).unwrap(), path);
        assert_eq!(base.names().len(), 2);
    }

    #[test]
    fn a_folder_that_lost_a_file_is_made_whole() {
        let base = Scratch::new("store-whole");
        let tree = Tree::of(&[test_device("eth0", 2)]);
        let path = publish(&base.0, &tree).unwrap();
        fs::remove_file(path.join("class/infiniband/rxe_eth0/ports/1/gids/1")).unwrap();
        assert!(!is_whole(&path, &tree));
        assert_eq!(publish(&base.0, &tree).unwrap(), path);
        assert!(is_whole(&path, &tree));
        assert_eq!(base.names(), [tree.key()]);
    }

    #[test]
    fn many_at_once_make_one() {
        let base = Scratch::new("store-many");
        let tree = Tree::of(&[test_device("eth0", 2)]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| publish(&base.0, &tree).unwrap());
            }
        });
        assert_eq!(base.names(), [tree.key()]);
    }

    #[test]
    fn what_nobody_uses_goes_when_a_new_one_comes() {
        let base = Scratch::new("store-unused");
        let aged = |name: &str, age: u64| {
            let path = base.0.join(name);
            fs::create_dir_all(&path).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            File::open(&path).unwrap().set_modified(time).unwrap();
        };
        aged("old", 31 * 24 * 3600);
        aged("young", 29 * 24 * 3600);
        aged(".new-1-0", 120);
        aged(".new-2-0", 1);
        let tree = Tree::of(&[test_device("lo", 1)]);
        publish(&base.0, &tree).unwrap();
        let mut names = base.names();
        names.sort();
        let mut expected = [".new-2-0".to_owned(), tree.key(), "young".to_owned()];
        expected.sort();
        assert_eq!(names, expected);
    }
}
