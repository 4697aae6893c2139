//! `install.sh`, and what it has installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::binary::urxe_binary;
use testkit::process::{self, Finished};
use testkit::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);

/// `install.sh` with these arguments, of what has been built for the tests.
fn install(arguments: &[&str], home: &Path) -> Finished {
    let built = urxe_binary().parent().expect("it is in a folder");
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../install.sh"));
    command.arg("--no-build").args(arguments);
    if built.ends_with("debug") {
        command.arg("--debug");
    }
    command.env("CARGO_TARGET_DIR", built.parent().expect("of a target folder"));
    command.env("HOME", home).env_remove("DESTDIR");
    process::run("install.sh", &mut command, LIMIT).expect("it ends")
}

/// All files below a folder, by their path in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder").flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if let Ok(path) = path.strip_prefix(folder) {
                found.push(path.to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn what_is_installed_runs_by_itself() {
    let scratch = Scratch::new("install").unwrap();
    let prefix = scratch.file("prefix");
    let argument = prefix.to_str().unwrap();
    let seen = install(&["--prefix", argument], scratch.path()).success().unwrap();
    assert!(seen.stdout.contains(&format!("installed {argument}/bin/urxe")), "{seen}");
    // A second time over the first, as an update does.
    install(&[&format!("--prefix={argument}")], scratch.path()).success().unwrap();
    let expected = [
        "bin/urxe",
        "lib/urxe/libibverbs.so.1",
        "lib/urxe/librdmacm.so.1",
        "lib/urxe/liburxe_preload.so",
    ];
    assert_eq!(files(&prefix), expected.map(PathBuf::from));

    let run = |program: &Path| {
        let mut command = Command::new(program);
        command.args(["run", "sh", "-c", "echo $LD_LIBRARY_PATH; ls /sys/class/infiniband"]);
        command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
        process::run("urxe run", &mut command, LIMIT).unwrap().success().unwrap()
    };
    let library = |prefix: &Path| format!("{}\n", prefix.join("lib/urxe").display());
    let seen = run(&prefix.join("bin/urxe"));
    assert!(seen.stdout.starts_with(&library(&prefix)) && seen.stderr.is_empty(), "{seen}");
    // Through a link in PATH, and moved elsewhere.
    let link = scratch.file("urxe");
    std::os::unix::fs::symlink(prefix.join("bin/urxe"), &link).unwrap();
    assert!(run(&link).stdout.starts_with(&library(&prefix)));
    let moved = scratch.file("moved");
    fs::rename(&prefix, &moved).unwrap();
    assert!(run(&moved.join("bin/urxe")).stdout.starts_with(&library(&moved)));

    let argument = moved.to_str().unwrap();
    install(&["--uninstall", "--prefix", argument], scratch.path()).success().unwrap();
    assert_eq!(files(&moved), Vec::<PathBuf>::new());
}

#[test]
fn wrong_arguments_and_missing_files_are_told() {
    let scratch = Scratch::new("install-wrong").unwrap();
    let seen = install(&["--perfix", "/x"], scratch.path());
    assert_eq!(seen.status.code(), Some(2), "{seen}");
    assert!(seen.stderr.contains("--prefix DIR"), "{seen}");

    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../install.sh"));
    command.args(["--no-build", "--prefix"]).arg(scratch.file("prefix"));
    command.env("CARGO_TARGET_DIR", scratch.file("nothing"));
    let seen = process::run("install.sh", &mut command, LIMIT).unwrap();
    assert_eq!(seen.status.code(), Some(1), "{seen}");
    assert!(seen.stderr.contains("has no libibverbs_abi.so"), "{seen}");
    assert_eq!(files(&scratch.file("prefix")), Vec::<PathBuf>::new());
}
