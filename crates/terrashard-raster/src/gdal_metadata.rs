//! The little XML that GDAL keeps in tag 42112: band descriptions.
//!
//! <https://gdal.org/drivers/raster/gtiff.html#metadata>

/// The TIFF tag.
pub(crate) const TAG: u16 = 42112;

/// The descriptions of `bands` bands in the text of the tag; what does not parse is skipped, as GDAL does.
pub(crate) fn descriptions(text: &str, bands: usize) -> Vec<Option<String>> {
    let mut found = vec![None; bands];
    for item in text.split("<Item").skip(1) {
        let Some((attributes, rest)) = item.split_once('>') else {
            continue;
        };
        let Some((value, _)) = rest.split_once("</Item>") else {
            continue;
        };
        if attribute(attributes, "role") != Some("description") {
            continue;
        }
        let band = attribute(attributes, "sample").and_then(|s| s.parse::<usize>().ok());
        if let Some(slot) = band.and_then(|band| found.get_mut(band)) {
            *slot = Some(unescape(value));
        }
    }
    found
}

/// The value of `name="..."` in the attributes of an element.
fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = attributes.split('"');
    while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
        if key.trim().trim_end_matches('=').trim_end() == name {
            return Some(value);
        }
    }
    None
}

/// Undoes the five escapes of XML; the ampersand last, so that no escape is undone twice.
fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_descriptions_among_other_items() {
        let text = r#"<GDALMetadata>
  <Item name="SCALE">1e-4</Item>
  <Item name="DESCRIPTION" sample="1" role="description">B8A &amp; B8 &amp;lt;</Item>
  <Item name="SCALE" sample="0" role="scale">2</Item>
  <Item name="DESCRIPTION" sample="9" role="description">no such band</Item>
  <Item name="DESCRIPTION" sample="0" role="desc"#;
        assert_eq!(
            descriptions(text, 2),
            [None, Some("B8A & B8 &lt;".to_owned())]
        );
    }
}
