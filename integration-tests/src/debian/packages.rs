//! Where the programs of Debian's packages are.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::binary::urxe_binary;
use testkit::left_out;
use testkit::netns::Namespace;

/// Names a folder where packages are unpacked (`dpkg -x`) that are not installed.
pub const ROOT_VARIABLE: &str = "URXE_DEBIAN_ROOT";

/// Packages that are installed, or unpacked in a folder.
#[derive(Clone, Debug)]
pub struct Packages {
    unpacked: Option<PathBuf>,
}

impl Packages {
    /// Looks for files, each with the package that it is from.
    ///
    /// Where one is missing, it says that `test` is left out and why, and gives nothing.
    ///
    /// # Panics
    ///
    /// With `CI=true` in the environment, when one is missing.
    pub fn find(test: &str, files: &[(&str, &str)]) -> Option<Self> {
        let packages = Self { unpacked: env::var_os(ROOT_VARIABLE).map(PathBuf::from) };
        let missing: Vec<_> = files
            .iter()
            .filter(|(file, _)| !packages.path(file).exists())
            .map(|(file, package)| format!("{file} (package {package})"))
            .collect();
        if missing.is_empty() {
            return Some(packages);
        }
        left_out::missing(&format!("{test}: not installed: {}", missing.join(", ")));
        None
    }

    /// Where a file of a package is, which says `/usr/...` of itself.
    pub fn path(&self, file: &str) -> PathBuf {
        match &self.unpacked {
            Some(root) => root.join(file.trim_start_matches('/')),
            None => PathBuf::from(file),
        }
    }

    /// Where a file is that may be installed though packages are unpacked elsewhere.
    pub fn path_or_installed(&self, file: &str) -> PathBuf {
        let unpacked = self.path(file);
        if unpacked.exists() { unpacked } else { PathBuf::from(file) }
    }

    /// The folder of libraries.
    pub fn libraries(&self) -> PathBuf {
        self.path(&format!("/usr/lib/{}-linux-gnu", env::consts::ARCH))
    }

    /// The folders where the loader is to look for libraries, besides where it does by itself: of
    /// UCX, whose modules need each other, or all of what is unpacked. There, links that packages make
    /// when they are installed are missing.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub fn library_folders(&self) -> io::Result<Vec<PathBuf>> {
        let Some(root) = &self.unpacked else { return Ok(vec![self.libraries().join("ucx")]) };
        let mut found = Vec::new();
        let mut folders = vec![root.join("lib"), root.join("usr/lib")];
        folders.retain(|folder| folder.exists());
        while let Some(folder) = folders.pop() {
            let mut libraries = false;
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                }
                libraries |= entry.file_name().to_string_lossy().contains(".so");
            }
            if libraries {
                found.push(folder);
            }
        }
        Ok(found)
    }

    /// A program under `urxe run`, in a network namespace; not started yet.
    pub fn command(&self, namespace: &Namespace, program: &Path) -> Command {
        let mut command = namespace.command(urxe_binary());
        command.args(["run", "--"]).arg(program);
        // What the caller of the tests has is not theirs to see.
        for variable in ["LD_PRELOAD", "URXE_DEVICES", "URXE_PCAP", "URXE_FAULTS"] {
            command.env_remove(variable);
        }
        match &self.unpacked {
            Some(_) => command.env("LD_LIBRARY_PATH", self.libraries()),
            None => command.env_remove("LD_LIBRARY_PATH"),
        };
        command
    }
}
