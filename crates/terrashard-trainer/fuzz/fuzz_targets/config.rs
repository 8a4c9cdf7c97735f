//! `configurations::config` with any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| terrashard_trainer_fuzz::configurations::config(bytes));
