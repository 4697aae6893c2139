//! The target `parser` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| testkit::fuzz::run("parser", input));
