//! A library for `LD_PRELOAD` that shows a program RDMA devices where the kernel would show them.
//!
//! Some programs look beside the verbs: UCX refuses a device without a character device
//! `/dev/infiniband/uverbs0`, and reads GID types from `/sys/class/infiniband`. `urxe run` preloads
//! this library, and names in `URXE_SYSFS` a folder with what they look for (`ibverbs_api::sysfs`
//! writes it). Each function of the C library that takes a path is replaced by one that puts that
//! folder in place of the kernel's, and calls the C library's own:
//!
//! | path | instead |
//! |---|---|
//! | `/sys/class/infiniband`, and all below | `class/infiniband` in the folder |
//! | `/sys/class/infiniband_verbs`, and all below | `class/infiniband_verbs` in the folder |
//! | `/dev/infiniband` | `dev/infiniband` in the folder |
//! | `/dev/infiniband/NAME` | what the link `dev/infiniband/NAME` in the folder leads to: `/dev/null` |
//!
//! The contract: without `URXE_SYSFS` nothing changes. A call for any other path costs one
//! comparison, and reaches the C library as it came. Nothing allocates, locks or panics, since
//! these functions are called from anywhere, by allocators too. Paths relative to `/sys` or `/dev`,
//! with `..` in them, or given to the kernel directly are not seen, and neither are these folders
//! in a list of `/sys/class` or `/dev`.
//!
//! Not under `forbid(unsafe_code)`, since all of it is calls between C and C; it is small.

pub mod calls;
mod next;
mod path;
mod root;
