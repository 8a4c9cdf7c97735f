//! The little of XML that metadata files need: elements by name, attributes, and text.

/// The attributes and the content of each element `name`, in order. An element inside of one of the same name is part of that.
pub(crate) fn elements<'a>(
    text: &'a str,
    name: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find('<')?;
            rest = &rest[at + 1..];
            let Some(after) = rest.strip_prefix(name) else {
                continue;
            };
            if !after.starts_with(['>', '/', ' ', '\t', '\r', '\n']) {
                continue;
            }
            let (attributes, after) = after.split_once('>')?;
            if let Some(attributes) = attributes.strip_suffix('/') {
                rest = after;
                return Some((attributes, ""));
            }
            let end = after.find(&format!("</{name}>"))?;
            rest = &after[end..];
            return Some((attributes, &after[..end]));
        }
    })
}

/// The text of the first element `name`, without space around it.
pub(crate) fn text_of<'a>(text: &'a str, name: &'a str) -> Option<&'a str> {
    elements(text, name)
        .map(|(_, content)| content.trim())
        .next()
}

/// The value of `name="..."` in the attributes of an element.
pub(crate) fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = attributes.split('"');
    while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
        if key.trim().trim_end_matches('=').trim_end() == name {
            return Some(value);
        }
    }
    None
}

/// Escapes what XML reserves.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Undoes the five escapes of XML; the ampersand last, so that no escape is undone twice.
pub(crate) fn unescape(text: &str) -> String {
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
    fn elements_have_attributes_and_content() {
        let text = r#"<?xml version="1.0"?><a:Size resolution="10"><N> 7 </N></a:Size>
            <a:SizeX/><a:Size  resolution = "20" ><N>8</N></a:Size><a:Size/><a:Size"#;
        let found: Vec<_> = elements(text, "a:Size").collect();
        assert_eq!(found.len(), 3);
        assert_eq!(attribute(found[1].0, "resolution"), Some("20"));
        assert_eq!(attribute(found[0].0, "res"), None);
        assert_eq!(text_of(found[0].1, "N"), Some("7"));
        assert_eq!(found[2], ("", ""));
        assert_eq!(text_of(text, "M"), None);
        assert_eq!(text_of("<N>1", "N"), None);
    }
}
