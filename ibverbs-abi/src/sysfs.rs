//! The folder that stands for /sys: programs read attributes of devices there.

use std::ffi::c_char;

use crate::call::{Count, missing};

missing! {
    ENOENT as Count:
        ibv_read_sysfs_file, ibv_read_ibdev_sysfs_file;
}

/// `ibv_get_sysfs_path`: the folder that the kernel shows its devices in. There is none of ours yet.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}
