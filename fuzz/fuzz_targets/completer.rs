//! The target `completer` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| testkit::fuzz::run("completer", input));
