//! A list of chips as GeoJSON: which windows of which files, for what, and where on the ground.
//!
//! GeoJSON is RFC 7946 (<https://www.rfc-editor.org/rfc/rfc7946>): longitude and latitude on WGS 84. What is ours stands in the member
//! `terrashard`, which other readers leave aside.

use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrashard_raster::{is_url, resolved};

use crate::{Error, Part, Result};

/// The version of the format.
const VERSION: u32 = 1;

/// Chips of scenes, and how they were cut.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipIndex {
    /// How they were cut.
    pub header: ChipHeader,
    /// The chips.
    pub chips: Vec<IndexedChip>,
}

/// How chips were cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChipHeader {
    /// Version of the format.
    version: u32,
    /// Side of a chip in image pixels; a chip may be smaller and is padded when it is read.
    pub chip: usize,
    /// Image pixels from one chip for training to the next; none where each pixel is in one chip.
    pub stride: Option<usize>,
    /// Fine pixels per image pixel along one side.
    pub scale: usize,
    /// Classes of the label.
    pub classes: usize,
    /// Windows that were cut and left out again.
    pub dropped: Vec<DroppedChip>,
}

impl ChipHeader {
    /// How chips were cut, none of which was left out.
    pub fn new(chip: usize, stride: Option<usize>, scale: usize, classes: usize) -> Self {
        Self {
            version: VERSION,
            chip,
            stride,
            scale,
            classes,
            dropped: Vec::new(),
        }
    }
}

/// A chip that was left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DroppedChip {
    /// The image.
    pub image: PathBuf,
    /// Column, row, width and height in image pixels.
    pub window: [usize; 4],
    /// What it would have been for.
    pub part: Part,
    /// Why.
    pub reason: DropReason,
}

/// Why a chip is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// No valid pixel of the label, or fewer than `min_valid` asks for.
    FewValid,
    /// Less foreground than `min_foreground` asks for; for training alone.
    FewForeground,
    /// A chip for another part, which another scene gives, lies over it.
    SharedGround,
}

/// The files of a chip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChipFiles {
    /// The image.
    pub image: PathBuf,
    /// The label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<PathBuf>,
    /// The image at high resolution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highres: Option<PathBuf>,
    /// The scene classification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<PathBuf>,
    /// What is added to digital numbers, where the scene has an offset of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<f32>,
}

impl ChipFiles {
    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Self {
            image,
            mask,
            highres,
            classification,
            ..
        } = self;
        let others = [mask, highres, classification].into_iter().flatten();
        std::iter::once(image).chain(others)
    }
}

/// One chip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexedChip {
    /// What it is for.
    pub part: Part,
    /// Its files.
    #[serde(flatten)]
    pub files: ChipFiles,
    /// Column, row, width and height in image pixels.
    pub window: [usize; 4],
    /// Valid pixels of the label for each class.
    pub counts: Vec<u64>,
    /// A ring around it, longitude and latitude in degrees; none where the image says nothing of its ground.
    #[serde(skip)]
    pub footprint: Option<Vec<[f64; 2]>>,
}

#[derive(Deserialize)]
struct Collection {
    terrashard: ChipHeader,
    features: Vec<Feature>,
}

#[derive(Serialize, Deserialize)]
struct Feature {
    r#type: String,
    id: usize,
    geometry: Option<Geometry>,
    properties: IndexedChip,
}

#[derive(Serialize, Deserialize)]
struct Geometry {
    r#type: String,
    coordinates: Vec<Vec<[f64; 2]>>,
}

impl ChipIndex {
    /// Reads an index. Paths in it are relative to its folder.
    ///
    /// # Errors
    /// [`Error::Metadata`] where the file cannot be read or is no such index.
    pub fn read(path: &Path) -> Result<Self> {
        let refuse = |what: String| Error::Metadata {
            path: path.to_owned(),
            what,
        };
        // A pipe would be waited for.
        if path.exists() && !path.is_file() {
            return Err(refuse("it is no regular file".into()));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| refuse(format!("it cannot be read: {error}")))?;
        let collection: Collection = serde_json::from_str(&text).map_err(|error| {
            refuse(format!(
                "it is no index of chips: {error}; make one with `terrashard chip`"
            ))
        })?;
        let header = collection.terrashard;
        if header.version != VERSION {
            return Err(refuse(format!(
                "an index of version {}, this program reads version {VERSION}; make it anew with `terrashard chip`",
                header.version
            )));
        }
        let folder = folder(path);
        let chip = |feature: Feature| {
            let mut chip = feature.properties;
            chip.files
                .paths()
                .for_each(|path| *path = tidy(&resolved(&folder, path)));
            chip.footprint = feature
                .geometry
                .and_then(|geometry| geometry.coordinates.into_iter().next());
            chip
        };
        let mut header = header;
        header
            .dropped
            .iter_mut()
            .for_each(|chip| chip.image = tidy(&resolved(&folder, &chip.image)));
        Ok(Self {
            header,
            chips: collection.features.into_iter().map(chip).collect(),
        })
    }

    /// The index as GeoJSON, with paths relative to the folder that it will lie in.
    pub fn to_geojson(&self, path: &Path) -> String {
        let mut text = Vec::new();
        self.write_geojson(path, &mut text)
            .expect("memory takes what is written to it");
        String::from_utf8(text).expect("JSON is UTF-8")
    }

    /// The same chip by chip, for the many of a whole product.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_geojson(&self, path: &Path, mut to: impl Write) -> io::Result<()> {
        let folder = folder(path);
        let mut header = self.header.clone();
        header
            .dropped
            .iter_mut()
            .for_each(|chip| chip.image = relative(&chip.image, &folder));
        let header = serde_json::to_string(&header)?;
        write!(
            to,
            "{{\"type\":\"FeatureCollection\",\"terrashard\":{header},\"features\":["
        )?;
        for (id, chip) in self.chips.iter().enumerate() {
            let mut chip = chip.clone();
            chip.files
                .paths()
                .for_each(|path| *path = relative(path, &folder));
            let feature = Feature {
                r#type: "Feature".to_owned(),
                id,
                geometry: chip.footprint.take().map(|ring| Geometry {
                    r#type: "Polygon".to_owned(),
                    coordinates: vec![ring],
                }),
                properties: chip,
            };
            if id > 0 {
                to.write_all(b",")?;
            }
            serde_json::to_writer(&mut to, &feature)?;
        }
        to.write_all(b"]}\n")
    }
}

/// The folder of a file, from the root.
fn folder(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    tidy(whole.parent().unwrap_or(Path::new("/")))
}

/// The path without `.` and, where names allow it, `..`.
fn tidy(path: &Path) -> PathBuf {
    if is_url(path) {
        return path.to_owned();
    }
    let mut tidied = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(tidied.components().next_back(), Some(Component::Normal(_))) =>
            {
                tidied.pop();
            }
            part => tidied.push(part),
        }
    }
    tidied
}

/// The way to `path` from a folder; the path itself where nothing is common.
fn relative(path: &Path, folder: &Path) -> PathBuf {
    if is_url(path) {
        return path.to_owned();
    }
    let whole = tidy(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    let common = whole
        .components()
        .zip(folder.components())
        .take_while(|(a, b)| a == b)
        .count();
    // The root alone is no place to meet: another machine has another tree.
    if common < 2 {
        return whole;
    }
    let up = folder
        .components()
        .skip(common)
        .map(|_| Component::ParentDir);
    up.chain(whole.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> ChipIndex {
        let mut header = ChipHeader::new(64, Some(32), 5, 2);
        header.dropped.push(DroppedChip {
            image: "/data/scenes/a.tif".into(),
            window: [64, 0, 64, 64],
            part: Part::Train,
            reason: DropReason::FewValid,
        });
        let chip = IndexedChip {
            part: Part::Test,
            files: ChipFiles {
                image: "/data/scenes/a.tif".into(),
                mask: Some("/data/chips/labels/a.tif".into()),
                offset: Some(-1000.0),
                ..ChipFiles::default()
            },
            window: [0, 0, 64, 50],
            counts: vec![70_000, 10_000],
            footprint: Some(vec![[12.0, 52.0], [12.0, 51.0], [13.0, 51.0], [12.0, 52.0]]),
        };
        ChipIndex {
            header,
            chips: vec![chip],
        }
    }

    #[test]
    fn reads_what_it_writes_from_anywhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data/chips/index.geojson");
        let root = |index: &mut ChipIndex| {
            let moved = |path: &mut PathBuf| {
                *path = folder.path().join(path.strip_prefix("/").expect("whole"))
            };
            index
                .chips
                .iter_mut()
                .flat_map(|chip| chip.files.paths())
                .for_each(moved);
            index
                .header
                .dropped
                .iter_mut()
                .for_each(|chip| moved(&mut chip.image));
        };
        let mut written = index();
        root(&mut written);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let text = written.to_geojson(&path);
        assert!(
            text.contains(r#""image":"../scenes/a.tif","mask":"labels/a.tif""#),
            "{text}"
        );
        assert!(
            text.contains(r#""geometry":{"type":"Polygon","coordinates":[[[12.0,52.0]"#),
            "{text}"
        );
        std::fs::write(&path, text).expect("written");
        assert_eq!(ChipIndex::read(&path).expect("an index"), written);
    }

    #[test]
    fn what_is_no_index_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("index.geojson");
        let error = |text: &str| {
            std::fs::write(&path, text).expect("written");
            ChipIndex::read(&path).expect_err("no index").to_string()
        };
        assert!(
            error(r#"{"type":"FeatureCollection","features":[]}"#)
                .contains("make one with `terrashard chip`")
        );
        let later = index()
            .to_geojson(&path)
            .replace(r#""version":1"#, r#""version":2"#);
        assert!(error(&later).contains("an index of version 2"));
        assert!(
            ChipIndex::read(&folder.path().join("gone"))
                .expect_err("gone")
                .to_string()
                .contains("cannot be read")
        );
    }

    #[test]
    fn ways_are_found() {
        let check = |path: &str, folder: &str, expected: &str| {
            assert_eq!(
                relative(Path::new(path), Path::new(folder)),
                Path::new(expected)
            );
        };
        check("/a/b/c.tif", "/a/b", "c.tif");
        check("/a/c.tif", "/a/b/d", "../../c.tif");
        check("/x/c.tif", "/a/b", "/x/c.tif");
        check("s3://a/b/c.tif", "/a/b", "s3://a/b/c.tif");
        assert_eq!(tidy(Path::new("/a/./b/../c")), Path::new("/a/c"));
        assert_eq!(tidy(Path::new("s3://a/b")), Path::new("s3://a/b"));
    }
}
