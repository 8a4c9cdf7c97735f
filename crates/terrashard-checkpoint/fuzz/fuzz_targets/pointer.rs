//! `checkpoints::pointer` with any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| terrashard_checkpoint_fuzz::checkpoints::pointer(bytes));
