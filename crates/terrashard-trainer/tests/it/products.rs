//! What else is made of scenes: probabilities, the image, areas, catalogue items, one map over several scenes.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use terrashard_models::ModelConfig;
use terrashard_raster::{RasterSource, Window};

use crate::folder::{Folder, SCALE, pattern, small};

fn json(folder: &Folder, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.path(name)).unwrap()).unwrap()
}

fn descriptions(folder: &Folder, name: &str) -> Vec<Option<String>> {
    let source = terrashard_raster::open(folder.path(name)).unwrap();
    source.metadata().descriptions.clone()
}

/// User problem: the order of the bands of an output is not known, so that an index of them is wrong.
#[test]
fn geo_39_outputs_name_their_bands() {
    let folder = Folder::new();
    let config = ModelConfig {
        superres: true,
        classes: 3,
        ..small(2)
    };
    folder.model(&config, (32, 8), |_, _| {});
    folder.image("in.tif", (40, 24), 2, None, pattern);
    let line = [
        "in.tif",
        "-o",
        "map.tif",
        "--probability",
        "p.tif",
        "--image",
        "image.tif",
    ];
    let (told, _) = folder.predict(&line);
    assert_eq!(told["images"], serde_json::json!(["image.tif"]));
    let named = |names: &[&str]| {
        names
            .iter()
            .map(|name| Some(name.to_string()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        descriptions(&folder, "image.tif"),
        named(&["B04", "B03", "B02", "B08"])
    );
    assert_eq!(descriptions(&folder, "map.tif"), named(&["class"]));
    let classes = [
        "probability of class 0",
        "probability of class 1",
        "probability of class 2",
    ];
    assert_eq!(descriptions(&folder, "p.tif"), named(&classes));
    // The most probable class is the class, and probabilities sum to 1 in steps of a 200th.
    let (map, p) = (folder.whole("map.tif"), folder.whole("p.tif"));
    for (row, col) in (0..24 * SCALE).flat_map(|r| (0..40 * SCALE).map(move |c| (r, c))) {
        let of = [0, 1, 2].map(|band| p.at(band, col, row));
        assert!((of.iter().sum::<f64>() - 200.0).abs() <= 1.5, "{of:?}");
        let class = map.at(0, col, row) as usize;
        assert!(
            of.iter().all(|other| *other <= of[class]),
            "{of:?} and {class}"
        );
    }
}

/// Windows that are higher than many rows of tiles, of which an output of several bytes a pixel has narrow ones.
#[test]
fn geo_06_high_windows_are_written_from_left_to_right() {
    let folder = Folder::new();
    let config = ModelConfig {
        superres: true,
        ..small(2)
    };
    folder.model(&config, (224, 32), |_, _| {});
    folder.image("in.tif", (420, 230), 2, None, pattern);
    let line = ["in.tif", "--image", "image.tif", "--probability", "p.tif"];
    folder.predict(&[&line[..], &["--probability-type", "f32"]].concat());
    let image = folder.whole("image.tif");
    assert_eq!(image.window(), Window::new(0, 0, 420 * SCALE, 230 * SCALE));
    let p = folder.whole("p.tif");
    let values = p.band_f32(0);
    assert!(values.iter().all(|value| (0.0..=1.0).contains(value)));
}

#[test]
fn geo_04_bands_in_separate_files_are_one_scene() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    folder.image("both.tif", (50, 30), 2, None, pattern);
    folder.image("a.tif", (50, 30), 1, None, |_, x, y| pattern(0, x, y));
    folder.image("b.tif", (50, 30), 2, None, |band, x, y| {
        pattern(1 - band, x, y)
    });
    folder.predict(&["both.tif", "-o", "one.tif"]);
    folder.predict(&["--bands", "B02=a.tif,B03=b.tif:1", "-o", "two.tif"]);
    let bytes = |name: &str| fs::read(folder.path(name)).unwrap();
    assert!(bytes("one.tif") == bytes("two.tif"));
}

/// Read back in the tests of `terrashard-data`, which are run with the feature.
#[test]
fn areas_as_geoparquet_need_a_build_with_it_before_anything_is_predicted() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    folder.image("image.tif", (60, 40), 2, None, pattern);
    let line = ["image.tif", "-o", "map.tif", "--polygons", "areas.parquet"];
    if cfg!(feature = "geoparquet") {
        folder.predict(&line);
        let bytes = std::fs::read(folder.path("areas.parquet")).unwrap();
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
        return;
    }
    let output = folder.command(&line).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("a build with `--features geoparquet`"),
        "{told}"
    );
    assert!(!folder.path("map.tif").exists());
}

#[test]
fn areas_are_polygons_in_degrees_and_items_describe_files() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    // About half of the map is foreground.
    folder.image("S2A_T33UUU_20170216_L1C.tif", (60, 40), 2, None, pattern);
    let line = [
        "S2A_T33UUU_20170216_L1C.tif",
        "-o",
        "out/map.tif",
        "--probability",
        "out/p.tif",
        "--polygons",
        "out/areas.geojson",
        "--stac",
    ];
    let (told, _) = folder.predict(&line);
    let areas = json(&folder, "out/areas.geojson");
    let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
    let item = json(&folder, "out/map.json");
    let bounds: Vec<f64> = item["bbox"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect();
    // Of pyproj: the corners of 600 m x 400 m in zone 33 near 13.54 E, 52.3 N.
    assert!(
        (bounds[0] - 13.53).abs() < 0.1 && (bounds[1] - 52.34).abs() < 0.1,
        "{bounds:?}"
    );
    for feature in areas["features"].as_array().unwrap() {
        let properties = &feature["properties"];
        let class = properties["class"].as_u64().unwrap();
        *counted.entry(class).or_default() += properties["pixels"].as_u64().unwrap();
        for ring in feature["geometry"]["coordinates"].as_array().unwrap() {
            let ring = ring.as_array().unwrap();
            assert_eq!(ring.first(), ring.last());
            for point in ring {
                let (lon, lat) = (point[0].as_f64().unwrap(), point[1].as_f64().unwrap());
                let slack = 1e-4;
                assert!(
                    lon >= bounds[0] - slack && lon <= bounds[2] + slack,
                    "{lon}"
                );
                assert!(
                    lat >= bounds[1] - slack && lat <= bounds[3] + slack,
                    "{lat}"
                );
            }
        }
    }
    let foreground = told["classes"][0]["1"].as_u64().unwrap();
    assert_eq!(counted.get(&1).copied().unwrap_or(0), foreground);
    assert!(!counted.contains_key(&0) && !counted.contains_key(&255));

    assert_eq!(
        (&item["type"], &item["stac_version"]),
        (&"Feature".into(), &"1.1.0".into())
    );
    assert_eq!(item["id"], "map");
    assert_eq!(item["properties"]["datetime"], "2017-02-16T00:00:00Z");
    assert_eq!(item["properties"]["proj:code"], "EPSG:32633");
    assert_eq!(
        item["properties"]["proj:shape"],
        serde_json::json!([200, 300])
    );
    assert_eq!(item["properties"]["gsd"], 2.0);
    assert_eq!(item["assets"]["classes"]["href"], "./map.tif");
    assert_eq!(item["assets"]["probability"]["href"], "./p.tif");
    assert_eq!(
        item["assets"]["probability"]["bands"][0]["raster:scale"],
        0.005
    );
}

#[test]
fn one_map_of_overlapping_scenes_takes_the_first_that_has_data() {
    let folder = Folder::new();
    folder.model(&small(2), (32, 8), |_, _| {});
    let gap = |x: usize, y: usize| x > 25 && y < 12;
    folder.image("west.tif", (40, 30), 2, Some(9.0), |band, x, y| {
        if gap(x, y) { 9 } else { pattern(band, x, y) }
    });
    folder.image_at("east.tif", (20, 5), (44, 30), |band, x, y| {
        pattern(band, x + 3, y)
    });
    let scenes = ["west.tif", "east.tif", "-o", "maps", "--mosaic", "all.tif"];
    fs::create_dir(folder.path("maps")).unwrap();
    let (told, _) = folder.predict(&scenes);
    assert_eq!(told["mosaic"], "all.tif");
    let all = folder.whole("all.tif");
    assert_eq!(all.window(), Window::new(0, 0, 64 * SCALE, 35 * SCALE));
    let (west, east) = (folder.whole("maps/west.tif"), folder.whole("maps/east.tif"));
    for (row, col) in (0..35 * SCALE).flat_map(|r| (0..64 * SCALE).map(move |c| (r, c))) {
        let inside = |map: &terrashard_raster::Raster, left: usize, top: usize| {
            let at = (
                col.checked_sub(left * SCALE)?,
                row.checked_sub(top * SCALE)?,
            );
            let window = map.window();
            (at.0 < window.width && at.1 < window.height).then(|| map.at(0, at.0, at.1))
        };
        let first = inside(&west, 0, 0).filter(|class| *class != 255.0);
        let expected = first.or_else(|| inside(&east, 20, 5)).unwrap_or(255.0);
        assert_eq!(all.at(0, col, row), expected, "column {col}, row {row}");
    }

    // Told before anything is predicted.
    folder.image("other.tif", (8, 8), 2, None, pattern);
    let output = folder
        .command(&["west.tif", "--mosaic", "all.tif", "--probability", "p.tif"])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("`--mosaic`") && told.contains("`--output` beside it"),
        "{told}"
    );
}
