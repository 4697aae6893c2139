//! The variables that make a program run on urxe.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ibverbs_api::Device;
use ibverbs_api::sysfs::{self, SYSFS_VARIABLE};

use super::library::Library;

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const PRELOAD: &str = "LD_PRELOAD";

/// Variables to set, in the order in which they were first set.
#[derive(Debug, Default)]
pub(super) struct Environment {
    variables: Vec<(&'static str, OsString)>,
}

impl Environment {
    /// urxe's libraries come before all that the caller has in `LD_LIBRARY_PATH`.
    pub(super) fn new(library: &Library) -> Self {
        let mut environment = Self::default();
        let path = prepended(&library.folder, env::var_os(LIBRARY_PATH).as_deref());
        environment.set(LIBRARY_PATH, path);
        environment
    }

    /// Sets a variable, also one that was set before.
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        let value = value.into();
        match self.variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.variables.push((name, value)),
        }
    }

    /// Has the preload library show these devices to the program.
    ///
    /// Where that cannot be, most programs run all the same, so it is only told.
    pub(super) fn add_preload(&mut self, library: &Library, devices: &[Device]) {
        let problem = match (&library.preload, sysfs::publish(devices)) {
            (Some(preload), Ok(root)) => {
                self.preload(preload);
                self.set(SYSFS_VARIABLE, root);
                return;
            }
            (None, _) => "liburxe_preload.so is not beside the library".to_owned(),
            (_, Err(error)) => error.to_string(),
        };
        eprintln!(
            "urxe run: note: {problem}; so a program that looks for /sys/class/infiniband, such as \
             one on UCX, finds no device (--no-preload leaves out this note)"
        );
    }

    /// Has the loader map urxe's library before any other of its name: for a program that says
    /// itself where its libraries are.
    pub(super) fn add_library_to_preload(&mut self, library: &Library) {
        self.preload(&library.file());
    }

    /// What is to be set.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, &OsStr)> {
        self.variables.iter().map(|(name, value)| (*name, value.as_os_str()))
    }

    /// Writes the variables as commands for sh.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for (name, value) in self.variables() {
            write!(out, "export {name}='")?;
            out.write_all(&quoted(value.as_bytes()))?;
            writeln!(out, "'")?;
        }
        Ok(())
    }

    /// Adds to `LD_PRELOAD`, behind what is there: a sanitizer wants to be first.
    fn preload(&mut self, file: &Path) {
        let set_here = self.variables().find(|(name, _)| *name == PRELOAD);
        let old = set_here.map(|(_, value)| value.to_owned()).or_else(|| env::var_os(PRELOAD));
        self.set(PRELOAD, appended(old.as_deref(), file));
    }
}

/// A folder, then the list that was there; the folder is not named twice in a row.
fn prepended(folder: &Path, list: Option<&OsStr>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(list) = list.filter(|list| !list.is_empty()) {
        let rest = list.as_bytes().strip_prefix(path.as_bytes());
        match rest {
            Some([]) => {}
            // ld.so(8): a semicolon separates too.
            Some([b':' | b';', rest @ ..]) => {
                path.push(":");
                path.push(OsStr::from_bytes(rest));
            }
            _ => {
                path.push(":");
                path.push(list);
            }
        }
    }
    path
}

/// The list that was there, then a file, unless the list has it.
fn appended(list: Option<&OsStr>, file: &Path) -> OsString {
    let mut result = list.unwrap_or_default().to_owned();
    let mut parts = result.as_bytes().split(|byte| b": ".contains(byte));
    if parts.any(|part| part == file.as_os_str().as_bytes()) {
        return result;
    }
    if !result.is_empty() {
        result.push(":");
    }
    result.push(file);
    result
}

/// Text between single quotes of sh: such a quote within ends them, and begins them anew.
fn quoted(text: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            _ => quoted.push(byte),
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_folders_stay_behind_urxes() {
        let ours = Path::new("/opt/urxe");
        let path = |list: &str| prepended(ours, Some(OsStr::new(list))).into_string().unwrap();
        assert_eq!(prepended(ours, None), "/opt/urxe");
        assert_eq!(path(""), "/opt/urxe");
        assert_eq!(path("/a:/b"), "/opt/urxe:/a:/b");
        assert_eq!(path("/opt/urxe"), "/opt/urxe");
        assert_eq!(path("/opt/urxe:/a"), "/opt/urxe:/a");
        assert_eq!(path("/opt/urxe2:/a"), "/opt/urxe:/opt/urxe2:/a");
    }

    #[test]
    fn what_the_caller_preloads_stays_first() {
        let ours = Path::new("/u.so");
        let list = |old: Option<&str>| appended(old.map(OsStr::new), ours).into_string().unwrap();
        assert_eq!(list(None), "/u.so");
        assert_eq!(list(Some("")), "/u.so");
        assert_eq!(list(Some("libasan.so.8")), "libasan.so.8:/u.so");
        assert_eq!(list(Some("/a.so /u.so")), "/a.so /u.so");
        assert_eq!(list(Some("/x/u.so")), "/x/u.so:/u.so");
    }

    #[test]
    fn values_are_quoted_for_sh() {
        let mut environment = Environment::default();
        environment.set("A", "it's $HOME");
        environment.set("B", "");
        environment.set("B", "2");
        let mut out = Vec::new();
        environment.print(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, "export A='it'\\''s $HOME'\nexport B='2'\n");
    }
}
