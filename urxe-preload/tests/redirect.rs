//! The built library, preloaded into programs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::left_out::missing;
use testkit::process::{self, Finished, is_installed};
use testkit::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);

/// The library that cargo built for this test: beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let library = test.parent().expect("it is in a folder").join("liburxe_preload.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

/// A folder with one device.
fn tree(root: &Path) -> io::Result<()> {
    let device = root.join("class/infiniband/rxe_t");
    fs::create_dir_all(&device)?;
    fs::write(device.join("node_guid"), "1234\n")?;
    symlink("/tmp", device.join("device"))?;
    fs::create_dir_all(root.join("class/infiniband_verbs/uverbs0"))?;
    fs::create_dir_all(root.join("dev/infiniband"))?;
    symlink("/dev/null", root.join("dev/infiniband/uverbs0"))
}

fn run(root: &Path, program: impl AsRef<Path>, arguments: &[&str]) -> Finished {
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library()).env("URXE_SYSFS", root).env("ROOT", root);
    process::run(&program.display().to_string(), &mut command, LIMIT).expect("it ends")
}

#[test]
fn each_function_finds_the_folder() {
    if !is_installed("cc") {
        missing("each_function_finds_the_folder: cc is not installed");
        return;
    }
    let scratch = Scratch::new("preload-functions").unwrap();
    tree(scratch.path()).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/paths.c");
    // Fortified and not, since programs of distributions are, and call other functions then.
    for options in [&["-O0"][..], &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]] {
        let program = scratch.path().join("paths");
        let mut cc = Command::new("cc");
        cc.args(options).args(["-w", "-pthread", "-o"]).arg(&program).arg(source);
        process::run("cc", &mut cc, LIMIT).unwrap().success().unwrap();
        let seen = run(scratch.path(), &program, &[]).success().unwrap();
        assert_eq!(seen.stdout.lines().count(), 33, "{seen}");
        for line in seen.stdout.lines() {
            assert!(line.ends_with(" ok"), "{options:?}: {line}");
        }
    }
}

#[test]
fn common_programs_see_the_devices() {
    let scratch = Scratch::new("preload-programs").unwrap();
    tree(scratch.path()).unwrap();
    let text = |program: &str, arguments: &[&str]| {
        run(scratch.path(), program, arguments).success().unwrap().stdout
    };
    assert_eq!(text("ls", &["/sys/class/infiniband"]), "rxe_t\n");
    assert_eq!(text("ls", &["/dev/infiniband/"]), "uverbs0\n");
    assert_eq!(text("cat", &["/sys/class/infiniband/rxe_t/node_guid"]), "1234\n");
    let kind = text("stat", &["-c", "%F", "/dev/infiniband/uverbs0"]);
    assert_eq!(kind, "character special file\n");
    let shell = "test -c /dev/infiniband/uverbs0 && test -d /sys/class/infiniband_verbs/uverbs0 && \
                 cd /sys/class/infiniband && echo *";
    assert_eq!(text("sh", &["-c", shell]), "rxe_t\n");
    // What is not there, and what is no device, is as ever.
    assert!(!run(scratch.path(), "cat", &["/dev/infiniband/uverbs1"]).status.success());
    assert_eq!(text("cat", &["/proc/self/comm"]), "cat\n");
}

#[test]
fn without_a_folder_nothing_changes() {
    for root in ["", "relative", "/no/such/folder"] {
        let seen = run(Path::new(root), "cat", &["/proc/self/comm"]).success().unwrap();
        assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("cat\n", ""));
    }
    if !Path::new("/sys/class/infiniband").exists() {
        let seen = run(Path::new(""), "ls", &["/sys/class/infiniband"]);
        assert!(!seen.status.success(), "{seen}");
    }
}
