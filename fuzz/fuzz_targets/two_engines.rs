//! The target `two_engines` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| testkit::fuzz::run("two_engines", input));
