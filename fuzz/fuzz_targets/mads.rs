//! The target `mads` under libFuzzer.
#![no_main]

#[path = "../../rdma-cm/tests/mads/mod.rs"]
mod mads;

libfuzzer_sys::fuzz_target!(|input: &[u8]| mads::run(input));
