//! Which bands of a file a model takes, and in which order.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use terrashard_raster::Metadata;

use crate::{Error, Result};

/// One band of a file: by its description or by its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Band {
    /// The number of the band, from 1 as in GDAL.
    Number(usize),
    /// The description of the band, such as `B08`; case does not matter.
    Name(String),
}

impl FromStr for Band {
    type Err = std::convert::Infallible;

    /// Digits are a number, anything else a name.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text
            .trim()
            .parse()
            .map_or_else(|_| Self::Name(text.trim().to_owned()), Self::Number))
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "number {number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Which bands are taken from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BandSelection {
    /// All, in the order of the file, which must have exactly this many.
    All(usize),
    /// These, in this order; the file may have more.
    Pick(Vec<Band>),
}

impl BandSelection {
    /// The bands of these names, in this order.
    pub fn names<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Pick(
            names
                .into_iter()
                .map(|name| Band::Name(name.into()))
                .collect(),
        )
    }

    /// Number of bands that are taken.
    pub fn len(&self) -> usize {
        match self {
            Self::All(bands) => *bands,
            Self::Pick(bands) => bands.len(),
        }
    }

    /// Whether no band is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the bands are called: by the name that they are chosen by, else by their description in the file, else by their number.
    pub fn titles(&self, metadata: &Metadata) -> Vec<String> {
        let described = |place: usize| {
            let description = metadata.descriptions.get(place).cloned().flatten();
            description.unwrap_or_else(|| format!("band {}", place + 1))
        };
        match self {
            Self::All(bands) => (0..*bands).map(described).collect(),
            Self::Pick(bands) => bands
                .iter()
                .map(|band| match band {
                    Band::Name(name) => name.clone(),
                    Band::Number(number) => described(number.saturating_sub(1)),
                })
                .collect(),
        }
    }

    /// The places of the bands in a file, from 0.
    ///
    /// # Errors
    /// [`Error::BandCount`] where the file has another number than [`BandSelection::All`] says, or fewer than are picked;
    /// [`Error::UnknownBand`] where a name or number is not in the file, so also any name in a file without descriptions.
    pub fn resolve(&self, path: &Path, metadata: &Metadata) -> Result<Vec<usize>> {
        let (expected, found) = (self.len(), metadata.bands);
        let count_fits = if matches!(self, Self::All(_)) {
            found == expected
        } else {
            found >= expected
        };
        if !count_fits || expected == 0 {
            return Err(Error::BandCount {
                path: path.to_owned(),
                expected,
                found,
            });
        }
        match self {
            Self::All(bands) => Ok((0..*bands).collect()),
            Self::Pick(bands) => bands
                .iter()
                .map(|band| locate(band, path, metadata))
                .collect(),
        }
    }
}

fn locate(band: &Band, path: &Path, metadata: &Metadata) -> Result<usize> {
    let place = match band {
        Band::Number(number) => number
            .checked_sub(1)
            .filter(|&place| place < metadata.bands),
        Band::Name(name) => metadata.band_named(name),
    };
    place.ok_or_else(|| {
        let names: Vec<&str> = metadata
            .descriptions
            .iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let available = match (band, names.is_empty()) {
            (Band::Number(_), _) => format!("bands 1 to {}", metadata.bands),
            (Band::Name(_), false) => names.join(", "),
            (Band::Name(_), true) => {
                format!(
                    "{} bands without descriptions; choose them by number, from 1",
                    metadata.bands
                )
            }
        };
        Error::UnknownBand {
            path: path.to_owned(),
            band: band.to_string(),
            available,
        }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use terrashard_raster::{DataType, Georeference};

    use super::*;

    pub(crate) fn metadata(width: usize, height: usize, descriptions: &[&str]) -> Metadata {
        Metadata {
            width,
            height,
            bands: descriptions.len(),
            data_type: DataType::U16,
            georeference: Georeference::default(),
            nodata: None,
            descriptions: descriptions
                .iter()
                .map(|d| (!d.is_empty()).then(|| (*d).to_owned()))
                .collect(),
            overviews: Vec::new(),
            block: (width, 1),
        }
    }

    fn check(descriptions: &[&str], selection: BandSelection, expected: Result<&[usize], &str>) {
        let got = selection
            .resolve(Path::new("a.tif"), &metadata(1, 1, descriptions))
            .map_err(|e| e.to_string());
        match expected {
            Ok(places) => assert_eq!(got.as_deref(), Ok(places)),
            Err(part) => assert!(
                got.as_ref()
                    .is_err_and(|e| e.contains(part) && e.contains("a.tif")),
                "{got:?}"
            ),
        }
    }

    #[test]
    fn finds_bands_by_name_and_number() {
        let file = ["B02", "B03", "B08"];
        check(&file, BandSelection::names(["b08", "B02"]), Ok(&[2, 0]));
        check(
            &file,
            BandSelection::Pick(vec![Band::Number(3), Band::Number(1)]),
            Ok(&[2, 0]),
        );
        check(&file, BandSelection::All(3), Ok(&[0, 1, 2]));
        check(
            &file,
            BandSelection::All(6),
            Err("expected 6 bands, found 3"),
        );
        check(
            &file,
            BandSelection::names(["B02"; 4]),
            Err("expected 4 bands, found 3"),
        );
        check(
            &file,
            BandSelection::names(["B12"]),
            Err("no band B12; it has B02, B03, B08"),
        );
        check(
            &file,
            BandSelection::Pick(vec![Band::Number(0)]),
            Err("no band number 0; it has bands 1 to 3"),
        );
        check(
            &["", ""],
            BandSelection::names(["B02"]),
            Err("2 bands without descriptions; choose them by number"),
        );
    }

    #[test]
    fn text_and_toml_name_bands_alike() {
        assert_eq!("12".parse(), Ok(Band::Number(12)));
        assert_eq!(" B8A ".parse(), Ok(Band::Name("B8A".to_owned())));
        let bands: Vec<Band> = serde_json::from_str(r#"[4, "B03"]"#).expect("both forms");
        assert_eq!(bands, [Band::Number(4), Band::Name("B03".to_owned())]);
    }
}
