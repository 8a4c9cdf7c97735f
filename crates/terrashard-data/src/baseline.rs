//! The trivial water map that a model has to be compared with: a threshold of NDWI.
//!
//! NDWI = (green - nir) / (green + nir) (McFeeters 1996, <https://doi.org/10.1080/01431169608948714>).

use terrashard_raster::Window;

use crate::{Band, BandSelection, Confusion, Error, IGNORE, Result, Scene, crop, shore};

/// NDWI above which a pixel is taken for water.
pub const THRESHOLD: f32 = -0.04;

/// Width of the shore zone in mask pixels: 10 m in a mask of 2 m.
pub const SHORE_STEPS: usize = 5;

/// Side of the parts in image pixels that a region is scored in.
const PART: usize = 256;

/// How NDWI at image pixels becomes a map at mask pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upsampling {
    /// Each image pixel's value for all mask pixels over it.
    Nearest,
    /// Between the centres of image pixels, linearly in both directions; the border's value beyond the outer centres.
    Bilinear,
}

/// Counts of one map against a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Over all valid mask pixels.
    pub all: Confusion,
    /// Over those in the [`shore`] zone of [`SHORE_STEPS`].
    pub shore: Confusion,
}

impl Score {
    /// Counts a map against a mask: class 1 is water.
    ///
    /// # Shapes
    /// Both `[height, width]`, the width given.
    pub fn of(map: &[u8], mask: &[u8], width: usize) -> Self {
        let mut score = Self::default();
        score.add(
            map,
            &Truth {
                shore: shore::zone(mask, width, 1, SHORE_STEPS),
                labels: mask.to_vec(),
            },
        );
        score
    }

    /// Counts the map of one more window.
    ///
    /// # Shapes
    /// `map`: that of the truth.
    pub fn add(&mut self, map: &[u8], truth: &Truth) {
        self.all.add_masks(map, &truth.labels, 1, None);
        self.shore
            .add_masks(map, &truth.labels, 1, Some(&truth.shore));
    }

    /// Adds the counts of another part.
    pub fn merge(&mut self, other: &Self) {
        self.all.merge(&other.all);
        self.shore.merge(&other.shore);
    }
}

/// What maps of a window are counted against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truth {
    /// The mask, `[window.height * scale, window.width * scale]`.
    pub labels: Vec<u8>,
    /// The [`shore`] zone, of the same shape.
    pub shore: Vec<bool>,
}

impl Truth {
    /// That of a window of a region, which is read with the pixels around that its shore depends on: windows that cover a region
    /// once are counted as the whole region is.
    ///
    /// # Errors
    /// Those of [`Scene::labels`].
    pub fn read(scene: &Scene, region: Window, window: Window) -> Result<Self> {
        let scale = scene.scale();
        let around = grown(window, SHORE_STEPS.div_ceil(scale), region);
        let fine = around.scaled(scale);
        let labels = scene.labels(around)?;
        let zone = shore::zone(&labels, fine.width, 1, SHORE_STEPS);
        let part = inside(window, around).scaled(scale);
        let size = (fine.width, fine.height);
        Ok(Self {
            labels: crop(&labels, size, part),
            shore: crop(&zone, size, part),
        })
    }
}

/// A window with `margin` more pixels on each side, as far as the region goes.
fn grown(window: Window, margin: usize, region: Window) -> Window {
    let (left, top) = (
        window.col.saturating_sub(margin).max(region.col),
        window.row.saturating_sub(margin).max(region.row),
    );
    let right = (window.col_end() + margin).min(region.col_end());
    let bottom = (window.row_end() + margin).min(region.row_end());
    Window::new(left, top, right - left, bottom - top)
}

/// A window counted from the corner of the one around it.
fn inside(window: Window, around: Window) -> Window {
    let (col, row) = (window.col - around.col, window.row - around.row);
    Window::new(col, row, window.width, window.height)
}

/// The water map of a window by [`THRESHOLD`]: 1 water, 0 other, [`IGNORE`] where the image has no data.
///
/// Bands are found in the image by their names B03 and B08. NDWI is of reflectance, so the scene's offset is added and the
/// factor does not matter.
///
/// # Shapes
/// `[window.height * scale, window.width * scale]`.
///
/// # Errors
/// [`Error::UnknownBand`] where the image does not name the bands; [`Error::Raster`].
pub fn ndwi_water(scene: &Scene, window: Window, upsampling: Upsampling) -> Result<Vec<u8>> {
    let index = ndwi(scene, window)?;
    let scale = scene.scale();
    let (width, height) = (window.width, window.height);
    let mut map = Vec::with_capacity(width * height * scale * scale);
    for row in 0..height * scale {
        for col in 0..width * scale {
            let nearest = index[row / scale * width + col / scale];
            let value = match upsampling {
                Upsampling::Nearest => nearest,
                // A pixel without data stays without; beside one, its neighbour's own value stands in.
                Upsampling::Bilinear if nearest.is_nan() => nearest,
                Upsampling::Bilinear => {
                    let between = bilinear(&index, (width, height), scale, col, row);
                    if between.is_nan() { nearest } else { between }
                }
            };
            map.push(if value.is_nan() {
                IGNORE
            } else {
                u8::from(value > THRESHOLD)
            });
        }
    }
    Ok(map)
}

/// NDWI of each image pixel of a window, NaN where it has no data or reflects nothing.
fn ndwi(scene: &Scene, window: Window) -> Result<Vec<f32>> {
    let image = scene.image();
    let pick = BandSelection::Pick(
        ["B03", "B08"]
            .map(|name| Band::Name(name.to_owned()))
            .to_vec(),
    );
    let places = pick.resolve(image.path(), image.metadata())?;
    let raster = image.read_window(window)?;
    let data = image.read_mask(window)?;
    let offset = scene.scaling().offset;
    let reflected = |place: usize| {
        let with_data = |(at, dn): (usize, f32)| {
            let masked = data.as_ref().is_some_and(|data| !data[at]);
            if masked || scene.metadata().is_nodata(f64::from(dn)) {
                f32::NAN
            } else {
                dn + offset
            }
        };
        let samples = raster.band_f32(place);
        samples
            .into_iter()
            .enumerate()
            .map(with_data)
            .collect::<Vec<f32>>()
    };
    let (green, nir) = (reflected(places[0]), reflected(places[1]));
    // 0 / 0 is NaN: no data, as wished.
    Ok(green
        .iter()
        .zip(&nir)
        .map(|(g, n)| (g - n) / (g + n))
        .collect())
}

/// The value at the centre of map pixel (`col`, `row`), between the four nearest centres of image pixels.
fn bilinear(values: &[f32], size: (usize, usize), scale: usize, col: usize, row: usize) -> f32 {
    let place = |fine: usize, length: usize| {
        let at = ((fine as f32 + 0.5) / scale as f32 - 0.5).clamp(0.0, (length - 1) as f32);
        let low = (at as usize).min(length - 1);
        (low, (low + 1).min(length - 1), at - low as f32)
    };
    let (left, right, across) = place(col, size.0);
    let (top, bottom, down) = place(row, size.1);
    let line = |row: usize| {
        values[row * size.0 + left] * (1.0 - across) + values[row * size.0 + right] * across
    };
    line(top) * (1.0 - down) + line(bottom) * down
}

/// The score of the baseline on a region of a scene, part by part.
///
/// # Errors
/// Those of [`ndwi_water`] and [`Scene::labels`].
pub fn score(scene: &Scene, region: Window, upsampling: Upsampling) -> Result<Score> {
    if !scene.has_mask() {
        return Err(Error::NoMask {
            image: scene.image().path().to_owned(),
        });
    }
    let scale = scene.scale();
    let mut score = Score::default();
    for part in parts(region) {
        // Beside the part lies what its outer pixels are interpolated with.
        let around = grown(part, 1, region);
        let map = ndwi_water(scene, around, upsampling)?;
        let fine = around.scaled(scale);
        let size = (fine.width, fine.height);
        let map = crop(&map, size, inside(part, around).scaled(scale));
        score.add(&map, &Truth::read(scene, region, part)?);
    }
    Ok(score)
}

/// Parts that cover a region once.
fn parts(region: Window) -> impl Iterator<Item = Window> {
    (region.row..region.row_end())
        .step_by(PART)
        .flat_map(move |row| {
            let height = PART.min(region.row_end() - row);
            (region.col..region.col_end())
                .step_by(PART)
                .map(move |col| Window::new(col, row, PART.min(region.col_end() - col), height))
        })
}
