//! What is added to a product's digital numbers, by its processing baseline.
//!
//! From baseline 04.00 on (January 2022, and all that was processed again since) digital numbers are 1000 too large, so that dark
//! pixels do not end at 0. The date of a scene does not tell; the product's name (`_N0400_`), its metadata or a tag does.
//! <https://sentiwiki.copernicus.eu/web/s2-processing>

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};
use terrashard_raster::RasterSource;

use crate::{Error, Result};

/// The offset from baseline 04.00 on.
const SINCE_0400: f32 = -1000.0;

/// Folders above a file that are looked at: from a band in `GRANULE/*/IMG_DATA/R10m` up to the product.
const LEVELS: usize = 6;

/// The metadata of a product, in its folder.
const METADATA: [&str; 2] = ["MTD_MSIL2A.xml", "MTD_MSIL1C.xml"];

/// What is added to digital numbers before they are multiplied: a number, or what the product says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offset {
    /// By the product's name, metadata or tags; an error where they do not tell.
    Auto,
    /// This.
    Fixed(f32),
}

impl Offset {
    /// The number to add.
    ///
    /// # Errors
    /// [`Error::UnknownOffset`] for [`Offset::Auto`] where the product does not tell, [`Error::Metadata`] where it contradicts itself.
    pub fn resolve(self, source: &dyn RasterSource) -> Result<f32> {
        match self {
            Self::Fixed(offset) => Ok(offset),
            Self::Auto => match ProductOffset::find(source)? {
                Some(found) => Ok(found.offset),
                None => Err(Error::UnknownOffset {
                    path: source.path().to_owned(),
                }),
            },
        }
    }
}

impl FromStr for Offset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            number => match number.parse::<f32>() {
                Ok(offset) if offset.is_finite() => Ok(Self::Fixed(offset)),
                _ => Err(format!(
                    "{text} is no offset, write \"auto\" or a number: -1000 from processing baseline 04.00 on, 0 before"
                )),
            },
        }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(offset) => offset.fmt(f),
        }
    }
}

impl Serialize for Offset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(offset) => serializer.serialize_f32(*offset),
        }
    }
}

impl<'de> Deserialize<'de> for Offset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f32),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(de::Error::custom)
    }
}

/// An offset that a product tells of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductOffset {
    /// The offset.
    pub offset: f32,
    /// What says so, in words: `baseline 04.00 in its name`.
    pub told_by: String,
}

impl ProductOffset {
    /// Looks at the metadata of the product that a file lies in, then at the file's own tags, then at the names of the file and its
    /// folders.
    ///
    /// # Errors
    /// [`Error::Metadata`] where the metadata gives bands different offsets.
    pub fn find(source: &dyn RasterSource) -> Result<Option<Self>> {
        let path = std::path::absolute(source.path()).unwrap_or_else(|_| source.path().to_owned());
        if let Some(found) = of_metadata(&path)? {
            return Ok(Some(found));
        }
        let tags = source.annotations().tags;
        Ok(of_tags(&tags).or_else(|| of_names(&path)))
    }
}

fn of_baseline(baseline: f64, where_from: &str) -> ProductOffset {
    ProductOffset {
        offset: if baseline >= 4.0 { SINCE_0400 } else { 0.0 },
        told_by: format!("baseline {baseline:05.2} in {where_from}"),
    }
}

/// A tag that holds the offset, or one with the baseline as `N0400` or `04.00`. What is none of that tells nothing.
fn of_tags(tags: &BTreeMap<String, String>) -> Option<ProductOffset> {
    let find = |names: &[&str]| {
        let is = |tag: &&String| names.iter().any(|name| tag.eq_ignore_ascii_case(name));
        tags.keys().find(is).map(|tag| (tag, tags[tag].trim()))
    };
    if let Some((tag, value)) = find(&["BOA_ADD_OFFSET", "RADIO_ADD_OFFSET"])
        && let Ok(offset) = value.parse::<f32>()
        && offset.is_finite()
    {
        return Some(ProductOffset {
            offset,
            told_by: format!("its tag {tag}"),
        });
    }
    let (tag, value) = find(&["PROCESSING_BASELINE", "BASELINE"])?;
    let number = baseline(value).or_else(|| value.parse().ok())?;
    (0.01..90.0)
        .contains(&number)
        .then(|| of_baseline(number, &format!("its tag {tag}")))
}

/// `_N0400_` in the name of the file or of a folder above it.
fn of_names(path: &Path) -> Option<ProductOffset> {
    let names = path.ancestors().take(LEVELS).filter_map(Path::file_name);
    let baseline = names
        .map(|name| name.to_string_lossy().into_owned())
        .find_map(|name| name.split(['_', '.']).find_map(baseline))?;
    Some(of_baseline(baseline, "its name"))
}

/// `N0400` is 4.0. `N9999` and the like stand for products that others have processed.
fn baseline(word: &str) -> Option<f64> {
    let digits = word.strip_prefix('N')?;
    let number: u32 = digits.parse().ok()?;
    (digits.len() == 4 && (1..9000).contains(&number)).then(|| f64::from(number) / 100.0)
}

/// The metadata of the product: in the folder of the file, or above it within a `.SAFE` folder.
fn of_metadata(path: &Path) -> Result<Option<ProductOffset>> {
    let folders = path.ancestors().skip(1).take(LEVELS);
    let within = |folder: &Path| folder.ancestors().any(is_safe);
    let found = folders
        .enumerate()
        .filter(|(level, folder)| *level == 0 || within(folder))
        .flat_map(|(_, folder)| METADATA.map(|name| folder.join(name)))
        .find(|file| file.is_file());
    let Some(file) = found else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(&file).map_err(|error| Error::Metadata {
        path: file.clone(),
        what: format!("it cannot be read: {error}"),
    })?;
    of_xml(&file, &text)
}

fn is_safe(folder: &Path) -> bool {
    folder
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("SAFE"))
}

fn of_xml(file: &Path, text: &str) -> Result<Option<ProductOffset>> {
    let offsets: Vec<f32> = ["BOA_ADD_OFFSET", "RADIO_ADD_OFFSET"]
        .iter()
        .flat_map(|tag| elements(text, tag))
        .filter_map(|value| value.parse().ok())
        .filter(|offset: &f32| offset.is_finite())
        .collect();
    if let Some(first) = offsets.first() {
        if let Some(other) = offsets.iter().find(|offset| *offset != first) {
            return Err(Error::Metadata {
                path: file.to_owned(),
                what: format!(
                    "it gives bands the offsets {first} and {other}; give the one of your bands as a number"
                ),
            });
        }
        return Ok(Some(ProductOffset {
            offset: *first,
            told_by: format!("{}", file.display()),
        }));
    }
    let baseline = elements(text, "PROCESSING_BASELINE")
        .find_map(|value| value.parse().ok())
        .filter(|baseline: &f64| baseline.is_finite());
    Ok(baseline.map(|baseline| of_baseline(baseline, &file.display().to_string())))
}

/// The texts of all elements of this name, whatever their attributes.
fn elements<'a>(text: &'a str, tag: &'a str) -> impl Iterator<Item = &'a str> {
    text.split('<').filter_map(move |part| {
        let rest = part.strip_prefix(tag)?;
        let (attributes, value) = rest.split_once('>')?;
        let is_this = attributes.is_empty() || attributes.starts_with(char::is_whitespace);
        is_this.then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_baseline() {
        let check = |path: &str, expected: Option<f32>| {
            let found = of_names(Path::new(path)).map(|found| found.offset);
            assert_eq!(found, expected, "{path}");
        };
        check(
            "/a/S2A_T33NZA_20220706_N0400_0U_199R_crop400.tif",
            Some(-1000.0),
        );
        check(
            "/a/S2B_MSIL2A_20230101T101031_N0509_R022_T33UUP.SAFE/b/B02.jp2",
            Some(-1000.0),
        );
        check(
            "/a/S2A_MSIL1C_20170216T102101_N0204_R065_T33UUU.SAFE/B02.jp2",
            Some(0.0),
        );
        check("/a/S2A_MSIL2A_20220706T085611_N0301.tif", Some(0.0));
        // Of BigEarthNet, and of a name that says nothing.
        check("/a/S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP.tif", None);
        check("/a/S2A_T33UUU_20170216_L1C_6band.tif", None);
        check("/a/N0400x/scene_N04.tif", None);
    }

    #[test]
    fn tags_tell_the_offset() {
        let check = |tag: &str, value: &str, expected: Option<f32>| {
            let tags = BTreeMap::from([(tag.to_owned(), value.to_owned())]);
            assert_eq!(
                of_tags(&tags).map(|found| found.offset),
                expected,
                "{tag}={value}"
            );
        };
        check("BASELINE", "N0400", Some(-1000.0));
        check("PROCESSING_BASELINE", "05.09", Some(-1000.0));
        check("processing_baseline", "02.04", Some(0.0));
        check("BOA_ADD_OFFSET", "-1000", Some(-1000.0));
        check("BASELINE", "unknown", None);
        check("AREA_OR_POINT", "Area", None);
    }

    #[test]
    fn metadata_tells_the_offset() {
        let file = Path::new("MTD_MSIL2A.xml");
        let offset = |text: &str| of_xml(file, text).map(|found| found.map(|f| f.offset));
        let listed = r#"<PROCESSING_BASELINE>05.09</PROCESSING_BASELINE><BOA_ADD_OFFSET_VALUES_LIST>
            <BOA_ADD_OFFSET band_id="0">-1000</BOA_ADD_OFFSET><BOA_ADD_OFFSET band_id="1">-1000</BOA_ADD_OFFSET>"#;
        assert_eq!(offset(listed).expect("sound"), Some(-1000.0));
        let old = "<PROCESSING_BASELINE>02.04</PROCESSING_BASELINE>";
        assert_eq!(offset(old).expect("sound"), Some(0.0));
        assert_eq!(offset("<a/>").expect("sound"), None);
        let mixed = r#"<RADIO_ADD_OFFSET band_id="0">-1000</RADIO_ADD_OFFSET><RADIO_ADD_OFFSET band_id="1">0</RADIO_ADD_OFFSET>"#;
        let error = offset(mixed).expect_err("two offsets").to_string();
        assert!(error.contains("-1000 and 0"), "{error}");
    }

    #[test]
    fn metadata_is_found_from_a_band_of_a_product() {
        let folder = tempfile::tempdir().expect("a folder");
        let product = folder.path().join("S2A_MSIL1C_N0204.SAFE");
        let bands = product.join("GRANULE/L1C_T33UUU/IMG_DATA");
        std::fs::create_dir_all(&bands).expect("folders");
        let xml = r#"<RADIO_ADD_OFFSET band_id="0">-1000</RADIO_ADD_OFFSET>"#;
        std::fs::write(product.join("MTD_MSIL1C.xml"), xml).expect("written");
        let found = of_metadata(&bands.join("B02.jp2"))
            .expect("sound")
            .expect("there");
        assert_eq!(found.offset, -1000.0);
        // Outside of a product, only beside the file.
        std::fs::write(folder.path().join("MTD_MSIL2A.xml"), xml).expect("written");
        let below = folder.path().join("other/B02.tif");
        assert_eq!(of_metadata(&below).expect("sound"), None);
    }

    #[test]
    fn reads_like_the_configuration() {
        let read = |text: &str| serde_json::from_str::<Offset>(text);
        assert_eq!(read("\"auto\"").expect("an offset"), Offset::Auto);
        assert_eq!(read("-1000").expect("an offset"), Offset::Fixed(-1000.0));
        let error = read("\"maybe\"").expect_err("no offset").to_string();
        assert!(error.contains("maybe is no offset"), "{error}");
        assert_eq!(
            serde_json::to_string(&Offset::Auto).expect("text"),
            "\"auto\""
        );
    }
}
