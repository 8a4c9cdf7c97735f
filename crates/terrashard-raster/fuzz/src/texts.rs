//! What is tried with any text where `terrashard-data` reads one.

use std::fs;
use std::str::FromStr;

use terrashard_data::{Band, ChipIndex, IgnoreFrom, Offset, ProductOffset, Resampling};
use terrashard_raster::{DataType, Georeference, MemorySource, Metadata, Samples};

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder");
}

/// An index of chips, which is GeoJSON: it is refused in one line, or what is written of it reads back as itself.
pub fn index(bytes: &[u8]) {
    FOLDER.with(|folder| {
        let path = folder.path().join("input");
        fs::write(&path, bytes).expect("writes");
        match ChipIndex::read(&path) {
            Ok(index) => {
                fs::write(&path, index.to_geojson(&path)).expect("writes");
                let again = ChipIndex::read(&path).expect("what it wrote");
                // Numbers may be NaN in no JSON, so texts are compared.
                assert_eq!(again.to_geojson(&path), index.to_geojson(&path));
            }
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("input"), "{message}");
            }
        }
    });
}

/// Values of settings and flags, and what the metadata of a product says of its offset; what is read writes itself as it reads.
pub fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(ignore) = IgnoreFrom::from_str(text) {
        assert_eq!(ignore.to_string().parse(), Ok(ignore));
    }
    if let Ok(Offset::Fixed(offset)) = Offset::from_str(text) {
        assert!(offset.is_finite());
    }
    let Ok(Band::Name(_) | Band::Number(_)) = Band::from_str(text);
    let _ = serde_json::from_str::<Resampling>(text);
    FOLDER.with(|folder| {
        fs::write(folder.path().join("MTD_MSIL2A.xml"), text).expect("writes");
        let metadata = Metadata {
            width: 1,
            height: 1,
            bands: 1,
            data_type: DataType::U8,
            georeference: Georeference::default(),
            nodata: None,
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (1, 1),
        };
        let image = folder.path().join("image.tif");
        let image = MemorySource::new(image, metadata, Samples::U8(vec![0])).expect("one pixel");
        if let Ok(Some(product)) = ProductOffset::find(&image) {
            assert!(product.offset.is_finite(), "{product:?}");
        }
    });
}
