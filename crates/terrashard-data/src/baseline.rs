//! The trivial water map that a model has to be compared with: a threshold of NDWI.
//!
//! NDWI = (green - nir) / (green + nir) (McFeeters 1996, <https://doi.org/10.1080/01431169608948714>).

use terrashard_raster::Window;

use crate::{Band, BandSelection, Confusion, Error, IGNORE, Result, Scene, shore};

/// NDWI above which a pixel is taken for water.
pub const THRESHOLD: f32 = -0.04;

/// Width of the shore zone in mask pixels: 10 m in a mask of 2 m.
pub const SHORE_STEPS: usize = 5;

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
        score.all.add_masks(map, mask, 1, None);
        score.shore.add_masks(
            map,
            mask,
            1,
            Some(&shore::zone(mask, width, 1, SHORE_STEPS)),
        );
        score
    }
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
    let offset = scene.scaling().offset;
    let reflected = |place: usize| {
        let with_data = |dn: f32| {
            if scene.metadata().is_nodata(f64::from(dn)) {
                f32::NAN
            } else {
                dn + offset
            }
        };
        raster
            .band_f32(place)
            .into_iter()
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

/// The score of the baseline on a window of a scene. Holds the window's mask in memory.
///
/// # Errors
/// Those of [`ndwi_water`] and [`Scene::labels`].
pub fn score(scene: &Scene, window: Window, upsampling: Upsampling) -> Result<Score> {
    if !scene.has_mask() {
        return Err(Error::NoMask {
            image: scene.image().path().to_owned(),
        });
    }
    let map = ndwi_water(scene, window, upsampling)?;
    Ok(Score::of(
        &map,
        &scene.labels(window)?,
        window.width * scene.scale(),
    ))
}
