//! `texts::index` with any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| terrashard_raster_fuzz::texts::index(bytes));
