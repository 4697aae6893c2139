//! A folder for the files of one test.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process, thread};

/// A folder of a test's own. It goes with the test, unless the test fails: then it stays, and says
/// where it is.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a folder in the system's folder for temporary files.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn new(name: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("urxe-{name}-{}-{number}", process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the files of this test are kept in {}", self.0.display());
        } else if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_differ_and_go_with_the_test() {
        let (one, two) = (Scratch::new("scratch").unwrap(), Scratch::new("scratch").unwrap());
        assert_ne!(one.path(), two.path());
        fs::write(one.file("x"), "y").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }

    #[test]
    fn the_folder_of_a_failed_test_stays() {
        let thread = thread::spawn(|| {
            let scratch = Scratch::new("scratch-failed").unwrap();
            std::panic::panic_any(scratch.path().to_owned());
        });
        // The folder is dropped while the thread unwinds.
        let path = *thread.join().unwrap_err().downcast::<PathBuf>().unwrap();
        assert!(path.exists());
        fs::remove_dir_all(path).unwrap();
    }
}
