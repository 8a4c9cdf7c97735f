//! Arrays of NumPy's format, as far as the benchmarks' inputs use it.
//!
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use std::path::{Path, PathBuf};

/// An array of bytes or single-precision floats in C order.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    /// Its values, the last axis fastest.
    pub values: Vec<f32>,
}

/// A file that is no array of bytes or floats.
#[derive(Debug, thiserror::Error)]
#[error("failed to read {}: {reason}; give an array of uint8 or little-endian float32 in C order, as `numpy.save` writes it", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub reason: String,
}

/// Reads a `.npy` file.
///
/// # Errors
/// [`Error`] with what is wrong.
pub fn read(path: &Path) -> Result<Array, Error> {
    let fail = |reason: String| Error {
        path: path.into(),
        reason,
    };
    let bytes = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    parse(&bytes).map_err(fail)
}

fn parse(bytes: &[u8]) -> Result<Array, String> {
    let rest = bytes
        .strip_prefix(b"\x93NUMPY\x01\x00")
        .ok_or("it does not begin as one of version 1.0")?;
    let (length, rest) = rest.split_at_checked(2).ok_or("its header is cut off")?;
    let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
    let (header, data) = rest
        .split_at_checked(length)
        .ok_or("its header is cut off")?;
    let header = String::from_utf8_lossy(header);
    let after = |key: &str| {
        let found = header.split_once(&format!("'{key}':"));
        found
            .map(|(_, rest)| rest.trim_start())
            .ok_or(format!("its header has no {key}"))
    };
    if !after("fortran_order")?.starts_with("False") {
        return Err("it is in Fortran order".into());
    }
    let axes = after("shape")?
        .trim_start_matches('(')
        .split(')')
        .next()
        .unwrap_or_default();
    let axes = axes
        .split(',')
        .map(str::trim)
        .filter(|axis| !axis.is_empty());
    let shape: Vec<usize> = axes
        .map(|axis| axis.parse().map_err(|_| format!("`{axis}` is no length")))
        .collect::<Result<_, _>>()?;
    let values: Vec<f32> = match after("descr")?.get(..5) {
        Some("'<f4'") => {
            let (values, _) = data.as_chunks::<4>();
            values
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect()
        }
        Some("'|u1'") => data.iter().map(|byte| f32::from(*byte)).collect(),
        other => {
            return Err(format!(
                "its element type is {}",
                other.unwrap_or("not told")
            ));
        }
    };
    let expected: usize = shape.iter().product();
    match values.len() == expected {
        true => Ok(Array { shape, values }),
        false => Err(format!(
            "it has {} values, its shape {expected}",
            values.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(header.len()).expect("short").to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn arrays_are_read_and_others_refused() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }  \n";
        let data = [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat();
        let array = parse(&file(header, &data)).expect("an array");
        assert_eq!((array.shape, array.values), (vec![1, 2], vec![1.5, -2.0]));
        let bytes = header.replace("<f4", "|u1").replace("(1, 2)", "(3,)");
        let array = parse(&file(&bytes, &[0, 4, 255])).expect("an array");
        assert_eq!(
            (array.shape, array.values),
            (vec![3], vec![0.0, 4.0, 255.0])
        );
        let refused = |header: &str, data: &[u8], expected: &str| {
            let error = parse(&file(header, data)).expect_err("it is wrong");
            assert!(error.contains(expected), "{error}");
        };
        refused(header, &data[1..], "it has 1 values, its shape 2");
        refused(
            &header.replace("<f4", "<f8"),
            &data,
            "its element type is '<f8'",
        );
        refused(&header.replace("False", "True"), &data, "Fortran order");
        assert!(parse(b"PK\x03\x04").is_err());
    }
}
