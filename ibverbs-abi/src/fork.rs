//! Processes that fork.
//!
//! Adapters read and write memory by its physical pages, which a fork may give to the child. Here
//! nothing does: the engine is a thread of the parent, and reads and writes the parent's memory as
//! the parent itself does.

use std::ffi::c_void;

use crate::call::{MinusOne, Positive, answer};

/// `IBV_FORK_UNNEEDED`: memory may be registered, and the process fork, in any order.
const UNNEEDED: u32 = 2;

/// `ibv_fork_init(3)`.
pub(crate) extern "C" fn ibv_fork_init() -> Positive {
    answer("ibv_fork_init", || Ok(()))
}

/// `ibv_is_fork_initialized(3)`.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> u32 {
    UNNEEDED
}

/// `ibv_dontfork_range`, of which nothing is to be done.
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> MinusOne {
    answer("ibv_dontfork_range", || Ok(()))
}

/// `ibv_dofork_range`, of which nothing is to be done.
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> MinusOne {
    answer("ibv_dofork_range", || Ok(()))
}
