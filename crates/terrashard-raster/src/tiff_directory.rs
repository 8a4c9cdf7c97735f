//! The directories of a TIFF file as bytes.
//!
//! TIFF 6.0, <https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf>; BigTIFF,
//! <https://www.awaresystems.be/imaging/tiff/bigtiff.html>

/// One tag and its value.
pub(crate) struct Entry {
    pub(crate) tag: u16,
    pub(crate) value: Value,
}

/// The value of a tag.
pub(crate) enum Value {
    Short(Vec<u16>),
    Long(Vec<u32>),
    Double(Vec<f64>),
    Text(String),
    /// Places in the file, or lengths: 32 bits each, 64 in a BigTIFF.
    Places(Vec<u64>),
}

/// How wide places in the file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Classic,
    Big,
}

impl Variant {
    const fn place_bytes(self) -> usize {
        match self {
            Self::Classic => 4,
            Self::Big => 8,
        }
    }

    const fn entry_bytes(self) -> usize {
        match self {
            Self::Classic => 12,
            Self::Big => 20,
        }
    }

    const fn count_bytes(self) -> usize {
        match self {
            Self::Classic => 2,
            Self::Big => 8,
        }
    }

    fn push_place(self, bytes: &mut Vec<u8>, place: u64) {
        match self {
            Self::Classic => {
                let place = u32::try_from(place).expect("a classic file is below 4 GiB");
                bytes.extend(place.to_le_bytes());
            }
            Self::Big => bytes.extend(place.to_le_bytes()),
        }
    }

    /// The first bytes of a file whose first directory is at `first`.
    pub(crate) fn header(self, first: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.header_bytes());
        match self {
            Self::Classic => bytes.extend(b"II*\0"),
            Self::Big => bytes.extend(b"II+\0\x08\0\0\0"),
        }
        self.push_place(&mut bytes, first);
        bytes
    }

    pub(crate) const fn header_bytes(self) -> usize {
        match self {
            Self::Classic => 8,
            Self::Big => 16,
        }
    }
}

impl Value {
    fn kind_and_count(&self, variant: Variant) -> (u16, usize) {
        match self {
            Self::Short(v) => (3, v.len()),
            Self::Long(v) => (4, v.len()),
            Self::Double(v) => (12, v.len()),
            Self::Text(v) => (2, v.len() + 1),
            Self::Places(v) => match variant {
                Variant::Classic => (4, v.len()),
                Variant::Big => (16, v.len()),
            },
        }
    }

    fn bytes(&self, variant: Variant) -> Vec<u8> {
        match self {
            Self::Short(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::Long(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::Double(v) => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::Text(v) => v.bytes().chain([0]).collect(),
            Self::Places(v) => {
                let mut bytes = Vec::with_capacity(v.len() * variant.place_bytes());
                v.iter()
                    .for_each(|place| variant.push_place(&mut bytes, *place));
                bytes
            }
        }
    }

    fn len(&self, variant: Variant) -> usize {
        let each = match self {
            Self::Short(_) => 2,
            Self::Long(_) => 4,
            Self::Double(_) => 8,
            Self::Text(_) => 1,
            Self::Places(_) => variant.place_bytes(),
        };
        self.kind_and_count(variant).1 * each
    }
}

/// Bytes of a directory with all its values, an even number.
pub(crate) fn directory_bytes(entries: &[Entry], variant: Variant) -> usize {
    let fixed =
        variant.count_bytes() + entries.len() * variant.entry_bytes() + variant.place_bytes();
    let values = entries
        .iter()
        .map(|entry| entry.value.len(variant))
        .filter(|len| *len > variant.place_bytes())
        .map(|len| len.next_multiple_of(2));
    fixed.next_multiple_of(2) + values.sum::<usize>()
}

/// A directory that lies at `at`, with its values behind it, and names `next` as the one that follows; 0 for none.
///
/// Entries are sorted by tag.
pub(crate) fn directory(entries: &[Entry], variant: Variant, at: u64, next: u64) -> Vec<u8> {
    debug_assert!(entries.is_sorted_by(|a, b| a.tag < b.tag));
    let fixed =
        variant.count_bytes() + entries.len() * variant.entry_bytes() + variant.place_bytes();
    let mut values_at = at + fixed.next_multiple_of(2) as u64;
    let mut bytes = Vec::with_capacity(directory_bytes(entries, variant));
    let mut values = Vec::new();
    match variant {
        Variant::Classic => bytes.extend((entries.len() as u16).to_le_bytes()),
        Variant::Big => bytes.extend((entries.len() as u64).to_le_bytes()),
    }
    for Entry { tag, value } in entries {
        let (kind, count) = value.kind_and_count(variant);
        bytes.extend(tag.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        variant.push_place(&mut bytes, count as u64);
        let mut value = value.bytes(variant);
        if value.len() <= variant.place_bytes() {
            value.resize(variant.place_bytes(), 0);
            bytes.extend(value);
        } else {
            variant.push_place(&mut bytes, values_at);
            value.resize(value.len().next_multiple_of(2), 0);
            values_at += value.len() as u64;
            values.extend(value);
        }
    }
    variant.push_place(&mut bytes, next);
    bytes.resize(fixed.next_multiple_of(2), 0);
    bytes.extend(values);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        vec![
            Entry {
                tag: 256,
                value: Value::Long(vec![7]),
            },
            Entry {
                tag: 258,
                value: Value::Short(vec![8, 8, 8]),
            },
            Entry {
                tag: 324,
                value: Value::Places(vec![5]),
            },
            Entry {
                tag: 42113,
                value: Value::Text("-1".into()),
            },
        ]
    }

    /// Laid out by hand from the TIFF 6.0 and BigTIFF documents.
    #[test]
    fn a_directory_has_its_values_inside_or_behind_it() {
        let classic = directory(&entries(), Variant::Classic, 8, 0x99);
        let mut expected = vec![4, 0];
        expected.extend([0, 1, 4, 0, 1, 0, 0, 0, 7, 0, 0, 0]);
        expected.extend([2, 1, 3, 0, 3, 0, 0, 0, 62, 0, 0, 0]);
        expected.extend([0x44, 1, 4, 0, 1, 0, 0, 0, 5, 0, 0, 0]);
        expected.extend([0x81, 0xa4, 2, 0, 3, 0, 0, 0, b'-', b'1', 0, 0]);
        expected.extend([0x99, 0, 0, 0]);
        expected.extend([8, 0, 8, 0, 8, 0]);
        assert_eq!(classic, expected);
        assert_eq!(directory_bytes(&entries(), Variant::Classic), classic.len());

        let big = directory(&entries(), Variant::Big, 16, 0x99);
        assert_eq!(directory_bytes(&entries(), Variant::Big), big.len());
        assert_eq!(big[..8], [4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            big[28..48],
            [2, 1, 3, 0, 3, 0, 0, 0, 0, 0, 0, 0, 8, 0, 8, 0, 8, 0, 0, 0]
        );
        assert_eq!(big[48..52], [0x44, 1, 16, 0]);
        assert_eq!(Variant::Big.header(16).len(), Variant::Big.header_bytes());
    }
}
