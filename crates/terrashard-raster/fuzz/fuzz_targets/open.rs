//! Any bytes as a raster: they read or are refused, within the budget, whatever format they begin like.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use terrashard_raster::{RasterSource, ReadLimits, Result, Window, open_with};

const LIMITS: ReadLimits = ReadLimits {
    window_bytes: 4 << 20,
    cache_bytes: 1 << 20,
};

fn read(source: &dyn RasterSource) -> Result<()> {
    let whole = source.metadata().window();
    let (width, height) = (whole.width.min(64), whole.height.min(64));
    let far = Window::new(whole.width - width, whole.height - height, width, height);
    source.read_window(far)?;
    source.read_mask(far)?;
    source.read_bands(Window::new(0, 0, width, height), &[0])?;
    Ok(())
}

fn attempt(path: &Path) -> Result<()> {
    let source = open_with(path, LIMITS)?;
    let annotations = source.annotations();
    assert_eq!(annotations.scales.len(), source.metadata().bands);
    read(&source)?;
    for level in 0..source.metadata().overviews.len().min(3) {
        if let Some(overview) = source.overview(level)? {
            read(&overview)?;
        }
    }
    Ok(())
}

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder");
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.with(|folder| {
        let path = folder.path().join("input");
        std::fs::write(&path, bytes).expect("writes");
        if let Err(error) = attempt(&path) {
            let message = error.to_string();
            assert!(message.contains("input"), "{message}");
        }
    });
});
