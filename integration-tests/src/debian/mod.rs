//! Unmodified programs of Debian's packages, run under `urxe run`.

mod document;
mod elf;
mod packages;
mod pair;
mod suite;

pub use document::{BLESS_VARIABLE, Document};
pub use elf::{Elf, Host, LoadError};
pub use packages::{Packages, ROOT_VARIABLE};
pub use pair::{Case, Ends, Failure, Place};
pub use suite::{Outcome, outcomes};
