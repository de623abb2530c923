#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sheave_posterior::fuzz::member_settings(data));
