#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sheave_learner::fuzz::learner_words(data));
