//! Which part of a scene is for training and which for testing.

use serde::{Deserialize, Serialize};

/// A part of a scene, in fractions of its width and height.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub struct Region {
    /// Western border, 0 to 1.
    pub left: f64,
    /// Northern border, 0 to 1.
    pub top: f64,
    /// Eastern border, 0 to 1.
    pub right: f64,
    /// Southern border, 0 to 1.
    pub bottom: f64,
}

impl Region {
    /// The whole scene.
    pub const ALL: Region = Region {
        left: 0.0,
        top: 0.0,
        right: 1.0,
        bottom: 1.0,
    };
    /// The western half.
    pub const WEST: Region = Region {
        right: 0.5,
        ..Region::ALL
    };
    /// The eastern half.
    pub const EAST: Region = Region {
        left: 0.5,
        ..Region::ALL
    };
    /// The northern half.
    pub const NORTH: Region = Region {
        bottom: 0.5,
        ..Region::ALL
    };
    /// The southern half.
    pub const SOUTH: Region = Region {
        top: 0.5,
        ..Region::ALL
    };

    const NAMES: [(&str, Region); 5] = [
        ("all", Region::ALL),
        ("west", Region::WEST),
        ("east", Region::EAST),
        ("north", Region::NORTH),
        ("south", Region::SOUTH),
    ];

    /// `(x, y, width, height)` in pixels of a scene of `width` x `height` pixels; never past its borders.
    pub fn window(&self, width: usize, height: usize) -> (usize, usize, usize, usize) {
        let at = |fraction: f64, size: usize| (fraction * size as f64).round() as usize;
        let (x, y) = (at(self.left, width), at(self.top, height));
        (x, y, at(self.right, width) - x, at(self.bottom, height) - y)
    }
}

impl TryFrom<toml::Value> for Region {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let expected = "expected one of \"all\", \"west\", \"east\", \"north\", \"south\", or fractions such as { left = 0.0, right = 0.6 }";
        match &value {
            toml::Value::String(name) => {
                let found = Region::NAMES.iter().find(|(known, _)| known == name);
                found
                    .map(|(_, region)| *region)
                    .ok_or_else(|| format!("unknown region \"{name}\", {expected}"))
            }
            toml::Value::Table(borders) => {
                let mut region = Region::ALL;
                for (name, border) in borders {
                    let border = border
                        .as_float()
                        .or(border.as_integer().map(|whole| whole as f64));
                    let border = border
                        .filter(|border| (0.0..=1.0).contains(border))
                        .ok_or(expected)?;
                    match name.as_str() {
                        "left" => region.left = border,
                        "top" => region.top = border,
                        "right" => region.right = border,
                        "bottom" => region.bottom = border,
                        _ => return Err(format!("unknown border \"{name}\", {expected}")),
                    }
                }
                match region.left < region.right && region.top < region.bottom {
                    true => Ok(region),
                    false => Err(format!(
                        "an empty region, {expected} with left < right and top < bottom"
                    )),
                }
            }
            _ => Err(expected.into()),
        }
    }
}

impl From<Region> for toml::Value {
    fn from(region: Region) -> Self {
        if let Some((name, _)) = Region::NAMES.iter().find(|(_, known)| *known == region) {
            return toml::Value::String((*name).into());
        }
        let borders = [
            ("left", region.left),
            ("top", region.top),
            ("right", region.right),
            ("bottom", region.bottom),
        ];
        toml::Value::Table(
            borders
                .into_iter()
                .map(|(name, border)| (name.into(), border.into()))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_meet_without_overlap() {
        assert_eq!(Region::WEST.window(1536, 768), (0, 0, 768, 768));
        assert_eq!(Region::EAST.window(1536, 768), (768, 0, 768, 768));
        // An odd width: both borders round alike, so every column has one owner.
        let (x, _, width, _) = Region::WEST.window(379, 10);
        assert_eq!((x, width), (0, 190));
        assert_eq!(Region::EAST.window(379, 10).0, 190);
    }
}
