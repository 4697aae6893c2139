//! Which paths lead elsewhere, and where.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use crate::root::root;

/// Room for a path and the 0 behind it (`PATH_MAX` of limits.h).
pub(crate) const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Room for one path, on the stack of the caller.
pub(crate) struct Buffer {
    bytes: [MaybeUninit<u8>; PATH_MAX],
    len: usize,
}

impl Buffer {
    /// An empty one; its memory is not touched.
    pub(crate) fn new() -> Self {
        Self { bytes: [const { MaybeUninit::uninit() }; PATH_MAX], len: 0 }
    }

    /// Adds bytes; without room for all of them, none.
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len.checked_add(bytes.len())?;
        let room = self.bytes.get_mut(self.len..end)?;
        for (to, from) in room.iter_mut().zip(bytes) {
            to.write(*from);
        }
        self.len = end;
        Some(())
    }

    /// The path, for C; `None` when it has no 0 at its end.
    fn as_c(&self) -> Option<&CStr> {
        let bytes = self.bytes.get(..self.len)?;
        // SAFETY: `push` has written all up to `len`, and MaybeUninit<u8> is laid out as u8.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), self.len) };
        CStr::from_bytes_with_nul(bytes).ok()
    }
}

/// The path to open instead of `path`: in `buffer`, or `path` itself where nothing is to change.
///
/// # Safety
///
/// `path` is null, or text that ends with 0 and does not change meanwhile. The result is valid as
/// long as both arguments are.
pub(crate) unsafe fn instead_of(path: *const c_char, buffer: &mut Buffer) -> *const c_char {
    let Some(root) = root() else { return path };
    if path.is_null() {
        return path;
    }
    // SAFETY: the caller says so.
    let asked = unsafe { CStr::from_ptr(path) };
    match redirect(asked.to_bytes(), root, buffer) {
        Some(instead) => instead.as_ptr(),
        None => path,
    }
}

/// The path that stands for `asked` in the folder `root`; `None` when it is not one of ours.
fn redirect<'a>(asked: &[u8], root: &[u8], buffer: &'a mut Buffer) -> Option<&'a CStr> {
    let is_device = asked.starts_with(b"/dev/");
    let rest = match is_device {
        true => below(asked, b"/dev/infiniband")?,
        // The longer name first: it begins with the shorter one.
        false => below(asked, b"/sys/class/infiniband_verbs")
            .or_else(|| below(asked, b"/sys/class/infiniband"))?,
    };
    // `/sys/class/x` is `class/x` in the folder, `/dev/x` is `dev/x`.
    let name = if is_device { asked } else { asked.strip_prefix(b"/sys")? };
    buffer.push(root)?;
    buffer.push(name)?;
    buffer.push(b"\0")?;
    if is_device && rest.iter().any(|&byte| byte != b'/') {
        follow(buffer);
    }
    buffer.as_c()
}

/// What follows `prefix`, when `path` is that or below it.
fn below<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(prefix)?;
    matches!(rest, [] | [b'/', ..]).then_some(rest)
}

/// Puts what the link leads to in place of its path, so that also a program which asks about links
/// (`lstat`) sees a character device; without such a link it stays as it is, and will be missing.
fn follow(buffer: &mut Buffer) {
    let Some(link) = buffer.as_c() else { return };
    let mut target = [0_u8; 256];
    // Not through the C library, whose readlink is replaced here.
    // SAFETY: `link` ends with 0, and `target` has the length that is told.
    let len = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            link.as_ptr(),
            target.as_mut_ptr(),
            target.len() - 1,
        )
    };
    let Ok(len @ 1..) = usize::try_from(len) else { return };
    // The array is zero behind the target.
    if let Some(target) = target.get(..=len) {
        buffer.len = 0;
        // It fits: the buffer is longer than the array.
        let _ = buffer.push(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(asked: &str) -> Option<String> {
        let mut buffer = Buffer::new();
        let path = redirect(asked.as_bytes(), b"/run/u", &mut buffer)?;
        Some(path.to_str().unwrap().to_owned())
    }

    #[test]
    fn paths_of_devices_lead_to_the_folder() {
        for (asked, instead) in [
            ("/sys/class/infiniband", "/run/u/class/infiniband"),
            ("/sys/class/infiniband/", "/run/u/class/infiniband/"),
            ("/sys/class/infiniband/a/ports/1/gids/0", "/run/u/class/infiniband/a/ports/1/gids/0"),
            ("/sys/class/infiniband_verbs/uverbs0", "/run/u/class/infiniband_verbs/uverbs0"),
            ("/dev/infiniband", "/run/u/dev/infiniband"),
            ("/dev/infiniband/", "/run/u/dev/infiniband/"),
            // There is no such link.
            ("/dev/infiniband/uverbs0", "/run/u/dev/infiniband/uverbs0"),
        ] {
            assert_eq!(redirected(asked).as_deref(), Some(instead));
        }
    }

    #[test]
    fn other_paths_stay() {
        for asked in [
            "",
            "/",
            "/sys/class/infiniband_mad",
            "/sys/class/infiniban",
            "/sys/class/net/lo",
            "/dev/infiniband0",
            "/dev/null",
            "sys/class/infiniband",
            "/home/sys/class/infiniband",
        ] {
            assert_eq!(redirected(asked), None, "{asked}");
        }
    }

    #[test]
    fn a_path_without_room_stays() {
        assert_eq!(redirected(&format!("/sys/class/infiniband/{}", "x".repeat(PATH_MAX))), None);
    }

    #[test]
    fn a_device_is_what_its_link_leads_to() {
        let root = std::env::temp_dir().join(format!("urxe-unit-preload-{}", std::process::id()));
        std::fs::create_dir_all(root.join("dev/infiniband")).unwrap();
        std::os::unix::fs::symlink("/dev/null", root.join("dev/infiniband/uverbs0")).unwrap();
        let mut buffer = Buffer::new();
        let root_bytes = root.to_str().unwrap().as_bytes();
        let path = redirect(b"/dev/infiniband/uverbs0", root_bytes, &mut buffer);
        assert_eq!(path, Some(c"/dev/null"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
