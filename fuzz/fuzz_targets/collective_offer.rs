#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sheave_collective::fuzz::collective_offer(data));
