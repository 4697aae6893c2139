//! The instructions that the engine takes for a fixed sequence of packets, beside those kept in
//! `instructions.txt`: 3 % more is a regression.
//!
//! valgrind's callgrind counts them, in a build of its own with fixed flags, so they are the same on
//! every run. What depends on the processor is pinned: valgrind shows programs its own, and the C
//! library is told to use none of the extensions by which its copies differ. They still depend on the
//! compiler, so the file names it, and the test says that it was left out where another one is used.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What is kept.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");
/// Growth in percent that fails.
const LIMIT: f64 = 3.0;
/// How to take the present counts for right.
const BLESS: &str = "URXE_BLESS=1 cargo test -p rxe-bench --test instructions";
/// Extensions that the copies of the C library must not use.
const HWCAPS: &str =
    "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load";

/// Runs a command, which must succeed.
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {log}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The compiler, and the machine that it builds for.
fn compiler() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = text(&run(Command::new(rustc).arg("-vV")).stdout);
    let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name));
    let (release, host) = (field("release: "), field("host: "));
    format!("rustc {} {}", release.unwrap_or("?"), host.unwrap_or("?"))
}

/// Builds the example, whatever the flags of this test are.
fn build() -> PathBuf {
    let test = env::current_exe().expect("the test has a path");
    // TARGET/PROFILE/deps/TEST
    let target = test.ancestors().nth(3).expect("it is in a target folder").join("instructions");
    let mut command = cargo();
    command
        .args(["build", "--quiet", "--release", "-p", "rxe-bench", "--bin", "fixed_sequence"])
        .args(["--config", "profile.release.debug=\"line-tables-only\""])
        .args(["--config", "profile.release.codegen-units=1"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "")
        // As the counts that are kept; and the other way takes minutes.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    run(&mut command);
    target.join("release/fixed_sequence")
}

/// Instructions of a case for each packet, in hundredths.
fn count(program: &Path, case: &str) -> u64 {
    let output = run(Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=fixed_sequence::counted*")
        .arg(program)
        .arg(case)
        .env("GLIBC_TUNABLES", HWCAPS));
    let log = text(&output.stderr);
    let collected = log.lines().find_map(|line| line.split_once("Collected :"));
    let collected = collected.and_then(|(_, count)| count.trim().parse::<u64>().ok());
    let packets = text(&output.stdout).parse::<u64>().ok().filter(|&packets| packets > 0);
    let (Some(collected), Some(packets)) = (collected, packets) else {
        panic!("callgrind counted nothing of {case}: {log}");
    };
    collected * 100 / packets
}

/// What is kept: the compiler, and the counts.
fn kept() -> (String, BTreeMap<String, u64>) {
    let text = std::fs::read_to_string(FILE).unwrap_or_default();
    let mut compiler = String::new();
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.split_once(' ') {
            Some((name, count)) if let Ok(count) = count.trim().parse::<f64>() => {
                counts.insert(name.to_owned(), (count * 100.0).round() as u64);
            }
            _ => compiler = line.to_owned(),
        }
    }
    (compiler, counts)
}

fn bless(compiler: &str, counts: &BTreeMap<String, u64>) {
    let mut text = String::from(
        "# Instructions for a packet, sent and received, by two engines without links: 3 % more\n",
    );
    text += "# fails. Made by\n#\n#     ";
    text += BLESS;
    text += "\n#\n# from bench/engine/src/bin/fixed_sequence.rs, with\n";
    let _ = writeln!(text, "{compiler}");
    for (name, &count) in counts {
        let _ = writeln!(text, "{name:<14} {:>8.2}", count as f64 / 100.0);
    }
    std::fs::write(FILE, text).expect("the file can be written");
}

/// Whether it can be counted here; says why not.
fn is_possible() -> bool {
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !has_valgrind {
        assert_ne!(
            env::var("CI").as_deref(),
            Ok("true"),
            "valgrind is missing (CI leaves nothing out)"
        );
        println!("left out: counting instructions wants valgrind");
    }
    has_valgrind
}

#[test]
fn no_more_instructions_than_before() {
    if !is_possible() {
        return;
    }
    let (compiler, (kept_compiler, kept)) = (compiler(), kept());
    let is_blessing = env::var_os("URXE_BLESS").is_some();
    if compiler != kept_compiler && !is_blessing {
        println!("left out: {FILE} is of {kept_compiler}, this is {compiler}: {BLESS}");
        return;
    }
    let program = build();
    let names = text(&run(&mut Command::new(&program)).stdout);
    let counts: BTreeMap<String, u64> =
        names.lines().map(|name| (name.to_owned(), count(&program, name))).collect();
    if is_blessing {
        bless(&compiler, &counts);
        return;
    }
    let mut worse = String::new();
    for (name, &count) in &counts {
        let Some(&before) = kept.get(name) else {
            let _ = writeln!(worse, "{name} is not in the file");
            continue;
        };
        let growth = (count as f64 / before as f64 - 1.0) * 100.0;
        println!("{name:<14} {:>9.2} {growth:+.2} %", count as f64 / 100.0);
        if growth > LIMIT {
            let _ = writeln!(worse, "{name}: {before} before, {count} now, {growth:+.1} %");
        }
    }
    assert!(
        worse.is_empty(),
        "hundredths of an instruction a packet:\n{worse}if it is worth it: {BLESS}"
    );
}
