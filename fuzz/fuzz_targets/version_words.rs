#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sheave_rpc::fuzz::version_words(data));
