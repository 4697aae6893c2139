//! What a machine lacks, and the tests that are left out for it.

use std::env;
use std::io::{self, Write};

/// Says that a test, or a part of one, is left out, and why.
///
/// It is seen also where the test passes: `cargo test` keeps what a test prints by the macros of the
/// standard library to itself then, but not this.
pub fn left_out(what: &str) {
    // A line in one piece, since tests run side by side. Nobody may be listening.
    let _ = io::stderr().write_all(format!("left out: {what}\n").as_bytes());
}

/// As [`left_out`], for what a machine can have installed.
///
/// # Panics
///
/// With `CI=true` in the environment: nothing is left out there.
pub fn missing(what: &str) {
    assert!(env::var("CI").as_deref() != Ok("true"), "{what} (CI leaves nothing out)");
    left_out(what);
}
