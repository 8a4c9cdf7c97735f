//! What is tried with any bytes as a raster or as the metadata of one: it reads or is refused in one line, within the budget.

use std::fs;
use std::path::Path;
use std::time::Duration;

use terrashard_raster::{RasterSource, ReadLimits, Result, Window, open_with};

const LIMITS: ReadLimits = ReadLimits {
    window_bytes: 4 << 20,
    cache_bytes: 1 << 20,
    patience: Duration::ZERO,
};

/// A band of a product, whose metadata is tried.
const BAND: &[u8] = include_bytes!("../../tests/data/water_B11_20m.jp2");

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder");
    static PRODUCT: tempfile::TempDir = {
        let folder = tempfile::tempdir().expect("a folder");
        let images = folder.path().join("GRANULE/L2A/IMG_DATA/R20m");
        fs::create_dir_all(&images).expect("makes it");
        fs::write(images.join("T33UUU_B11_20m.jp2"), BAND).expect("writes");
        folder
    };
}

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
    let bands = source.metadata().bands;
    assert_eq!(annotations.scales.len(), bands);
    assert_eq!(annotations.offsets.len(), bands);
    assert_eq!(source.metadata().descriptions.len(), bands);
    read(&source)?;
    for level in 0..source.metadata().overviews.len().min(3) {
        if let Some(overview) = source.overview(level)? {
            read(&overview)?;
        }
    }
    Ok(())
}

/// A raster file of any format: TIFF, JPEG 2000, `.npy`, `.npz`, by how it begins.
pub fn open(bytes: &[u8]) {
    FOLDER.with(|folder| {
        let path = folder.path().join("input");
        fs::write(&path, bytes).expect("writes");
        if let Err(error) = attempt(&path) {
            let message = error.to_string();
            assert!(message.contains("input"), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    });
}

/// The metadata files of a Sentinel-2 product, which are the two halves around the first zero byte.
pub fn product(bytes: &[u8]) {
    PRODUCT.with(|folder| {
        let zero = bytes.iter().position(|byte| *byte == 0);
        let (product, granule) = bytes.split_at(zero.unwrap_or(bytes.len()));
        fs::write(folder.path().join("MTD_MSIL2A.xml"), product).expect("writes");
        fs::write(folder.path().join("GRANULE/L2A/MTD_TL.xml"), granule).expect("writes");
        if let Ok(source) = open_with(folder.path(), LIMITS) {
            let annotations = source.annotations();
            assert!(annotations.scales.iter().all(|scale| scale.is_finite()));
            assert!(annotations.offsets.iter().all(|offset| offset.is_finite()));
        }
    });
}

/// The texts in a TIFF file: up to the first zero byte GDAL's metadata, up to the next the nodata value, then a description.
pub fn tags(bytes: &[u8]) {
    let mut texts = bytes.splitn(3, |byte| *byte == 0);
    let entries = [42_112, 42_113, 270].map(|tag| (tag, texts.next().unwrap_or_default()));
    open(&tiff(&entries));
}

/// A file of 2 x 2 bytes in three bands with these texts.
fn tiff(texts: &[(u16, &[u8])]) -> Vec<u8> {
    const PIXELS: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    const SHORT: u16 = 3;
    const LONG: u16 = 4;
    const ASCII: u16 = 2;
    let mut entries: Vec<(u16, u16, u32, u32)> = vec![
        (256, LONG, 1, 2),
        (257, LONG, 1, 2),
        (259, SHORT, 1, 1),
        (262, SHORT, 1, 1),
        (273, LONG, 1, 8),
        (277, SHORT, 1, 3),
        (278, LONG, 1, 2),
        (279, LONG, 1, PIXELS.len() as u32),
    ];
    let directory = 8 + PIXELS.len();
    let mut behind = directory + 2 + 12 * (entries.len() + 1 + texts.len()) + 4;
    // Bits of each band: too long for its place.
    entries.push((258, SHORT, 3, behind as u32));
    let mut values: Vec<u8> = [8_u16; 3]
        .iter()
        .flat_map(|bits| bits.to_le_bytes())
        .collect();
    behind += values.len();
    for (tag, text) in texts {
        let place = match text.len() {
            // So short a text stands in its place.
            0..4 => {
                let mut place = [0; 4];
                place[..text.len()].copy_from_slice(text);
                u32::from_le_bytes(place)
            }
            _ => {
                values.extend_from_slice(text);
                values.push(0);
                behind as u32
            }
        };
        if text.len() >= 4 {
            behind += text.len() + 1;
        }
        entries.push((*tag, ASCII, text.len() as u32 + 1, place));
    }
    entries.sort_by_key(|entry| entry.0);
    let mut file = b"II*\0".to_vec();
    file.extend((directory as u32).to_le_bytes());
    file.extend(PIXELS);
    file.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, count, place) in entries {
        file.extend(tag.to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend(count.to_le_bytes());
        file.extend(place.to_le_bytes());
    }
    file.extend([0; 4]);
    file.extend(values);
    file
}
