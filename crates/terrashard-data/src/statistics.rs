//! Statistics of bands, in one pass over the pixels and in bounded memory.

use serde::Serialize;
use terrashard_raster::{DataType, Raster, RasterSource};

use crate::Result;
use crate::sweep::sweep;

/// The shares of pixels, in percent, for which [`BandStatistics::percentiles`] are told.
pub const PERCENTILES: [f64; 9] = [1.0, 2.0, 5.0, 25.0, 50.0, 75.0, 95.0, 98.0, 99.0];

/// Numbers below and above which small integers are not counted one by one.
const SMALLEST: i64 = -40_000;
const LARGEST: i64 = 70_000;

/// Bits of a single-precision number that tell bins apart: sign, exponent and 10 of the mantissa, so that a bin is a thousandth wide.
const KEY_BITS: u32 = 19;

/// What is known of one band.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BandStatistics {
    /// Its name, or its number from 1.
    pub band: String,
    /// Pixels that are counted: those with data in every band.
    pub pixels: u64,
    /// Their mean; none where there is no pixel, as for all that follows.
    pub mean: Option<f64>,
    /// Their standard deviation, of the population.
    pub std: Option<f64>,
    /// The smallest value.
    pub min: Option<f64>,
    /// The largest value.
    pub max: Option<f64>,
    /// The values that [`PERCENTILES`] of the pixels do not exceed: exact for integers of 16 bits, else within a thousandth.
    pub percentiles: Option<[f64; PERCENTILES.len()]>,
    /// Pixels of the band that are NaN or infinite.
    pub not_finite: u64,
}

impl BandStatistics {
    /// The median.
    pub fn median(&self) -> Option<f64> {
        self.percentiles.map(|percentiles| percentiles[4])
    }
}

/// Counts over the pixels of some bands, added up window by window.
///
/// Values are digital numbers plus an offset, in single precision as a model reads them.
#[derive(Clone, Debug)]
pub struct Statistics {
    bands: Vec<Counts>,
    /// Sums of products of deviations from the means, `[bands, bands]`, the upper triangle.
    products: Vec<f64>,
    /// Pixels with data in every band.
    valid: u64,
    /// All pixels.
    pixels: u64,
    /// Pixels that are 0 in every band.
    zero: u64,
}

#[derive(Clone, Debug)]
struct Counts {
    mean: f64,
    min: f32,
    max: f32,
    not_finite: u64,
    bins: Bins,
}

/// How often each value was seen.
#[derive(Clone, Debug)]
enum Bins {
    /// Whole numbers, one by one.
    Whole(Vec<u64>),
    /// Single-precision numbers by their leading bits.
    Leading(Vec<u64>),
}

impl Bins {
    fn add(&mut self, value: f32) {
        match self {
            Self::Whole(counts) => {
                let place = (value as i64).clamp(SMALLEST, LARGEST) - SMALLEST;
                counts[place as usize] += 1;
            }
            Self::Leading(counts) => counts[key(value)] += 1,
        }
    }

    /// The value of a bin: of one that is a range, its middle.
    fn value(&self, bin: usize) -> f64 {
        match self {
            Self::Whole(_) => (bin as i64 + SMALLEST) as f64,
            Self::Leading(_) => middle(bin),
        }
    }

    fn counts(&self) -> &[u64] {
        match self {
            Self::Whole(counts) | Self::Leading(counts) => counts,
        }
    }
}

/// The bits of a number, so that larger numbers have larger ones: negative ones are turned around.
fn key(value: f32) -> usize {
    // Both zeros are one number.
    let bits = (value + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    (ordered >> (32 - KEY_BITS)) as usize
}

fn middle(bin: usize) -> f64 {
    let value = |ordered: u32| {
        let bits = if ordered >> 31 == 1 {
            ordered & !(1 << 31)
        } else {
            !ordered
        };
        f64::from(f32::from_bits(bits))
    };
    let first = (bin as u32) << (32 - KEY_BITS);
    let (low, high) = (value(first), value(first | ((1 << (32 - KEY_BITS)) - 1)));
    // The bin that begins at zero holds zeros above all.
    if low == 0.0 { 0.0 } else { (low + high) / 2.0 }
}

impl Statistics {
    /// No pixel yet, of this many bands. Percentiles are exact where `whole` says that all values are whole numbers of 16 bits.
    pub fn new(bands: usize, whole: bool) -> Self {
        let bins = match whole {
            true => Bins::Whole(vec![0; (LARGEST - SMALLEST + 1) as usize]),
            false => Bins::Leading(vec![0; 1 << KEY_BITS]),
        };
        let counts = Counts {
            mean: 0.0,
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            not_finite: 0,
            bins,
        };
        Self {
            bands: vec![counts; bands],
            products: vec![0.0; bands * bands],
            valid: 0,
            pixels: 0,
            zero: 0,
        }
    }

    /// Whether digital numbers of this type, with this offset, are whole numbers that are counted one by one.
    pub fn counts_each(data_type: DataType, offset: f32) -> bool {
        let small = matches!(
            data_type,
            DataType::U8 | DataType::I8 | DataType::U16 | DataType::I16
        );
        small && offset.fract() == 0.0 && offset.abs() <= 4000.0
    }

    /// All pixels that were looked at.
    pub fn pixels(&self) -> u64 {
        self.pixels
    }

    /// Pixels with data in every band.
    pub fn valid(&self) -> u64 {
        self.valid
    }

    /// Pixels whose digital number is 0 in every band, whatever is declared as nodata; not those that a mask leaves out.
    pub fn zero(&self) -> u64 {
        self.zero
    }

    /// Adds the pixels of a window: samples of each band, `[pixels]`, as they are stored.
    ///
    /// A pixel counts where no band is NaN, infinite or, by `is_nodata`, without data, and where `data`, a mask beside the samples,
    /// does not leave it out; `offset` is added to what counts.
    ///
    /// # Panics
    /// Where there are not as many bands as was said, or one or the mask has another number of pixels.
    pub fn add(
        &mut self,
        mut bands: Vec<Vec<f32>>,
        data: Option<Vec<bool>>,
        is_nodata: impl Fn(f32) -> bool,
        offset: f32,
    ) {
        assert_eq!(bands.len(), self.bands.len(), "as many bands as was said");
        let pixels = bands.first().map_or(0, Vec::len);
        assert!(bands.iter().all(|band| band.len() == pixels), "one size");
        let mut valid = data.unwrap_or_else(|| vec![true; pixels]);
        assert_eq!(valid.len(), pixels, "one size");
        // Pixels that are left out are no zeros that somebody forgot to declare.
        let mut zero = valid.clone();
        for (counts, band) in self.bands.iter_mut().zip(&bands) {
            for ((&sample, valid), zero) in band.iter().zip(&mut valid).zip(&mut zero) {
                let finite = sample.is_finite();
                counts.not_finite += u64::from(!finite);
                *valid &= finite && !is_nodata(sample);
                *zero &= sample == 0.0;
            }
        }
        self.pixels += pixels as u64;
        self.zero += zero.iter().filter(|zero| **zero).count() as u64;
        for band in &mut bands {
            let mut each = valid.iter();
            band.retain(|_| *each.next().expect("one for each pixel"));
            band.iter_mut().for_each(|sample| *sample += offset);
        }
        self.merge_valid(&bands);
    }

    /// Adds values that count. Means and products are those of the window first, then joined with what was there
    /// (Chan, Golub, LeVeque 1979): adding one number at a time to large sums would lose digits.
    fn merge_valid(&mut self, bands: &[Vec<f32>]) {
        let added = bands.first().map_or(0, Vec::len);
        if added == 0 {
            return;
        }
        let (before, n) = (self.valid as f64, added as f64);
        let means: Vec<f64> = bands
            .iter()
            .map(|band| band.iter().map(|&v| f64::from(v)).sum::<f64>() / n)
            .collect();
        let apart: Vec<f64> = means
            .iter()
            .zip(&self.bands)
            .map(|(mean, counts)| mean - counts.mean)
            .collect();
        let together = before * n / (before + n);
        for (i, (a, ma)) in bands.iter().zip(&means).enumerate() {
            for (j, (b, mb)) in bands.iter().zip(&means).enumerate().skip(i) {
                let product: f64 = a
                    .iter()
                    .zip(b)
                    .map(|(&a, &b)| (f64::from(a) - ma) * (f64::from(b) - mb))
                    .sum();
                self.products[i * bands.len() + j] += product + apart[i] * apart[j] * together;
            }
        }
        for ((counts, band), apart) in self.bands.iter_mut().zip(bands).zip(&apart) {
            counts.mean += apart * n / (before + n);
            for &value in band {
                counts.min = counts.min.min(value);
                counts.max = counts.max.max(value);
                counts.bins.add(value);
            }
        }
        self.valid += added as u64;
    }

    /// Adds a whole raster: all its bands, as they are stored, where its own mask does not leave them out.
    ///
    /// # Errors
    /// [`Error::Raster`](crate::Error::Raster).
    pub fn add_raster(&mut self, source: &dyn RasterSource, nodata: Option<f64>) -> Result<()> {
        let mut metadata = source.metadata().clone();
        metadata.nodata = nodata.or(metadata.nodata);
        let places: Vec<usize> = (0..metadata.bands).collect();
        for window in sweep(metadata.window(), &metadata) {
            let raster = source.read_window(window)?;
            let data = source.read_mask(window)?;
            let is_nodata = |sample: f32| metadata.is_nodata(f64::from(sample));
            self.add(picked(&raster, &places), data, is_nodata, 0.0);
        }
        Ok(())
    }

    /// What is known of each band under these names, every value multiplied by `scale` (above 0).
    pub fn bands(&self, names: &[String], scale: f64) -> Vec<BandStatistics> {
        let some = |value: f64| (self.valid > 0).then_some(value);
        let each = self.bands.iter().zip(names).enumerate();
        each.map(|(place, (counts, name))| {
            let variance = self.products[place * self.bands.len() + place] / self.valid as f64;
            BandStatistics {
                band: name.clone(),
                pixels: self.valid,
                mean: some(counts.mean * scale),
                std: some(variance.sqrt() * scale),
                min: some(f64::from(counts.min) * scale),
                max: some(f64::from(counts.max) * scale),
                percentiles: (self.valid > 0)
                    .then(|| PERCENTILES.map(|percent| self.percentile(place, percent) * scale)),
                not_finite: counts.not_finite,
            }
        })
        .collect()
    }

    /// The smallest value that at least `percent` of the band's values do not exceed.
    ///
    /// # Panics
    /// Where no pixel was counted.
    pub fn percentile(&self, band: usize, percent: f64) -> f64 {
        assert!(self.valid > 0, "there is a pixel");
        let Counts { bins, min, max, .. } = &self.bands[band];
        let rank = ((percent / 100.0 * self.valid as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bin = bins.counts().iter().position(|count| {
            seen += count;
            seen >= rank
        });
        let value = bins.value(bin.expect("every value is in a bin"));
        value.clamp(f64::from(*min), f64::from(*max))
    }

    /// The share of the band's values below `limit`, 0 where no pixel was counted; by bins, so that the limit's own bin does not count.
    pub fn share_below(&self, band: usize, limit: f64) -> f64 {
        let bins = &self.bands[band].bins;
        let below = |(bin, _): &(usize, &u64)| bins.value(*bin) < limit;
        let counted = bins
            .counts()
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        let below: u64 = counted.take_while(below).map(|(_, count)| count).sum();
        below as f64 / self.valid.max(1) as f64
    }

    /// Pearson's correlation of two bands; NaN where one is constant.
    pub fn correlation(&self, a: usize, b: usize) -> f64 {
        let at = |a: usize, b: usize| self.products[a.min(b) * self.bands.len() + a.max(b)];
        at(a, b) / (at(a, a) * at(b, b)).sqrt()
    }
}

/// The bands at these places of a window.
pub(crate) fn picked(raster: &Raster, places: &[usize]) -> Vec<Vec<f32>> {
    places.iter().map(|&place| raster.band_f32(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(got: Option<f64>, expected: f64, tolerance: f64) {
        let got = got.expect("there are pixels");
        assert!(
            (got - expected).abs() <= tolerance,
            "{got} instead of {expected}"
        );
    }

    fn names(bands: usize) -> Vec<String> {
        (1..=bands).map(|band| format!("B{band}")).collect()
    }

    #[test]
    fn counts_by_hand_and_in_parts() {
        // 1, 2, 3, 4, 10 over two windows; a nodata value, a NaN and their pixels in the other band do not count.
        let mut statistics = Statistics::new(2, true);
        let nodata = |sample: f32| sample == 99.0;
        statistics.add(
            vec![vec![1.0, 2.0, 99.0], vec![-5.0, -5.0, 7.0]],
            None,
            nodata,
            0.0,
        );
        let second = vec![
            vec![3.0, 4.0, 10.0, 50.0, 0.0],
            vec![-5.0, -5.0, 0.0, f32::NAN, 99.0],
        ];
        statistics.add(second, None, nodata, 0.0);
        assert_eq!((statistics.pixels(), statistics.valid()), (8, 5));
        let bands = statistics.bands(&names(2), 1.0);
        near(bands[0].mean, 4.0, 1e-12);
        near(bands[0].std, 10.0_f64.sqrt(), 1e-12);
        near(bands[0].min, 1.0, 0.0);
        near(bands[0].max, 10.0, 0.0);
        let percentiles = bands[0].percentiles.expect("pixels");
        assert_eq!(
            percentiles,
            [1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 10.0, 10.0, 10.0]
        );
        assert_eq!((bands[0].not_finite, bands[1].not_finite), (0, 1));
        near(bands[1].mean, -4.0, 1e-12);
        near(bands[1].std, 2.0, 1e-12);
        // By hand: covariance 6, deviations of sqrt(10) and 2.
        near(
            Some(statistics.correlation(0, 1)),
            6.0 / 2.0 / 10.0_f64.sqrt(),
            1e-12,
        );
    }

    #[test]
    fn an_offset_and_a_scale_make_reflectance() {
        let mut statistics = Statistics::new(1, true);
        statistics.add(vec![vec![1901.0, 2000.0, 900.0]], None, |_| false, -1000.0);
        let band = &statistics.bands(&names(1), 1e-4)[0];
        near(band.min, -0.01, 1e-12);
        near(band.median(), 0.0901, 1e-12);
        near(band.max, 0.1, 1e-12);
        near(Some(statistics.share_below(0, 0.0)), 1.0 / 3.0, 1e-12);
    }

    #[test]
    fn percentiles_of_floats_are_within_a_thousandth() {
        let value = |i: i32| (i as f32 - 300.0) * 0.001_37;
        let mut statistics = Statistics::new(1, false);
        for part in (0..1000).collect::<Vec<i32>>().chunks(77) {
            statistics.add(
                vec![part.iter().map(|&i| value(i)).collect()],
                None,
                |_| false,
                0.0,
            );
        }
        let band = &statistics.bands(&names(1), 1.0)[0];
        for (got, percent) in band.percentiles.expect("pixels").iter().zip(PERCENTILES) {
            let expected = f64::from(value((percent * 10.0) as i32 - 1));
            assert!(
                (got - expected).abs() <= 1e-3 * expected.abs() + 1e-12,
                "{percent}: {got} instead of {expected}"
            );
        }
        assert_eq!(
            Statistics::new(1, false).bands(&names(1), 1.0)[0].median(),
            None
        );
    }

    #[test]
    fn zeros_in_all_bands_are_counted_apart() {
        let mut statistics = Statistics::new(2, true);
        statistics.add(
            vec![vec![0.0, 0.0, 1.0], vec![0.0, 3.0, 0.0]],
            None,
            |_| false,
            0.0,
        );
        assert_eq!((statistics.zero(), statistics.valid()), (1, 3));
        // A mask leaves the first and the last of three out.
        let mask = Some(vec![false, true, false]);
        let bands = vec![vec![0.0, 7.0, 900.0], vec![0.0, 5.0, 900.0]];
        statistics.add(bands, mask, |_| false, 0.0);
        assert_eq!((statistics.zero(), statistics.valid()), (1, 4));
        assert_eq!(statistics.pixels(), 6);
        near(statistics.bands(&names(2), 1.0)[0].max, 7.0, 0.0);
        // Small integers with a usual offset, nothing else.
        assert!(Statistics::counts_each(DataType::U16, -1000.0));
        assert!(!Statistics::counts_each(DataType::U16, 0.5));
        assert!(!Statistics::counts_each(DataType::F32, 0.0));
    }
}
