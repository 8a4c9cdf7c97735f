//! Maps of several scenes put together where they lie on one grid.

use terrashard_raster::{
    Georeference, Metadata, Raster, RasterSource, RasterSpec, Samples, Window,
};

use crate::{Error, IGNORE, Result};

/// How far an origin may be from the grid of the others, in pixels.
const OFF_GRID: f64 = 1e-3;

/// Maps of classes over the ground of all of them. Where they overlap, the first one given that has data counts; where none has,
/// there is [`IGNORE`].
#[derive(Debug)]
pub struct Overlay {
    /// Each map with where it lies.
    maps: Vec<(Box<dyn RasterSource>, Window)>,
    width: usize,
    height: usize,
    georeference: Georeference,
}

impl Overlay {
    /// Where maps of these images would lie together, from a grid `scale` times as fine: (width, height) and the georeference.
    /// Nothing is read.
    ///
    /// # Errors
    /// [`Error::Setting`] where two do not lie on one grid: another reference system, pixels of another size or turned, an origin
    /// between pixels.
    pub fn check(images: &[(&str, &Metadata)], scale: usize) -> Result<()> {
        let grounds = images.iter().map(|(name, image)| {
            let size = (image.width * scale, image.height * scale);
            (*name, size, image.georeference.scaled(scale as f64))
        });
        place(&grounds.collect::<Vec<_>>()).map(|_| ())
    }

    /// Puts maps of classes together.
    ///
    /// # Errors
    /// As [`Overlay::check`]; [`Error::Setting`] for a map that has several bands or other samples than bytes.
    pub fn new(maps: Vec<Box<dyn RasterSource>>) -> Result<Self> {
        let names: Vec<String> = maps
            .iter()
            .map(|map| map.path().display().to_string())
            .collect();
        for (map, name) in maps.iter().zip(&names) {
            let (bands, kind) = (map.metadata().bands, map.metadata().data_type);
            if bands != 1 || kind != terrashard_raster::DataType::U8 {
                return Err(unfit(format!(
                    "{name} has {bands} bands of {kind}, no classes"
                )));
            }
        }
        let grounds = maps.iter().zip(&names).map(|(map, name)| {
            let image = map.metadata();
            (
                name.as_str(),
                (image.width, image.height),
                image.georeference,
            )
        });
        let (places, georeference) = place(&grounds.collect::<Vec<_>>())?;
        let end = |end: fn(&Window) -> usize| places.iter().map(end).max().unwrap_or(0);
        Ok(Self {
            width: end(Window::col_end),
            height: end(Window::row_end),
            georeference,
            maps: maps.into_iter().zip(places).collect(),
        })
    }

    /// The raster that it is written to.
    pub fn spec(&self) -> RasterSpec {
        let kind = terrashard_raster::DataType::U8;
        RasterSpec::new(self.width, self.height, 1, kind)
            .georeference(self.georeference)
            .nodata(f64::from(IGNORE))
    }

    /// The pixels of some rows over the whole width.
    ///
    /// # Errors
    /// [`Error::Raster`].
    pub fn rows(&self, row: usize, height: usize) -> Result<Raster> {
        let window = Window::new(0, row, self.width, height);
        let mut classes = vec![IGNORE; window.pixels()];
        for (map, place) in &self.maps {
            let Some(part) = place.intersection(&window) else {
                continue;
            };
            let (col, row) = (part.col - place.col, part.row - place.row);
            let own = Window::new(col, row, part.width, part.height);
            let Samples::U8(found) = map.read_window(own)?.into_samples() else {
                unreachable!("the types are compared when maps are put together");
            };
            let nodata = |class: u8| class == IGNORE || map.metadata().is_nodata(class.into());
            for (row, line) in found.chunks_exact(part.width).enumerate() {
                let at = (part.row - window.row + row) * self.width + part.col;
                let places = classes[at..at + part.width].iter_mut().zip(line);
                places
                    .filter(|(class, found)| **class == IGNORE && !nodata(**found))
                    .for_each(|(class, found)| *class = *found);
            }
        }
        Ok(Raster::new(window, 1, Samples::U8(classes))?)
    }
}

type Ground<'a> = (&'a str, (usize, usize), Georeference);

/// Where each raster lies in pixels of the smallest one over all of them, and the ground of that.
fn place(grounds: &[Ground<'_>]) -> Result<(Vec<Window>, Georeference)> {
    let Some((first, _, ground)) = grounds.first() else {
        return Err(unfit("no map is given".into()));
    };
    let Some(grid) = ground.transform.filter(|t| t.b == 0.0 && t.d == 0.0) else {
        return Err(unfit(format!("{first} is turned or lies nowhere")));
    };
    let mut offsets = Vec::with_capacity(grounds.len());
    for (name, _, other) in grounds {
        if other.epsg != ground.epsg {
            let code = |epsg: Option<u32>| epsg.map_or("no code".into(), |epsg| epsg.to_string());
            return Err(unfit(format!(
                "{first} is in EPSG {} and {name} in {}; put the scenes of each reference system together",
                code(ground.epsg),
                code(other.epsg)
            )));
        }
        let same = |t: &terrashard_raster::Transform| {
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
            t.b == 0.0 && t.d == 0.0 && near(t.a, grid.a) && near(t.e, grid.e)
        };
        let Some(t) = other.transform.filter(same) else {
            return Err(unfit(format!("{name} has other pixels than {first}")));
        };
        let (col, row) = ((t.c - grid.c) / grid.a, (t.f - grid.f) / grid.e);
        let between = (col - col.round()).abs().max((row - row.round()).abs());
        if between > OFF_GRID {
            return Err(unfit(format!(
                "{name} lies {between:.3} pixels beside the grid of {first}; resample it first"
            )));
        }
        offsets.push((col.round() as i64, row.round() as i64));
    }
    let left = offsets.iter().map(|(col, _)| *col).min().unwrap_or(0);
    let top = offsets.iter().map(|(_, row)| *row).min().unwrap_or(0);
    let places = offsets
        .iter()
        .zip(grounds)
        .map(|((col, row), (_, size, _))| {
            Window::new((col - left) as usize, (row - top) as usize, size.0, size.1)
        });
    let (c, f) = grid.apply(left as f64, top as f64);
    let transform = Some(terrashard_raster::Transform { c, f, ..grid });
    let georeference = Georeference {
        transform,
        ..*ground
    };
    Ok((places.collect(), georeference))
}

fn unfit(what: String) -> Error {
    Error::Setting {
        key: "mosaic",
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrashard_raster::{DataType, MemorySource, Transform};

    fn map(
        x: f64,
        y: f64,
        epsg: u32,
        (width, height): (usize, usize),
        classes: &[u8],
    ) -> Box<MemorySource> {
        let metadata = Metadata {
            width,
            height,
            bands: 1,
            data_type: DataType::U8,
            georeference: Georeference {
                epsg: Some(epsg),
                transform: Some(Transform::north_up(x, y, 2.0)),
            },
            nodata: Some(255.0),
            descriptions: vec![None],
            overviews: Vec::new(),
            block: (width, 1),
        };
        let samples = Samples::U8(classes.to_vec());
        Box::new(MemorySource::new(format!("{x}.tif"), metadata, samples).expect("filled"))
    }

    #[test]
    fn the_first_with_data_counts() {
        let first = map(100.0, 50.0, 32633, (3, 2), &[1, 1, 255, 1, 255, 1]);
        let second = map(102.0, 52.0, 32633, (3, 2), &[2, 2, 2, 2, 3, 255]);
        let overlay = Overlay::new(vec![first, second]).expect("one grid");
        let spec = overlay.spec();
        assert_eq!((spec.width, spec.height), (4, 3));
        let transform = Transform::north_up(100.0, 52.0, 2.0);
        assert_eq!(spec.georeference.transform, Some(transform));
        let rows = |row, height| overlay.rows(row, height).expect("reads").into_samples();
        let expected = [255, 2, 2, 2, 1, 1, 3, 255, 1, 255, 1, 255];
        assert_eq!(rows(0, 3), Samples::U8(expected.to_vec()));
        assert_eq!(rows(1, 1), Samples::U8(expected[4..8].to_vec()));
    }

    #[test]
    fn grids_that_differ_are_refused() {
        let first = || map(100.0, 50.0, 32633, (1, 1), &[1]);
        let check = |other: Box<MemorySource>, expected: &str| {
            let told = Overlay::new(vec![first(), other])
                .expect_err("no one grid")
                .to_string();
            assert!(told.contains(expected), "{told}");
        };
        check(
            map(101.0, 50.0, 32633, (1, 1), &[1]),
            "0.500 pixels beside the grid of 100.tif",
        );
        check(
            map(100.0, 50.0, 32632, (1, 1), &[1]),
            "EPSG 32633 and 100.tif in 32632",
        );
    }
}
