//! The target `responder` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| testkit::fuzz::run("responder", input));
