//! Numbers of bytes with their units.

use serde::de::{self, Deserialize, Deserializer};
use serde::ser::Serializer;

/// The least number of bytes that is taken without a unit.
const LEAST_WITHOUT_UNIT: f64 = (1 << 20) as f64;

/// Units, the largest first.
const UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A size such as `1GiB`, `512MiB` or `1000000`, in bytes.
///
/// # Errors
/// What is wrong with it and what to write.
pub fn bytes(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "" | "B" => 1u64,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => {
            return Err(format!(
                "unknown unit `{unit}`, write for example 1GiB or 512MiB"
            ));
        }
    };
    match number.parse::<f64>() {
        // Nobody has that little: a unit was forgotten.
        Ok(number) if unit.is_empty() && number < LEAST_WITHOUT_UNIT => Err(format!(
            "{text} without a unit is {text} bytes, write for example {text}GiB or {text}MiB"
        )),
        Ok(number) => Ok((number * factor as f64) as u64),
        Err(_) => Err("expected a number with a unit, for example 1GiB".into()),
    }
}

/// Reads a size that may be left out.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)
        .map_err(|_| de::Error::custom("expected a size in quotation marks, such as \"16GiB\""))?;
    bytes(&text).map(Some).map_err(de::Error::custom)
}

/// Writes a size with the largest unit that it is a whole number of.
pub(super) fn serialize<S: Serializer>(bytes: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    let Some(bytes) = *bytes else {
        return to.serialize_none();
    };
    let whole = UNITS
        .iter()
        .find(|(_, factor)| bytes.is_multiple_of(*factor));
    let (unit, factor) = whole.unwrap_or(&UNITS[UNITS.len() - 1]);
    to.serialize_str(&format!("{}{unit}", bytes / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("1GiB"), Ok(1 << 30));
        assert_eq!(bytes("0.5MiB"), Ok(1 << 19));
        assert_eq!(bytes("12B"), Ok(12));
        assert_eq!(bytes("1048576"), Ok(1 << 20));
        assert_eq!(
            bytes("16").unwrap_err(),
            "16 without a unit is 16 bytes, write for example 16GiB or 16MiB"
        );
        assert!(bytes("1GB").unwrap_err().contains("1GiB"));
    }
}
