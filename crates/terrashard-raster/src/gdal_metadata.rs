//! The little XML that GDAL keeps in tag 42112: band descriptions, scales, offsets, and tags of the raster.
//!
//! <https://gdal.org/drivers/raster/gtiff.html#metadata>

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::xml::{attribute, elements, escape, unescape};

/// The TIFF tag.
pub(crate) const TAG: u16 = 42112;

/// What the tag says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GdalMetadata {
    /// For each band.
    pub(crate) descriptions: Vec<Option<String>>,
    /// For each band; 1 where none is given.
    pub(crate) scales: Vec<f64>,
    /// For each band; 0 where none is given.
    pub(crate) offsets: Vec<f64>,
    /// Names and values of the raster, those of no domain alone.
    pub(crate) tags: BTreeMap<String, String>,
}

impl GdalMetadata {
    /// What `text` says of `bands` bands; what does not parse is skipped, as GDAL does.
    pub(crate) fn parse(text: &str, bands: usize) -> Self {
        let mut found = Self {
            descriptions: vec![None; bands],
            scales: vec![1.0; bands],
            offsets: vec![0.0; bands],
            tags: BTreeMap::new(),
        };
        for (attributes, value) in elements(text, "Item") {
            let value = unescape(value);
            let band = attribute(attributes, "sample").and_then(|s| s.parse::<usize>().ok());
            match (attribute(attributes, "role"), band) {
                (Some("description"), Some(band)) if band < bands => {
                    found.descriptions[band] = Some(value);
                }
                (Some("scale"), Some(band)) if band < bands => {
                    found.scales[band] = value.trim().parse().unwrap_or(1.0);
                }
                (Some("offset"), Some(band)) if band < bands => {
                    found.offsets[band] = value.trim().parse().unwrap_or(0.0);
                }
                (None, None) if attribute(attributes, "domain").is_none() => {
                    let name = attribute(attributes, "name").unwrap_or_default();
                    found.tags.insert(unescape(name), value);
                }
                _ => {}
            }
        }
        found
    }

    /// The text of the tag, or `None` where there is nothing to say.
    pub(crate) fn to_text(&self) -> Option<String> {
        let mut items = String::new();
        let mut item = |attributes: String, value: &str| {
            let value = escape(value);
            writeln!(items, "  <Item {attributes}>{value}</Item>")
                .expect("a string takes what is written");
        };
        for (name, value) in &self.tags {
            item(format!("name=\"{}\"", escape(name)), value);
        }
        for (band, description) in self.descriptions.iter().enumerate() {
            if let Some(description) = description {
                let attributes =
                    format!("name=\"DESCRIPTION\" sample=\"{band}\" role=\"description\"");
                item(attributes, description);
            }
        }
        // GDAL writes both or neither.
        for (band, (scale, offset)) in self.scales.iter().zip(&self.offsets).enumerate() {
            if (*scale, *offset) != (1.0, 0.0) {
                let attributes = |name: &str, role: &str| {
                    format!("name=\"{name}\" sample=\"{band}\" role=\"{role}\"")
                };
                item(attributes("OFFSET", "offset"), &offset.to_string());
                item(attributes("SCALE", "scale"), &scale.to_string());
            }
        }
        (!items.is_empty()).then(|| format!("<GDALMetadata>\n{items}</GDALMetadata>\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_bands_and_raster_say_among_other_items() {
        let text = r#"<GDALMetadata>
  <Item name="PROCESSING_BASELINE">04.00</Item>
  <Item name="COMPRESSION" domain="IMAGE_STRUCTURE">DEFLATE</Item>
  <Item name="STATISTICS_MEAN" sample="0">7</Item>
  <Item name="DESCRIPTION" sample="1" role="description">B8A &amp; B8 &amp;lt;</Item>
  <Item name="SCALE" sample="0" role="scale">1e-4</Item>
  <Item name="OFFSET" sample="0" role="offset">-0.1</Item>
  <Item name="SCALE" sample="1" role="scale">much</Item>
  <Item name="DESCRIPTION" sample="9" role="description">no such band</Item>
  <Item name="DESCRIPTION" sample="0" role="desc"#;
        let found = GdalMetadata::parse(text, 2);
        assert_eq!(found.descriptions, [None, Some("B8A & B8 &lt;".to_owned())]);
        assert_eq!(found.scales, [1e-4, 1.0]);
        assert_eq!(found.offsets, [-0.1, 0.0]);
        assert_eq!(
            found.tags.into_iter().collect::<Vec<_>>(),
            [("PROCESSING_BASELINE".to_owned(), "04.00".to_owned())]
        );
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let said = GdalMetadata {
            descriptions: vec![Some("<B02> & \"B03\"".into()), None],
            scales: vec![1.0, 1e-4],
            offsets: vec![0.0, -0.1],
            tags: BTreeMap::from([("A&B".to_owned(), "<1>".to_owned())]),
        };
        let text = said.to_text().expect("there is something to say");
        assert_eq!(GdalMetadata::parse(&text, 2), said);
        let silent = GdalMetadata::parse("", 3);
        assert_eq!(silent.to_text(), None);
    }
}
