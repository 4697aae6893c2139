//! What is linked with libibverbs or librdmacm: all programs and libraries of Debian 12 that are.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::process::{self, ProcessError};
use testkit::scratch::Scratch;
use thiserror::Error;

use super::Packages;
use crate::urxe_run;

const LIMIT: Duration = Duration::from_secs(60);
/// The loader, which is asked to load a file as if it were to be run.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// The file names of what stands in for libibverbs and librdmacm.
const NAMES: [&str; 2] = ["libibverbs.so", "librdmacm.so"];

/// A program or library that needs symbols of libibverbs or librdmacm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elf {
    /// The package that it is from.
    pub package: &'static str,
    /// Its path, as installed.
    pub file: &'static str,
    /// Who loads it, and has what else it needs.
    pub host: Host,
    /// What it needs, each as `symbol@VERSION`.
    pub needs: BTreeSet<&'static str>,
}

/// Who loads a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Host {
    /// It is a program, or a library that names all it needs.
    Itself,
    /// A program, of which it is a module.
    Program(&'static str),
    /// Programs that have this library.
    Library(&'static str),
}

/// Why a file does not load as it should.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The loader cannot be run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// What the loader has told cannot be read.
    #[error("the loader's report: {0}")]
    Read(#[from] io::Error),
    /// A library, a symbol or a version is missing.
    #[error("{0}")]
    Incomplete(String),
    /// Symbols of verbs that are not taken from urxe's library, or not in the version asked for.
    #[error("not taken from urxe's library: {0}")]
    Elsewhere(String),
}

impl Elf {
    /// All of Debian 12's for amd64.
    pub fn all() -> Vec<Self> {
        let list = include_str!("../../testdata/elfs.txt");
        let lines: Vec<_> = list.lines().filter(|line| !line.starts_with('#')).collect();
        let read = |pair: &[&'static str]| {
            let mut words = pair.first()?.split(' ');
            let (package, file) = (words.next()?, words.next()?);
            let host = match (words.next(), words.next()) {
                (Some("in"), Some(program)) => Host::Program(program),
                (Some("with"), Some(library)) => Host::Library(library),
                _ => Host::Itself,
            };
            let needs = pair.get(1)?.split_whitespace().collect();
            Some(Self { package, file, host, needs })
        };
        lines.chunks(2).filter_map(read).collect()
    }

    /// Has the loader resolve all that the file and its libraries need, as before a run under `urxe
    /// run`, and checks that it gets each symbol of verbs from urxe's library.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: what is missing, or comes from elsewhere.
    pub fn check(&self, packages: &Packages) -> Result<(), LoadError> {
        let scratch = Scratch::new("elf")?;
        let file = packages.path(self.file);
        let (mut command, ours) = self.loader(packages, &file)?;
        command.env("LD_DEBUG_OUTPUT", scratch.file("told"));
        let seen = process::run(self.file, &mut command, LIMIT)?;
        let printed = format!("{}{}", seen.stdout, seen.stderr);
        let wrong = |line: &&str| {
            let words = ["not found", "undefined symbol", "symbol lookup error", "cannot"];
            words.iter().any(|words| line.contains(words))
        };
        let wrong: Vec<_> = printed.lines().filter(wrong).map(str::trim).collect();
        if !wrong.is_empty() || !seen.status.success() {
            return Err(LoadError::Incomplete(format!("{}: {}", seen.status, wrong.join("; "))));
        }
        let mut told = String::new();
        for entry in fs::read_dir(scratch.path())? {
            told += &fs::read_to_string(entry?.path())?;
        }
        self.check_bindings(&told, &file, &ours)
    }

    /// The loader, not started yet, and the folder of urxe's library.
    fn loader(&self, packages: &Packages, file: &Path) -> Result<(Command, PathBuf), LoadError> {
        let printed = process::run("urxe run", &mut urxe_run(["--print-env"]), LIMIT)?.success()?;
        let mut command = Command::new(LOADER);
        let mut ours = PathBuf::new();
        let mut preload = String::new();
        for line in printed.stdout.lines() {
            let Some((name, value)) = line.trim_start_matches("export ").split_once('=') else {
                continue;
            };
            let value = value.trim_matches('\'');
            match name {
                "LD_LIBRARY_PATH" => ours = PathBuf::from(value),
                "LD_PRELOAD" => preload = value.to_owned(),
                _ => {}
            }
        }
        let folders = [ours.clone()].into_iter().chain(packages.library_folders()?);
        let folders: Vec<_> = folders.map(|folder| folder.display().to_string()).collect();
        let with = match self.host {
            Host::Itself => None,
            Host::Program(_) => Some(file.to_owned()),
            Host::Library(library) => Some(packages.path(library)),
        };
        preload.extend(with.map(|file| format!(":{}", file.display())));
        match self.host {
            Host::Program(program) => command.arg(packages.path_or_installed(program)),
            Host::Itself | Host::Library(_) => command.arg(file),
        };
        command.env("LD_LIBRARY_PATH", folders.join(":")).env("LD_PRELOAD", preload);
        // As ldd -r: load and resolve, lazy symbols too, but run nothing.
        command.envs([("LD_TRACE_LOADED_OBJECTS", "1"), ("LD_WARN", "1"), ("LD_BIND_NOW", "1")]);
        command.env("LD_DEBUG", "bindings");
        Ok((command, ours))
    }

    /// Reads lines such as "binding file A [0] to B [0]: normal symbol `NAME' [VERSION]".
    fn check_bindings(&self, told: &str, file: &Path, ours: &Path) -> Result<(), LoadError> {
        let mut missing = self.needs.clone();
        let mut elsewhere = BTreeSet::new();
        for line in told.lines() {
            let Some((_, line)) = line.split_once("binding file ") else { continue };
            let mut words = line.split_whitespace();
            let from = Path::new(words.next().unwrap_or_default());
            let to = Path::new(words.nth(2).unwrap_or_default().trim_end_matches(':'));
            if to.parent() == Some(ours) {
                let symbol = line.split_once('`').and_then(|(_, rest)| rest.split_once('\''));
                if let (true, Some((name, rest))) = (from == file, symbol) {
                    missing.remove(
                        format!("{name}@{}", rest.trim().trim_matches(['[', ']'])).as_str(),
                    );
                }
            } else if to != from && NAMES.iter().any(|name| is_named(to, name)) {
                elsewhere.insert(line.to_owned());
            }
        }
        elsewhere.extend(missing.into_iter().map(str::to_owned));
        if elsewhere.is_empty() {
            return Ok(());
        }
        Err(LoadError::Elsewhere(elsewhere.into_iter().collect::<Vec<_>>().join("; ")))
    }
}

fn is_named(file: &Path, name: &str) -> bool {
    file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf() -> Elf {
        let needs = ["ibv_a@IBVERBS_1.1", "rdma_b@RDMACM_1.0"].into_iter().collect();
        Elf { package: "p", file: "/x", host: Host::Itself, needs }
    }

    fn check(bindings: &[(&str, &str, &str, &str)]) -> Result<(), String> {
        let line = |(from, to, name, version): &(&str, &str, &str, &str)| {
            format!(
                "  1:\tbinding file {from} [0] to {to} [0]: normal symbol `{name}' [{version}]\n"
            )
        };
        let told: String = bindings.iter().map(line).collect();
        let checked = elf().check_bindings(&told, Path::new("/x"), Path::new("/ours"));
        checked.map_err(|error| error.to_string())
    }

    const A: (&str, &str, &str, &str) = ("/x", "/ours/libibverbs.so.1", "ibv_a", "IBVERBS_1.1");
    const B: (&str, &str, &str, &str) = ("/x", "/ours/librdmacm.so.1", "rdma_b", "RDMACM_1.0");

    #[test]
    fn each_symbol_is_wanted_from_our_folder_in_its_version() {
        assert_eq!(check(&[A, B, ("/x", "/lib/libc.so.6", "puts", "GLIBC_2.2.5")]), Ok(()));
        let wrong = [
            vec![A],
            vec![A, ("/y", B.1, B.2, B.3)],
            vec![A, (B.0, B.1, B.2, "RDMACM_1.1")],
            vec![A, (B.0, "/lib/librdmacm.so.1", B.2, B.3)],
            // Another library of the program takes it from elsewhere.
            vec![A, B, ("/y", "/lib/librdmacm.so.1.3", "rdma_c", "RDMACM_1.0")],
        ];
        for bindings in wrong {
            assert!(check(&bindings).is_err(), "{bindings:?}");
        }
    }

    #[test]
    fn the_list_has_all_of_debian_12() {
        let all = Elf::all();
        assert_eq!(all.len(), 116);
        assert!(all.iter().all(|elf| !elf.needs.is_empty()));
    }
}
