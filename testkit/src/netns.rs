//! Network namespaces for tests, joined by veth pairs.
//!
//! A test runs its body with [`with_namespaces`], which finds out how namespaces can be made here.
//! Everything made goes with the test: a [`Namespace`] with its drop, programs in it before it
//! (they borrow nothing, but the parts of a test drop in reverse order, and each program dies with
//! the thread that started it), interfaces with their namespace. A run that was killed leaves
//! namespaces behind; their names say which process made them, and the next run removes those whose
//! process is gone.
//!
//! A test that needs no more than that nobody else is there runs its body in [`alone`].

mod access;
mod alone;
mod namespace;
mod veth;

use std::io;

use thiserror::Error;

pub use access::with_namespaces;
pub use alone::alone;
pub use namespace::Namespace;
pub use veth::{INTERFACE, Joined, Offloads, Side, VethOptions};

use crate::process::ProcessError;

/// Why a namespace, or something in it, could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetnsError {
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ProcessError),
    /// The system said no.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// A tool printed something other than expected.
    #[error("{tool} printed no {expected}:\n{output}")]
    Output {
        /// The tool.
        tool: &'static str,
        /// What was looked for.
        expected: &'static str,
        /// What it printed.
        output: String,
    },
}
