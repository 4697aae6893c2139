//! The folder that is shown: read from the environment when the library is loaded.

use std::ffi::CStr;
use std::sync::OnceLock;

use crate::path::PATH_MAX;

/// The variable with the folder's path (`ibverbs_api::sysfs::SYSFS_VARIABLE`).
const VARIABLE: &CStr = c"URXE_SYSFS";

/// A path, in place: nothing here may allocate.
struct Root {
    bytes: [u8; PATH_MAX],
    len: usize,
}

static ROOT: OnceLock<Root> = OnceLock::new();

/// The folder; `None` when there is none to show, or the library is still being loaded.
pub(crate) fn root() -> Option<&'static [u8]> {
    let root = ROOT.get()?;
    root.bytes.get(..root.len)
}

/// Run by the loader, before the program's own code: no other thread can change the environment,
/// and a program that clears it later still sees its devices.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        // SAFETY: the name ends with 0; nothing else runs that could change the environment.
        let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        if value.is_null() {
            return;
        }
        // SAFETY: getenv gives text that ends with 0, and it is copied before anything changes it.
        let value = unsafe { CStr::from_ptr(value) }.to_bytes();
        let mut root = Root { bytes: [0; PATH_MAX], len: value.len() };
        // A path that is too long is none that could be opened.
        if let Some(bytes) = root.bytes.get_mut(..value.len())
            && value.starts_with(b"/")
        {
            bytes.copy_from_slice(value);
            // The loader runs this once, so there is no value yet.
            let _ = ROOT.set(root);
        }
    }
    at_load
};
