//! Any text as the metadata files of a Sentinel-2 product, which are the two halves around the first zero byte.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use terrashard_raster::{RasterSource, open};

const IMAGE: &[u8] = include_bytes!("../../tests/data/water_B11_20m.jp2");

thread_local! {
    static FOLDER: tempfile::TempDir = {
        let folder = tempfile::tempdir().expect("a folder");
        let images = folder.path().join("GRANULE/L2A/IMG_DATA/R20m");
        fs::create_dir_all(&images).expect("makes it");
        fs::write(images.join("T33UUU_B11_20m.jp2"), IMAGE).expect("writes");
        folder
    };
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.with(|folder| {
        let at = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        let (product, granule) = bytes.split_at(at);
        fs::write(folder.path().join("MTD_MSIL2A.xml"), product).expect("writes");
        fs::write(folder.path().join("GRANULE/L2A/MTD_TL.xml"), granule).expect("writes");
        if let Ok(source) = open(folder.path()) {
            let annotations = source.annotations();
            assert!(annotations.scales[0].is_finite());
        }
    });
});
