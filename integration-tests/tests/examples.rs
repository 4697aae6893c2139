//! The shell steps of `examples/`, run as the services would run them.
//!
//! The services are not at hand. So what installs packages and toolchains is replaced by programs
//! that only check what they are asked, and `install.sh` installs what was built for the
//! tests; all else runs as it stands in the files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::binary::urxe_binary;
use testkit::left_out::missing;
use testkit::netns::{Namespace, with_namespaces};
use testkit::process::{self, Finished, is_installed};
use testkit::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(120);
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Replaces apt-get: the program of the one package that the steps want is there.
const APT_GET: &str = "#!/bin/sh\ncase \"$*\" in update | 'install '*' ibverbs-utils') ;; *) exit 9 ;; \
                       esac\n";
/// Replaces cargo: what the steps build is what the tests have built.
const CARGO: &str =
    "#!/bin/sh\ncase \"$1 $2 $3\" in 'build --locked --release') ;; *) exit 9 ;; esac\n";

/// A machine as the services give: a namespace, a home, and programs that stand for others.
struct Machine {
    namespace: Namespace,
    scratch: Scratch,
    path: String,
}

impl Machine {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name).expect("there is room");
        let programs = scratch.file("programs");
        fs::create_dir(&programs).expect("it is new");
        let sudo = "#!/bin/sh\nexec \"$@\"\n";
        let rustup = "#!/bin/sh\n[ \"$*\" = 'update stable' ]\n";
        for (name, text) in
            [("apt-get", APT_GET), ("cargo", CARGO), ("sudo", sudo), ("rustup", rustup)]
        {
            let path = programs.join(name);
            fs::write(&path, text).expect("there is room");
            let executable = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&path, executable).expect("it is ours");
        }
        // What was built is a release for the steps.
        let built = urxe_binary().parent().expect("it is in a folder");
        fs::create_dir(scratch.file("target")).expect("it is new");
        symlink(built, scratch.file("target/release")).expect("it is new");
        // The project, with urxe in it; not the home, where the steps install things.
        fs::create_dir(scratch.file("project")).expect("it is new");
        symlink(REPOSITORY, scratch.file("project/urxe")).expect("it is new");
        fs::create_dir(scratch.file("home")).expect("it is new");
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
        let path = format!("{}:{path}", programs.display());
        Self { namespace: Namespace::new(name).expect("namespaces can be made"), scratch, path }
    }

    /// Runs a step as its service does; it must succeed.
    fn run(&self, shell: &[&str], step: &str) -> Finished {
        eprintln!("--- {step}");
        let mut command = self.namespace.command("env");
        command.arg("-C").arg(self.scratch.file("project")).args(["-u", "LD_LIBRARY_PATH", "-u"]);
        command.args(["LD_PRELOAD", "-u", "CI"]).arg(format!("PATH={}", self.path));
        command.arg(format!("HOME={}", self.scratch.file("home").display()));
        command.arg(format!("CARGO_TARGET_DIR={}", self.scratch.file("target").display()));
        command.arg(format!("GITHUB_PATH={}", self.github_path().display()));
        command.args(shell).arg(step);
        let seen = process::run("a step", &mut command, LIMIT).and_then(Finished::success);
        seen.expect("the step succeeds")
    }

    fn github_path(&self) -> PathBuf {
        self.scratch.file("github-path")
    }
}

fn example(name: &str) -> String {
    let path = Path::new(REPOSITORY).join("examples").join(name);
    fs::read_to_string(path).expect("the example is there")
}

/// Whether the programs of the examples are there.
fn has_programs() -> bool {
    if is_installed("ibv_rc_pingpong") {
        return true;
    }
    missing("programs of the examples: ibv_rc_pingpong (package ibverbs-utils) is not installed");
    false
}

/// The texts of `run:` in a workflow.
fn run_steps(workflow: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut lines = workflow.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(text) = line.trim_start().strip_prefix("run: ") else { continue };
        if text != "|" {
            steps.push(text.to_owned());
            continue;
        }
        let outer = indent(line);
        let mut step = String::new();
        while let Some(line) = lines.next_if(|line| line.trim().is_empty() || indent(line) > outer)
        {
            step += line.trim_start();
            step.push('\n');
        }
        steps.push(step);
    }
    steps
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The instructions of a Dockerfile, continued lines joined, comments left out.
fn instructions(dockerfile: &str) -> Vec<(String, String)> {
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", "");
    let split = |line: &str| {
        let (word, rest) = line.split_once(' ')?;
        Some((word.to_owned(), rest.to_owned()))
    };
    joined.lines().filter_map(split).collect()
}

#[test]
fn the_workflow_runs() {
    with_namespaces("the_workflow_runs", || {
        if !has_programs() {
            return;
        }
        let mut machine = Machine::new("workflow");
        let mut last = String::new();
        for step in run_steps(&example("github-actions.yml")) {
            last = machine.run(&["bash", "-e", "-c"], &step).stdout;
            // What a step adds is for those behind it.
            if let Ok(added) = fs::read_to_string(machine.github_path()) {
                for folder in added.lines() {
                    machine.path = format!("{folder}:{}", machine.path);
                }
                fs::remove_file(machine.github_path()).unwrap();
            }
        }
        // The summary of the dump: packets were sent, and each was right.
        assert!(last.contains("0 bad"), "{last}");
    });
}

#[test]
fn the_image_is_built_and_runs() {
    with_namespaces("the_image_is_built_and_runs", || {
        if !has_programs() {
            return;
        }
        let mut machine = Machine::new("image");
        let root = machine.scratch.path().display().to_string();
        // Folders of the image are folders of the test.
        let here = |text: &str| {
            text.replace("/opt/urxe", &format!("{root}/opt")).replace("/src/urxe", REPOSITORY)
        };
        let mut entry = None;
        for (word, rest) in instructions(&example("Dockerfile")) {
            match word.as_str() {
                "RUN" => drop(machine.run(&["sh", "-c"], &here(&rest))),
                "ENV" => {
                    let path = rest.strip_prefix("PATH=").expect("no other variable is set");
                    machine.path = here(path).replace("$PATH", &machine.path);
                }
                "ENTRYPOINT" => entry = Some(rest),
                "CMD" => {
                    let words = |list: &str| -> Vec<String> {
                        serde_json::from_str(list).expect("a list of words")
                    };
                    let mut all = words(entry.as_deref().expect("before CMD"));
                    all.extend(words(&rest));
                    let seen = machine.run(&["sh", "-c"], &all.join(" "));
                    assert!(seen.stdout.contains("rxe_lo"), "{seen}");
                    return;
                }
                // Where files come from is arranged by the test.
                "FROM" | "COPY" => {}
                _ => panic!("unknown instruction {word}"),
            }
        }
        panic!("there is no CMD");
    });
}
