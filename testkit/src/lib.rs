//! What the tests of urxe share: network namespaces, captures, tshark, the built command, and
//! simulations of whole devices.
//!
//! Nothing here is part of a product. Errors are typed all the same, since a test that fails in
//! its set-up should say why.
#![forbid(unsafe_code)]

pub mod binary;
pub mod capture;
pub mod netns;
pub mod process;
pub mod scratch;
pub mod sim;
pub mod tshark;
