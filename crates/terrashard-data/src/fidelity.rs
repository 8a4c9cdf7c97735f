//! How close an image comes to another: PSNR and SSIM, row by row.

use std::collections::VecDeque;

/// What values range over, for [`Fidelity::psnr`] and [`Fidelity::ssim`]: reflectance from 0 to 1.
pub const DATA_RANGE: f64 = 1.0;

/// Side of the window of SSIM in pixels.
const SIDE: usize = 11;
/// Standard deviation of its Gaussian weights in pixels.
const SIGMA: f64 = 1.5;
/// The constants that keep SSIM's fractions from 0 / 0, as shares of the data range.
const K: [f64; 2] = [0.01, 0.03];

/// Sums over the pixels that were compared; those of parts, or of several scenes, add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fidelity {
    /// Sum of squared differences.
    pub squares: f64,
    /// Values that were compared, over all bands.
    pub values: u64,
    /// Sum of SSIM over its windows.
    pub similarity: f64,
    /// Windows of SSIM, over all bands.
    pub windows: u64,
}

impl Fidelity {
    /// Adds the sums of another part.
    pub fn merge(&mut self, other: &Self) {
        self.squares += other.squares;
        self.values += other.values;
        self.similarity += other.similarity;
        self.windows += other.windows;
    }

    /// Peak signal-to-noise ratio in dB over all values of all bands: `10 log10(DATA_RANGE^2 / mean squared difference)`. Infinite
    /// where nothing differs, `None` where nothing was compared.
    pub fn psnr(&self) -> Option<f64> {
        let mean = self.squares / self.values as f64;
        (self.values > 0).then(|| 10.0 * (DATA_RANGE * DATA_RANGE / mean).log10())
    }

    /// Structural similarity ([Wang et al. 2004](https://doi.org/10.1109/TIP.2003.819861)), the mean over windows and bands: 11 x 11
    /// pixels with Gaussian weights of standard deviation 1.5, K1 = 0.01, K2 = 0.03, over windows that lie inside of the image as
    /// a whole and in which no pixel is missing. `None` where there is no such window.
    pub fn ssim(&self) -> Option<f64> {
        (self.windows > 0).then(|| self.similarity / self.windows as f64)
    }
}

/// Compares two images whose rows come from the top down. Ten rows are kept, whatever the height.
#[derive(Debug)]
pub struct Comparison {
    width: usize,
    /// For each band, the last rows.
    recent: Vec<VecDeque<Row>>,
    weights: [f64; SIDE],
    sums: Fidelity,
}

/// One row, filtered along itself.
#[derive(Debug)]
struct Row {
    /// At each place of a window: weighted means of x, y, x^2, y^2 and x y.
    moments: Vec<[f64; 5]>,
    /// Whether none of the window's pixels in this row is missing.
    whole: Vec<bool>,
}

impl Comparison {
    /// Bytes that are kept for each column and band.
    pub const ROW_BYTES: usize = SIDE * (size_of::<[f64; 5]>() + 1);

    /// Of images of this width with this many bands.
    pub fn new(width: usize, bands: usize) -> Self {
        let mut weights = std::array::from_fn(|at| {
            let away = at as f64 - (SIDE / 2) as f64;
            (-away * away / (2.0 * SIGMA * SIGMA)).exp()
        });
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        Self {
            width,
            recent: (0..bands).map(|_| VecDeque::with_capacity(SIDE)).collect(),
            weights,
            sums: Fidelity::default(),
        }
    }

    /// Takes the next rows. A pixel whose truth is NaN is missing.
    ///
    /// # Shapes
    /// Both `[bands, rows, width]`.
    ///
    /// # Panics
    /// Where the lengths differ or are no whole number of rows.
    pub fn add(&mut self, image: &[f32], truth: &[f32]) {
        assert_eq!(image.len(), truth.len(), "a value for each true one");
        let (bands, width) = (self.recent.len(), self.width);
        assert!(
            image.len().is_multiple_of(bands * width),
            "whole rows of {width} in {bands} bands"
        );
        let plane = image.len() / bands;
        for at in (0..plane).step_by(width) {
            for band in 0..bands {
                let row = band * plane + at..band * plane + at + width;
                self.add_row(band, &image[row.clone()], &truth[row]);
            }
        }
    }

    /// The sums over all rows.
    pub fn finish(self) -> Fidelity {
        self.sums
    }

    fn add_row(&mut self, band: usize, image: &[f32], truth: &[f32]) {
        let mut squares = 0.0;
        for (x, y) in image.iter().zip(truth).filter(|(_, y)| !y.is_nan()) {
            squares += (f64::from(*x) - f64::from(*y)).powi(2);
            self.sums.values += 1;
        }
        self.sums.squares += squares;
        if self.width < SIDE {
            return;
        }
        let row = self.filtered(image, truth);
        let recent = &mut self.recent[band];
        if recent.len() == SIDE {
            recent.pop_front();
        }
        recent.push_back(row);
        if recent.len() < SIDE {
            return;
        }
        let mut similarity = 0.0;
        for at in 0..self.width - SIDE + 1 {
            if !recent.iter().all(|row| row.whole[at]) {
                continue;
            }
            let mut moments = [0.0; 5];
            for (row, weight) in recent.iter().zip(self.weights) {
                for (sum, moment) in moments.iter_mut().zip(row.moments[at]) {
                    *sum += weight * moment;
                }
            }
            similarity += ssim(moments);
            self.sums.windows += 1;
        }
        self.sums.similarity += similarity;
    }

    fn filtered(&self, image: &[f32], truth: &[f32]) -> Row {
        let places = self.width - SIDE + 1;
        let (mut moments, mut whole) = (Vec::with_capacity(places), Vec::with_capacity(places));
        for at in 0..places {
            let mut sums = [0.0; 5];
            let pixels = image[at..].iter().zip(&truth[at..]);
            for ((x, y), weight) in pixels.zip(self.weights) {
                let (x, y) = (f64::from(*x), f64::from(*y));
                for (sum, value) in sums.iter_mut().zip([x, y, x * x, y * y, x * y]) {
                    *sum += weight * value;
                }
            }
            moments.push(sums);
            whole.push(truth[at..at + SIDE].iter().all(|y| !y.is_nan()));
        }
        Row { moments, whole }
    }
}

/// SSIM of one window from its weighted means of x, y, x^2, y^2 and x y.
fn ssim([x, y, xx, yy, xy]: [f64; 5]) -> f64 {
    let [c1, c2] = K.map(|k| (k * DATA_RANGE).powi(2));
    let (variances, covariance) = (xx - x * x + yy - y * y, xy - x * y);
    (2.0 * x * y + c1) * (2.0 * covariance + c2) / ((x * x + y * y + c1) * (variances + c2))
}
