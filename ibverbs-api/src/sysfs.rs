//! What programs look for in `/sys/class/infiniband` and `/dev/infiniband`, in a folder of ours.
//!
//! Some programs look beside the verbs: UCX wants a character device `/dev/infiniband/uverbs0` and
//! reads GID types from sysfs, Open MPI wants a folder `class/infiniband`. A device in user space
//! has neither, so [`publish`] writes such a folder, and `urxe run` shows it to the program in
//! their place (crate urxe-preload). `ibv_get_sysfs_path` of the C library names it too.
//!
//! The contract: a published folder never changes, and its name is made of its content, so many
//! processes share one, a process that is killed leaves nothing of its own behind, and there are
//! as many folders as there have been sets of devices and addresses. Whoever writes a new one
//! removes those that nobody has asked for in a month. All are in [`runtime_dir`], which belongs to
//! the user.
//!
//! Only GIDs that exist have files: Linux has a file for each index of the table, and reading that
//! of an empty index fails there. Counters are left out, since nothing keeps files up to date.

mod runtime_dir;
mod store;
mod tree;

use std::path::PathBuf;

use crate::device::Device;

pub use runtime_dir::{RuntimeDirError, runtime_dir};
pub use store::PublishError;
pub use tree::uverbs_name;

use tree::Tree;

/// The variable that tells a program's processes where the folder is: `urxe run` sets it, the
/// preload library reads it.
pub const SYSFS_VARIABLE: &str = "URXE_SYSFS";

/// Writes the folder for these devices, unless it is there already, and returns its path.
///
/// It has `class/infiniband`, `class/infiniband_verbs` and `dev/infiniband`: so it stands for
/// `/sys` (`ibv_get_sysfs_path`), and its `dev` for `/dev`. The device at index n of `devices` is
/// `uverbs<n>` ([`uverbs_name`]), so pass the whole list of [`crate::devices`].
///
/// # Errors
///
/// [`PublishError`]: there is no folder that belongs to the user, or it cannot be written.
pub fn publish(devices: &[Device]) -> Result<PathBuf, PublishError> {
    let base = runtime_dir()?.join("sysfs");
    store::publish(&base, &Tree::of(devices))
}
