//! JPEG 2000, SAFE folders, single-band files and NumPy arrays.
//!
//! `water_*.jp2` hold pixels of the scene in `examples/water`, written by GDAL; the corpus compares the hash of all of them.

use std::fs;
use std::path::{Path, PathBuf};

use terrashard_raster::{
    DataType, Error, GeoTiffSink, Georeference, Raster, RasterSink, RasterSource, RasterSpec,
    ReadLimits, Samples, Transform, Validity, Window, open, open_with,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// The corner of the scene that the JPEG 2000 files hold.
fn scene() -> Raster {
    let path = "../../examples/water/S2A_T33UUU_20170216_L1C_6band.tif";
    let source = open(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the scene");
    source
        .read_window(Window::new(300, 200, 150, 130))
        .expect("inside")
}

const GROUND: Georeference = Georeference {
    epsg: Some(32633),
    transform: Some(Transform::north_up(333_000.0, 5_820_040.0, 10.0)),
};

#[test]
fn jpeg_2000_is_read_tile_by_tile() {
    let source = open(data("water_B02.jp2")).expect("reads");
    let metadata = source.metadata();
    assert_eq!(
        (metadata.width, metadata.height, metadata.bands),
        (150, 130, 1)
    );
    assert_eq!(
        (metadata.data_type, metadata.block),
        (DataType::U16, (64, 64))
    );
    assert_eq!(metadata.georeference, GROUND);
    let scene = scene();
    for window in [
        metadata.window(),
        Window::new(60, 50, 10, 30),
        Window::new(149, 129, 1, 1),
        Window::new(64, 64, 64, 64),
    ] {
        let read = source.read_window(window).expect("decodes");
        for (row, column) in (0..window.height).flat_map(|r| (0..window.width).map(move |c| (r, c)))
        {
            assert_eq!(
                read.at(0, column, row),
                scene.at(0, window.col + column, window.row + row),
                "column {column}, row {row} of {window}"
            );
        }
    }
    let colour = open(data("water_rgb.jp2")).expect("reads");
    assert_eq!(
        (colour.metadata().bands, colour.metadata().data_type),
        (3, DataType::U8)
    );
    let pixel = colour
        .read_window(Window::new(66, 3, 1, 1))
        .expect("decodes");
    for (band, of) in [2, 1, 0].into_iter().enumerate() {
        let expected = (scene.at(of, 66, 3) / 16.0).floor().clamp(0.0, 255.0);
        assert_eq!(pixel.at(band, 0, 0), expected);
    }
}

#[test]
fn one_tile_of_jpeg_2000_is_all_that_memory_takes() {
    let limits = ReadLimits {
        window_bytes: 64 * 64 * 10,
        cache_bytes: 0,
        ..ReadLimits::default()
    };
    let source = open_with(data("water_B02.jp2"), limits).expect("one tile fits");
    assert!(source.read_window(Window::new(0, 0, 100, 100)).is_ok());
    let error = source
        .read_window(Window::new(0, 0, 150, 137))
        .expect_err("outside");
    assert!(matches!(error, Error::OutsideWindow { .. }), "{error}");
    let tight = ReadLimits {
        window_bytes: 64 * 64 * 10 - 1,
        ..limits
    };
    let error = open_with(data("water_B02.jp2"), tight).expect_err("one tile does not fit");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

/// Cut anywhere or with any byte changed, a file gives pixels or an error, never a panic.
#[test]
fn no_damage_makes_the_jpeg_2000_reader_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.jp2");
    let limits = ReadLimits {
        window_bytes: 1 << 20,
        cache_bytes: 0,
        ..ReadLimits::default()
    };
    let attempt = |bytes: &[u8]| -> Result<(), Error> {
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).expect("writes");
        let source = open_with(&path, limits)?;
        source.read_window(source.metadata().window()).map(|_| ())
    };
    let bytes = fs::read(data("water_rgb.jp2")).expect("reads");
    attempt(&bytes).expect("undamaged");
    let cut = attempt(&bytes[..bytes.len() - 40]).expect_err("its last tile is cut");
    assert!(
        matches!(cut, Error::Truncated { .. }) && cut.to_string().contains("damaged.jp2"),
        "{cut}"
    );
    for end in (0..bytes.len()).step_by(97) {
        assert!(attempt(&bytes[..end]).is_err(), "cut at {end}");
    }
    let header = bytes
        .windows(2)
        .position(|w| w == [0xff, 0x93])
        .expect("a tile-part");
    for at in (0..header)
        .step_by(3)
        .chain((header..bytes.len()).step_by(61))
    {
        for flip in [0x01, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let _ = attempt(&damaged);
        }
    }
}

/// What the agency's metadata files say, cut down to what is read.
fn safe(folder: &Path) -> PathBuf {
    let product = folder.join("S2A_MSIL2A_20220706T093041_N0400_R136_T33UUU_20220706T144600.SAFE");
    let granule = product.join("GRANULE/L2A_T33UUU_A036770_20220706T093404");
    let images = granule.join("IMG_DATA");
    let copy = |from: &str, to: &str| {
        let to = images.join(to);
        fs::create_dir_all(to.parent().expect("a folder")).expect("makes it");
        fs::copy(data(from), to).expect("copies");
    };
    copy("water_B02.jp2", "R10m/T33UUU_20220706T093041_B02_10m.jp2");
    copy(
        "water_B11_20m.jp2",
        "R20m/T33UUU_20220706T093041_B02_20m.jp2",
    );
    copy(
        "water_B11_20m.jp2",
        "R20m/T33UUU_20220706T093041_B11_20m.jp2",
    );
    copy("water_rgb.jp2", "R10m/T33UUU_20220706T093041_TCI_10m.jp2");
    fs::write(
        product.join("MTD_MSIL2A.xml"),
        r#"<?xml version="1.0" encoding="UTF-8"?>
<n1:Level-2A_User_Product xmlns:n1="https://psd-14.sentinel2.eo.esa.int/PSD/User_Product_Level-2A.xsd">
  <n1:General_Info>
    <Product_Info>
      <PRODUCT_START_TIME>2022-07-06T09:30:41.024Z</PRODUCT_START_TIME>
      <PRODUCT_URI>S2A_MSIL2A_20220706T093041_N0400_R136_T33UUU_20220706T144600.SAFE</PRODUCT_URI>
      <PROCESSING_LEVEL>Level-2A</PROCESSING_LEVEL>
      <PROCESSING_BASELINE>04.00</PROCESSING_BASELINE>
    </Product_Info>
    <Product_Image_Characteristics>
      <QUANTIFICATION_VALUES_LIST>
        <BOA_QUANTIFICATION_VALUE unit="none">10000</BOA_QUANTIFICATION_VALUE>
      </QUANTIFICATION_VALUES_LIST>
      <BOA_ADD_OFFSET_VALUES_LIST>
        <BOA_ADD_OFFSET band_id="1">-1000</BOA_ADD_OFFSET>
        <BOA_ADD_OFFSET band_id="11">-1000</BOA_ADD_OFFSET>
      </BOA_ADD_OFFSET_VALUES_LIST>
    </Product_Image_Characteristics>
  </n1:General_Info>
</n1:Level-2A_User_Product>
"#,
    )
    .expect("writes");
    fs::write(
        granule.join("MTD_TL.xml"),
        r#"<n1:Level-2A_Tile_ID><n1:Geometric_Info><Tile_Geocoding metadataLevel="Brief">
      <HORIZONTAL_CS_NAME>WGS84 / UTM zone 33N</HORIZONTAL_CS_NAME>
      <HORIZONTAL_CS_CODE>EPSG:32633</HORIZONTAL_CS_CODE>
      <Size resolution="10"><NROWS>130</NROWS><NCOLS>150</NCOLS></Size>
      <Size resolution="20"><NROWS>65</NROWS><NCOLS>75</NCOLS></Size>
      <Geoposition resolution="10"><ULX>600000</ULX><ULY>5800020</ULY><XDIM>10</XDIM><YDIM>-10</YDIM></Geoposition>
      <Geoposition resolution="20"><ULX>600000</ULX><ULY>5800020</ULY><XDIM>20</XDIM><YDIM>-20</YDIM></Geoposition>
    </Tile_Geocoding></n1:Geometric_Info></n1:Level-2A_Tile_ID>"#,
    )
    .expect("writes");
    product
}

/// User problem: the baseline's offset of -1000 is only in the product's name and metadata.
#[test]
fn geo_36_a_safe_folder_is_one_raster_with_its_offset() {
    let folder = tempfile::tempdir().expect("a folder");
    let product = safe(folder.path());
    let granule = product.join("GRANULE/L2A_T33UUU_A036770_20220706T093404");
    for path in [
        product.clone(),
        product.join("MTD_MSIL2A.xml"),
        granule.clone(),
        granule.join("MTD_TL.xml"),
    ] {
        let source = open(&path).expect("reads");
        let metadata = source.metadata();
        assert_eq!((metadata.width, metadata.height), (150, 130));
        let names: Vec<&str> = metadata
            .descriptions
            .iter()
            .flatten()
            .map(String::as_str)
            .collect();
        assert_eq!(names, ["B02", "B11"], "the finest B02, and no colour image");
        assert_eq!(metadata.nodata, Some(0.0));
        // Where the granule says, not where the image says.
        assert_eq!(
            metadata.georeference.transform,
            Some(Transform::north_up(600_000.0, 5_800_020.0, 10.0))
        );
        let said = source.annotations();
        assert_eq!(said.tags["PROCESSING_BASELINE"], "04.00");
        assert_eq!((said.scales, said.offsets), (vec![1e-4; 2], vec![-0.1; 2]));
        assert_eq!(said.validity, Validity::Nodata);

        let scene = scene();
        let window = Window::new(61, 50, 33, 21);
        let read = source.read_window(window).expect("decodes");
        let alone = source.read_bands(window, &[1]).expect("decodes");
        for (row, column) in (0..21).flat_map(|r| (0..33).map(move |c| (r, c))) {
            // B11 is repeated 2 x 2 in the scene too.
            for (band, of) in [(0, 0), (1, 4)] {
                let expected = scene.at(of, 61 + column, 50 + row);
                assert_eq!(read.at(band, column, row), expected);
            }
            assert_eq!(alone.at(0, column, row), read.at(1, column, row));
        }
    }
    // A second granule: which one is meant has to be said.
    fs::create_dir_all(product.join("GRANULE/L2A_T33UUV/IMG_DATA")).expect("makes it");
    let message = open(&product).expect_err("ambiguous").to_string();
    assert!(
        message.contains("2 granules") && message.contains("L2A_T33UUU_A036770"),
        "{message}"
    );
}

fn write(path: &Path, size: (usize, usize), ground: Georeference, value: u8) {
    let spec = RasterSpec::new(size.0, size.1, 1, DataType::U8)
        .georeference(ground)
        .nodata(0.0)
        .tile(16);
    let window = spec.window();
    let mut sink = GeoTiffSink::create(path, spec).expect("a new file");
    let samples = Samples::U8((0..window.pixels()).map(|i| value + i as u8).collect());
    sink.write(&Raster::new(window, 1, samples).expect("filled"))
        .expect("in order");
    Box::new(sink).finish().expect("complete");
}

#[test]
fn files_of_single_bands_are_matched_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let coarse = |t: Georeference, k: f64| t.scaled(1.0 / k);
    write(&file("T33_B03_10m.tif"), (4, 4), GROUND, 1);
    write(&file("T33_B11_20m.tif"), (2, 2), coarse(GROUND, 2.0), 100);
    write(&file("T33_B02_10m.tif"), (4, 4), GROUND, 50);
    write(&file("reference_map.tif"), (3, 3), GROUND, 9);
    fs::write(file("readme_B04.txt"), "no raster").expect("writes");
    let source = open(folder.path()).expect("reads");
    let names: Vec<_> = source
        .metadata()
        .descriptions
        .iter()
        .flatten()
        .cloned()
        .collect();
    assert_eq!(names, ["B02", "B03", "B11"]);
    let read = source.read_window(Window::new(1, 1, 3, 2)).expect("inside");
    let expected = [
        [55, 56, 57, 59, 60, 61],
        [6, 7, 8, 10, 11, 12],
        [100, 101, 101, 102, 103, 103],
    ];
    assert_eq!(read.samples(), &Samples::U8(expected.concat()));

    write(&file("T33_B04_10m.tif"), (5, 4), GROUND, 1);
    let message = open(folder.path()).expect_err("another size").to_string();
    assert!(
        message.contains("does not fit") && message.contains("5 x 4 pixels"),
        "{message}"
    );
    let shifted = Georeference {
        transform: GROUND.transform.map(|t| t.offset(1, 0)),
        ..GROUND
    };
    write(&file("T33_B04_10m.tif"), (4, 4), shifted, 1);
    let message = open(folder.path()).expect_err("another place").to_string();
    assert!(
        message.contains("T33_B04_10m.tif: 4 x 4 pixels at [10.0, 0.0, 333010.0,"),
        "{message}"
    );
    write(&file("T33_B04_10m.tif"), (4, 4), GROUND, 1);
    write(&file("T34_B04_10m.tif"), (4, 4), GROUND, 1);
    let message = open(folder.path()).expect_err("two scenes").to_string();
    assert!(
        message.contains("B04 twice, T33_B04_10m.tif and T34_B04_10m.tif"),
        "{message}"
    );
    let empty = tempfile::tempdir().expect("a folder");
    let message = open(empty.path()).expect_err("nothing").to_string();
    assert!(message.contains("no file named after a band"), "{message}");
}

/// `arrays.npz` is `numpy.savez_compressed(image=a, mask=m)` and `stored.npz` `numpy.savez(image=a)`, with
/// `a = (arange(5 * 4 * 3) * 1000).reshape(5, 4, 3).astype("uint16")` and `m = eye(5, 4, dtype="bool")`.
#[test]
fn arrays_of_numpy_are_rasters_without_georeference() {
    let source = open(data("stored.npz")).expect("reads");
    let metadata = source.metadata();
    assert_eq!((metadata.width, metadata.height, metadata.bands), (4, 5, 3));
    assert_eq!(metadata.georeference, Georeference::default());
    let value = |band, column, row| ((row * 4 + column) * 3 + band) as f64 * 1000.0;
    let window = Window::new(1, 2, 2, 3);
    let read = source.read_window(window).expect("inside");
    let packed = open(data("arrays.npz/image")).expect("reads");
    assert_eq!(packed.read_window(window).expect("inside"), read);
    for (band, row, column) in (0..3).flat_map(|b| (0..3).flat_map(move |r| [(b, r, 0), (b, r, 1)]))
    {
        assert_eq!(read.at(band, column, row), value(band, 1 + column, 2 + row));
    }
    let mask = open(data("arrays.npz/mask.npy")).expect("reads");
    assert_eq!(mask.metadata().data_type, DataType::U8);
    let diagonal = mask.read_window(Window::new(1, 1, 2, 2)).expect("inside");
    assert_eq!(diagonal.samples(), &Samples::U8(vec![1, 0, 0, 1]));

    let message = open(data("arrays.npz"))
        .expect_err("two arrays")
        .to_string();
    assert!(
        message.contains("holds the arrays image, mask; name one of them: ")
            && message.ends_with("arrays.npz/image"),
        "{message}"
    );
    let message = open(data("arrays.npz/label"))
        .expect_err("no such array")
        .to_string();
    assert!(
        message.contains("no array label, but image, mask"),
        "{message}"
    );
}

/// Cut anywhere or with any byte changed, an archive gives pixels or an error, never a panic.
#[test]
fn no_damage_makes_the_archive_reader_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = ReadLimits {
        window_bytes: 1 << 20,
        cache_bytes: 0,
        ..ReadLimits::default()
    };
    for (name, member) in [
        ("arrays.npz", "arrays.npz/image"),
        ("stored.npz", "stored.npz"),
    ] {
        let bytes = fs::read(data(name)).expect("reads");
        let attempt = |bytes: &[u8]| -> Result<(), Error> {
            let _ = fs::remove_file(folder.path().join(name));
            fs::write(folder.path().join(name), bytes).expect("writes");
            let source = open_with(folder.path().join(member), limits)?;
            source.read_window(source.metadata().window()).map(|_| ())
        };
        attempt(&bytes).expect(name);
        for end in 0..bytes.len() - 1 {
            assert!(attempt(&bytes[..end]).is_err(), "{name} cut at {end}");
        }
        for at in 0..bytes.len() {
            for value in [0, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = attempt(&damaged);
            }
        }
    }
}
