//! What the tests of urxe share: network namespaces, captures, tshark, the built command, and
//! simulations of whole devices.
//!
//! - [`netns`] makes network namespaces and veth pairs, as root or in a user namespace;
//! - [`binary`] builds the command once, [`process`] runs programs with a time limit;
//! - [`left_out`] says what a machine lacks;
//! - [`capture`] and [`tshark`] take captures and read them, [`scratch`] has a folder for files;
//! - [`sim`] plays whole devices on a network in memory, from a seed;
//! - [`fuzz`] has the bodies of the fuzz targets;
//! - [`rules`] finds where the rules of `docs/rules.md` are implemented and tested.
//!
//! The contract: what a test has made is gone when its value is dropped. Where the machine lacks
//! what a test wants, the test says so and is left out, but fails under `CI=true`. Nothing here is
//! part of a product; errors are typed all the same, since a test that fails in its set-up should
//! say why.
#![forbid(unsafe_code)]

pub mod binary;
pub mod capture;
pub mod fuzz;
pub mod left_out;
pub mod netns;
pub mod process;
pub mod rules;
pub mod scratch;
pub mod sim;
pub mod tshark;
