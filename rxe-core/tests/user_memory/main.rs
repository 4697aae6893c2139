//! Memory that a program owns, and takes away while it is registered.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod faults;
#[path = "../common/pages.rs"]
mod pages;
// Where no fault is caught there is no handler to speak of.
#[cfg(all(target_arch = "x86_64", not(rxe_strict_mem)))]
mod signals;
