//! The program that is to run: where it is, and whether it can use urxe's libraries.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, getxattr, statvfs};
use rustix::process::{getgid, getuid};
use rustix::thread::no_new_privs;
use thiserror::Error;

use super::elf::{Loading, Target};
use super::library::Library;

/// Scripts whose interpreter is a script again, as far as Linux follows them (execve(2)).
const SCRIPTS_MAX: usize = 5;
/// How much of a file Linux looks at for the interpreter of a script (execve(2)).
const SCRIPT_LINE_MAX: usize = 255;

/// Why a program cannot run on urxe.
#[derive(Debug, Error)]
pub(super) enum ProgramError {
    #[error("there is no program {}{}", name.display(), place(name))]
    NotFound { name: OsString },
    #[error("{} is a folder, not a program", path.display())]
    Folder { path: PathBuf },
    #[error("{} may not be executed: {source}", path.display())]
    NotExecutable { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is neither an ELF program nor a script that begins with #!", path.display())]
    UnknownKind { path: PathBuf },
    #[error(
        "the script {} wants the interpreter {}, which is not there", script.display(),
        interpreter.display()
    )]
    NoInterpreter { script: PathBuf, interpreter: PathBuf },
    #[error("the script {} leads to more than {SCRIPTS_MAX} others", path.display())]
    TooManyScripts { path: PathBuf },
    #[error(
        "{} is a static program: it has its libraries built in, so it cannot use urxe's. Link it \
         dynamically (without -static); --force runs it all the same, for what it starts",
        path.display()
    )]
    Static { path: PathBuf },
    #[error(
        "{} {why}: then the loader ignores where urxe's libraries are (LD_LIBRARY_PATH). Run a copy \
         without that (cp makes one), or run urxe itself as that user: sudo urxe run -- ...",
        path.display()
    )]
    Privileged { path: PathBuf, why: String },
    #[error(
        "{} is built for another machine ({target}); urxe's library is for {own}. Run a program for \
         that, or build urxe for the program's machine",
        path.display()
    )]
    OtherTarget { path: PathBuf, target: Target, own: Target },
    #[error(
        "{} is built for another C library (musl: its loader is {loader}), and urxe's library needs \
         glibc. Build the program for glibc, or take it from a distribution that has it (Debian or \
         Fedora, not Alpine)",
        path.display()
    )]
    Musl { path: PathBuf, loader: String },
    #[error("{} wants the loader {loader}, which is not there", path.display())]
    NoLoader { path: PathBuf, loader: String },
}

fn place(name: &OsStr) -> &'static str {
    if is_path(name) { "" } else { " in PATH" }
}

/// What a program does that matters for how it is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    /// Its own search path, or the path of a library, leads to another libibverbs or librdmacm.
    pub(super) finds_other_library: bool,
}

/// The path of a program, looked up in `PATH` as execvp(3) does.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, ProgramError> {
    if is_path(name) {
        let path = PathBuf::from(name);
        return match path.exists() {
            true => is_executable(&path).map(|()| path),
            false => Err(ProgramError::NotFound { name: name.to_owned() }),
        };
    }
    // The default is that of execvp(3).
    let folders = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for folder in env::split_paths(&folders) {
        let path = folder.join(name);
        match is_executable(&path) {
            Ok(()) => return Ok(path),
            // A folder, or a file that is not executable, is passed over while there is another.
            Err(error) if path.exists() => refused = refused.or(Some(error)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| ProgramError::NotFound { name: name.to_owned() }))
}

fn is_path(name: &OsStr) -> bool {
    name.as_bytes().contains(&b'/')
}

fn is_executable(path: &Path) -> Result<(), ProgramError> {
    if path.is_dir() {
        return Err(ProgramError::Folder { path: path.to_owned() });
    }
    access(path, Access::EXEC_OK).map_err(|error| ProgramError::NotExecutable {
        path: path.to_owned(),
        source: error.into(),
    })
}

/// Looks at a program, and at the interpreter when it is a script.
pub(super) fn inspect(path: &Path, library: &Library) -> Result<Seen, ProgramError> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let mut head = [0; SCRIPT_LINE_MAX];
        let read = File::open(&path).and_then(|file| file.read_at(&mut head, 0));
        let head = match read {
            Ok(count) => &head[..count],
            // Executable, but not readable: its kind cannot be told, and the kernel will judge it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Seen::default());
            }
            Err(source) => return Err(ProgramError::Unreadable { path, source }),
        };
        if let Some(target) = Target::of(head) {
            return inspect_elf(path, target, library);
        }
        path = match interpreter(head) {
            Some(next) => script_interpreter(path, &next)?,
            None => return Err(ProgramError::UnknownKind { path }),
        };
    }
    Err(ProgramError::TooManyScripts { path })
}

/// The words of a script's first line: the interpreter, and at most one argument (execve(2)).
fn interpreter(head: &[u8]) -> Option<Vec<&OsStr>> {
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|byte| b" \t".contains(byte)).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(end);
    let words = [interpreter, argument.trim_ascii()].into_iter().filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(OsStr::from_bytes).collect();
    (!words.is_empty()).then_some(words)
}

/// The program that runs a script; of `#!/usr/bin/env NAME` the one that env finds.
fn script_interpreter(script: PathBuf, words: &[&OsStr]) -> Result<PathBuf, ProgramError> {
    let interpreter = PathBuf::from(words[0]);
    if !interpreter.exists() {
        return Err(ProgramError::NoInterpreter { script, interpreter });
    }
    is_executable(&interpreter)?;
    match words {
        // With an option (-S) or a variable, env itself is looked at, which runs in any case.
        [_, name]
            if interpreter.file_name() == Some(OsStr::new("env"))
                && !name.as_bytes().starts_with(b"-")
                && !name.as_bytes().iter().any(|byte| b"= \t".contains(byte)) =>
        {
            find(name)
        }
        _ => Ok(interpreter),
    }
}

fn inspect_elf(path: PathBuf, target: Target, library: &Library) -> Result<Seen, ProgramError> {
    let unreadable = |source| ProgramError::Unreadable { path: path.clone(), source };
    let own = Target::of_file(&library.file()).map_err(unreadable)?;
    if let Some(own) = own.filter(|own| *own != target) {
        return Err(ProgramError::OtherTarget { path, target, own });
    }
    let Loading { loader, rpath, needed } = Loading::of_file(&path).map_err(unreadable)?;
    let Some(loader) = loader else {
        // The loader itself may be run as a program, with one as its argument.
        let name = path.file_name().unwrap_or_default().as_bytes();
        if name.starts_with(b"ld-") || name.starts_with(b"ld.") {
            return Ok(Seen::default());
        }
        return Err(ProgramError::Static { path });
    };
    if loader.contains("ld-musl") {
        return Err(ProgramError::Musl { path, loader });
    }
    if !Path::new(&loader).exists() {
        return Err(ProgramError::NoLoader { path, loader });
    }
    if let Some(why) = privilege(&path).map_err(unreadable)? {
        return Err(ProgramError::Privileged { path, why });
    }
    let origin = fs::canonicalize(&path).map_err(unreadable)?;
    let origin = origin.parent().unwrap_or_else(|| Path::new("/"));
    let by_path = needed.iter().filter(|name| name.contains('/'));
    let by_path = by_path.filter_map(|name| Path::new(name).parent().map(Path::to_owned));
    let mut folders = rpath.iter().map(|folder| expand(folder, origin)).chain(by_path);
    Ok(Seen { finds_other_library: folders.any(|folder| library.is_shadowed_by(&folder)) })
}

/// A folder of a program's search path; `$ORIGIN` is where the program is (ld.so(8)).
fn expand(folder: &str, origin: &Path) -> PathBuf {
    let origin = origin.to_string_lossy();
    PathBuf::from(folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
}

/// What gives the program more than this user may, if anything does ("secure-execution mode" of
/// ld.so(8)).
fn privilege(path: &Path) -> io::Result<Option<String>> {
    const SETUID: u32 = 0o4000;
    const SETGID_AND_GROUP_MAY_EXECUTE: u32 = 0o2010;
    let is_ignored = statvfs(path)?.f_flag.contains(StatVfsMountFlags::NOSUID) || no_new_privs()?;
    if is_ignored {
        return Ok(None);
    }
    let found = fs::metadata(path)?;
    let mode = found.mode();
    if mode & SETUID != 0 && found.uid() != getuid().as_raw() {
        return Ok(Some(format!("is setuid (it becomes user {})", found.uid())));
    }
    if mode & SETGID_AND_GROUP_MAY_EXECUTE == SETGID_AND_GROUP_MAY_EXECUTE
        && found.gid() != getgid().as_raw()
    {
        return Ok(Some(format!("is setgid (it becomes group {})", found.gid())));
    }
    // Root has all capabilities already, so for root they change nothing (capabilities(7)).
    let has_capabilities = getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    if has_capabilities && !getuid().is_root() {
        return Ok(Some("has file capabilities (see getcap)".to_owned()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(head: &str) -> Option<Vec<&OsStr>> {
        interpreter(head.as_bytes())
    }

    #[test]
    fn the_first_line_of_a_script_is_read_as_linux_does() {
        assert_eq!(words("#!/bin/sh\nexit"), Some(vec![OsStr::new("/bin/sh")]));
        assert_eq!(
            words("#! /usr/bin/env  python3 -u \n"),
            Some(vec![OsStr::new("/usr/bin/env"), OsStr::new("python3 -u")])
        );
        assert_eq!(words("#!\n/bin/sh"), None);
        assert_eq!(words("echo"), None);
        assert_eq!(words(""), None);
    }

    #[test]
    fn origin_is_where_the_program_is() {
        let origin = Path::new("/opt/bin");
        assert_eq!(expand("$ORIGIN/../lib", origin), Path::new("/opt/bin/../lib"));
        assert_eq!(expand("${ORIGIN}", origin), Path::new("/opt/bin"));
        assert_eq!(expand("/usr/lib", origin), Path::new("/usr/lib"));
    }

    #[test]
    fn programs_are_looked_up_in_path() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        let missing = find(OsStr::new("no-such-program")).unwrap_err().to_string();
        assert_eq!(missing, "there is no program no-such-program in PATH");
        let missing = find(OsStr::new("./no-such-program")).unwrap_err().to_string();
        assert_eq!(missing, "there is no program ./no-such-program");
        assert!(matches!(find(OsStr::new("/tmp/")), Err(ProgramError::Folder { .. })));
        let plain = find(OsStr::new("/etc/passwd"));
        assert!(matches!(plain, Err(ProgramError::NotExecutable { .. })), "{plain:?}");
    }
}
