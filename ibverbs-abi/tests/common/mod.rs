//! The library, as programs find it.

// Each test uses some of it.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use testkit::scratch::Scratch;

/// The library that cargo built with this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().expect("it is in a folder");
    let library = folder.join("libibverbs_abi.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// Makes a folder for `LD_LIBRARY_PATH`: both names of the library.
pub(crate) fn library_folder(scratch: &Scratch) -> PathBuf {
    let folder = scratch.path().join("lib");
    fs::create_dir(&folder).expect("the folder is new");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        symlink(library(), folder.join(name)).expect("the folder is empty");
    }
    folder
}

/// A file of this package.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
