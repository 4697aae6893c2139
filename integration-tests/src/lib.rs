//! Tests of urxe over real links: what they share.
//!
//! The tests are in `tests/`, a file for each subject. They run the built command in network
//! namespaces that they make. The tests against Linux's own driver are a program of their own,
//! `lab/linux-pingpong`.
//!
//! The contract: [`Pingpong`] and [`Dump`] run the command as a user would, with a time limit, and
//! report what it printed; only the tests judge. Nothing changes the host: namespaces, processes
//! and files are gone when a test ends, failed or not.
#![forbid(unsafe_code)]

mod debian;
mod dump;
mod mesh;
mod pingpong;
mod under;

pub use debian::{
    BLESS_VARIABLE, Case, Document, Elf, Ends, Failure, Host, LoadError, Outcome, Packages, Place,
    ROOT_VARIABLE, outcomes,
};
pub use dump::Dump;
pub use mesh::{Member, Mesh, MeshError, Report};
pub use pingpong::{Pingpong, PingpongError, Played};
pub use under::{CompileError, compile, run_under, start_under, urxe_run};
