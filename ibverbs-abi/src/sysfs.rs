//! The folder that stands for /sys: programs read attributes of devices there.
//!
//! The kernel shows none of these devices, so the folder is one that the facade writes
//! (`ibverbs_api::sysfs`), and paths below `/sys/class/infiniband` mean what is in it.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ibverbs_api::sysfs::{SYSFS_VARIABLE, publish};

use crate::call::{Count, Refused, Uncancelled, answer, missing};

/// What the kernel calls it.
const KERNELS: &CStr = c"/sys";
/// Where the kernel would show RDMA devices.
const SHOWN: [&str; 2] = ["/sys/class/infiniband", "/sys/class/infiniband_verbs"];

missing! {
    ENOENT as Count:
        ibv_read_ibdev_sysfs_file;
}

/// The folder: the one that `urxe run` shows to the program, or else one of its own; the kernel's
/// where none can be written, since a program expects some path.
fn root() -> &'static CStr {
    static ROOT: OnceLock<CString> = OnceLock::new();
    ROOT.get_or_init(|| {
        let shown = std::env::var_os(SYSFS_VARIABLE).map(PathBuf::from);
        let shown = shown.filter(|path| path.is_absolute());
        let root = shown.map_or_else(own, Ok).and_then(|path| {
            let path = path.into_os_string().into_vec();
            CString::new(path).map_err(|_| Refused::invalid("the path has a 0 in it"))
        });
        root.unwrap_or_else(|refused| {
            tracing::warn!(target: "rxe::abi", %refused, "no folder stands for /sys");
            KERNELS.to_owned()
        })
    })
}

fn own() -> Result<PathBuf, Refused> {
    let devices = ibverbs_api::devices()?;
    publish(&devices).map_err(|error| Refused::new(error.errno(), error.to_string()))
}

/// `ibv_get_sysfs_path`: the folder that has `class/infiniband`, as `/sys` would.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    let _uncancelled = Uncancelled::new();
    root().as_ptr()
}

/// `ibv_read_sysfs_file`: the text of an attribute, without the end of its line; its length.
///
/// An attribute that does not fit, the 0 at its end included, is refused: half a GID is worse than
/// none.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> Count {
    answer("ibv_read_sysfs_file", || {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Refused::invalid("a pointer is NULL that must not be"));
        }
        // SAFETY: not NULL, so they are texts of the program.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = here(Path::new(OsStr::from_bytes(dir.to_bytes())));
        let path = path.join(OsStr::from_bytes(file.to_bytes()));
        let text = fs::read(&path).map_err(|error| unreadable(&path, &error))?;
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        let length = i32::try_from(text.len()).ok().filter(|_| text.len() < size);
        let length = length.ok_or_else(|| Refused::new(libc::ENOSPC, "the text does not fit"))?;
        // SAFETY: there is room for `size` bytes, which is more than the text has.
        unsafe {
            buf.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            buf.add(text.len()).write(0);
        }
        Ok(length)
    })
}

fn unreadable(path: &Path, error: &io::Error) -> Refused {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Refused::new(errno, format!("{}: {error}", path.display()))
}

/// Where a folder of the kernel's is here.
fn here(dir: &Path) -> PathBuf {
    let root = Path::new(OsStr::from_bytes(root().to_bytes()));
    match dir.strip_prefix("/sys") {
        Ok(rest) if SHOWN.iter().any(|shown| dir.starts_with(shown)) => root.join(rest),
        _ => dir.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dir: &CStr, file: &CStr, size: usize) -> Option<String> {
        let mut buffer = [b'x' as c_char; 64];
        assert!(size < buffer.len());
        // SAFETY: texts, and a buffer that is larger than told.
        let length =
            unsafe { ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), buffer.as_mut_ptr(), size) };
        assert_eq!(buffer[size], b'x' as c_char, "nothing is written beyond");
        let length = usize::try_from(length.0).ok()?;
        // SAFETY: it ended the text, or would have said that it does not fit.
        let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
        assert_eq!(text.to_bytes().len(), length);
        Some(text.to_str().unwrap().to_owned())
    }

    #[test]
    fn attributes_are_read_from_the_folder() {
        // SAFETY: it gives a text that lasts.
        let root = unsafe { CStr::from_ptr(ibv_get_sysfs_path()) };
        assert!(Path::new(root.to_str().unwrap()).join("class/infiniband").is_dir());
        let (dir, file) = (c"/sys/class/infiniband_verbs", c"abi_version");
        assert_eq!(read(dir, file, 2).as_deref(), Some("6"));
        assert_eq!(read(dir, file, 1), None, "no room for the 0");
        assert_eq!(read(dir, file, 0), None);
        assert_eq!(read(dir, c"board_id", 60), None);
        let text = read(c"/proc/self", c"comm", 60).unwrap();
        assert!(!text.is_empty() && !text.ends_with('\n'));
    }
}
