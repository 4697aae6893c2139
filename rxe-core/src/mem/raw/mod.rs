//! The few functions that touch registered bytes.
//!
//! One of these modules does it all:
//!
//! | | where | memory that may go away |
//! |---|---|---|
//! | `caught` | x86-64 | the fault is caught ([`super::catch`]) |
//! | `atomic` | elsewhere, and with `--cfg rxe_strict_mem`: memory of our own | |
//! | `by_kernel` | there too: memory of somebody else | the kernel copies, and says so |
//!
//! Beside them, `summed` sums what it copies, on x86-64.
//!
//! Under Miri, which has no kernel to ask, `atomic` does it for all memory.

#![allow(unsafe_code)]

#[cfg(any(not(target_arch = "x86_64"), miri, rxe_strict_mem))]
mod atomic;
#[cfg(all(any(not(target_arch = "x86_64"), rxe_strict_mem), not(miri)))]
mod by_kernel;
#[cfg(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem)))]
mod caught;
#[cfg(any(not(target_arch = "x86_64"), miri, rxe_strict_mem))]
mod either;
#[cfg(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem)))]
mod summed;

#[cfg(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem)))]
pub(super) use caught::{
    CATCHES, compare_swap, fetch_add, load, load_u64, prepare, recover, store, store_u64, touch,
    touch_to_write,
};
#[cfg(any(not(target_arch = "x86_64"), miri, rxe_strict_mem))]
pub(super) use either::{
    CATCHES, compare_swap, fetch_add, load, load_u64, prepare, recover, store, store_u64, touch,
    touch_to_write,
};

#[cfg(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem)))]
pub(super) use summed::{can_sum, load_summed};

/// The memory is not there, or not for this access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unmapped;
