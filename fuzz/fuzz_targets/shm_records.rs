#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sheave_net::fuzz::shm_records(data));
