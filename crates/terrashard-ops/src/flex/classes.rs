//! Losses of several classes, over logits that lie channels first or last. Nothing of a map's size exists beside the gradient.

use super::real::Real;
use super::{Flat, PIECE, as_map, channels_last, flat, partial, values};
use crate::IGNORE;
use crate::cross_entropy::ClassDice;
use burn::backend::TensorMetadata;
use rayon::prelude::*;

/// Logits with their labels.
struct Logits {
    logits: Flat,
    labels: Flat,
    classes: usize,
    /// Pixels of an image.
    pixels: usize,
    /// From one class of a pixel to the next, and whether that is the next value.
    step: usize,
    last: bool,
}

impl Logits {
    fn new(logits: &Flat, labels: &Flat) -> Self {
        let [classes, h, w] = [1, 2, 3].map(|i| logits.shape()[i]);
        let last = !logits.is_contiguous() && logits.permute(&[0, 2, 3, 1]).is_contiguous();
        Self {
            logits: if last {
                channels_last(logits)
            } else {
                logits.to_contiguous()
            },
            labels: labels.clone(),
            classes,
            pixels: h * w,
            step: if last { 1 } else { h * w },
            last,
        }
    }

    fn labels(&self) -> &[u8] {
        &self.labels.bytes()[..self.count()]
    }

    /// Pixels of all images.
    fn count(&self) -> usize {
        self.logits.shape().num_elements() / self.classes
    }

    /// Where the first class of a pixel is.
    fn first(&self, pixel: usize) -> usize {
        if self.last {
            pixel * self.classes
        } else {
            pixel / self.pixels * self.classes * self.pixels + pixel % self.pixels
        }
    }

    /// The softmax of a pixel, and its cross-entropy with a class.
    fn softmax<T: Real>(&self, pixel: usize, class: usize, p: &mut [T]) -> f64 {
        let x: &[T] = &values(&self.logits)[self.first(pixel)..];
        let logit = |class: usize| x[class * self.step];
        let (mut largest, mut at) = (logit(0), 0);
        for class in 1..self.classes {
            if logit(class) > largest {
                (largest, at) = (logit(class), class);
            }
        }
        // The largest is 1 and left out, so that a sum near 1 keeps the digits of its logarithm.
        let mut rest = T::ZERO;
        for (class, p) in p.iter_mut().enumerate() {
            *p = (logit(class) - largest).exponential();
            if class != at {
                rest += *p;
            }
        }
        let inverse = T::ONE / (T::ONE + rest);
        p.iter_mut().for_each(|p| *p = *p * inverse);
        rest.wide().ln_1p() + (largest - logit(class)).wide()
    }

    /// Sums over valid pixels: `add` gets the sums, the class, its cross-entropy and the softmax.
    fn sum<T: Real>(
        &self,
        sums: usize,
        add: impl Fn(&mut [f64], usize, f64, &[T]) + Sync,
    ) -> Vec<f64> {
        let labels = self.labels();
        let parts = partial(labels.len(), self.classes, |range| {
            let (mut sums, mut p) = (vec![0.0; sums], vec![T::ZERO; self.classes]);
            for pixel in range.filter(|pixel| labels[*pixel] != IGNORE) {
                let class = usize::from(labels[pixel]);
                let entropy = self.softmax(pixel, class, &mut p);
                add(&mut sums, class, entropy, &p);
            }
            sums
        });
        super::add_up(parts, sums)
    }

    /// A map like the logits, zero in ignored pixels: `pixel` turns the softmax of one of this class into its values.
    fn map<T: Real>(&self, pixel: impl Fn(usize, &mut [T]) + Sync) -> Flat {
        let (labels, classes) = (self.labels(), self.classes);
        let step = PIECE.div_ceil(classes);
        let mut out = vec![T::ZERO; labels.len() * classes];
        let one = |at: usize, p: &mut [T]| match labels[at] {
            IGNORE => p.fill(T::ZERO),
            label => {
                self.softmax(at, usize::from(label), p);
                pixel(usize::from(label), p);
            }
        };
        let shape = self.logits.shape();
        if self.last {
            let pieces = out.par_chunks_mut(step * classes).enumerate();
            pieces.for_each(|(piece, out)| {
                for (i, p) in out.chunks_exact_mut(classes).enumerate() {
                    one(piece * step + i, p);
                }
            });
            return as_map(flat(out, shape));
        }
        for (image, out) in out.chunks_exact_mut(classes * self.pixels).enumerate() {
            // The same pixels of every class's plane are a piece.
            let mut pieces: Vec<Vec<&mut [T]>> = Vec::new();
            pieces.resize_with(self.pixels.div_ceil(step), Vec::new);
            for plane in out.chunks_exact_mut(self.pixels) {
                for (piece, part) in pieces.iter_mut().zip(plane.chunks_mut(step)) {
                    piece.push(part);
                }
            }
            let pieces = pieces.into_par_iter().enumerate();
            pieces.for_each(|(piece, mut planes)| {
                let mut p = vec![T::ZERO; classes];
                for i in 0..planes[0].len() {
                    one(image * self.pixels + piece * step + i, &mut p);
                    for (plane, p) in planes.iter_mut().zip(&p) {
                        plane[i] = *p;
                    }
                }
            });
        }
        flat(out, shape)
    }
}

pub(super) fn cross_entropy<T: Real>(logits: &Flat, labels: &Flat, divisor: f64) -> Flat {
    let sums = Logits::new(logits, labels).sum::<T>(1, |sums, _, entropy, _| sums[0] += entropy);
    flat(vec![T::real(sums[0] / divisor)], [1])
}

pub(super) fn cross_entropy_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    divisor: f64,
) -> Flat {
    let scale = T::real(values::<T>(&gradient.to_contiguous())[0].wide() / divisor);
    Logits::new(logits, labels).map::<T>(|class, p| {
        p[class] = p[class] - T::ONE;
        p.iter_mut().for_each(|p| *p = *p * scale);
    })
}

/// For each class the sum of its probability in its own pixels, then for each that in all valid ones.
pub(super) fn class_sums<T: Real>(logits: &Flat, labels: &Flat) -> Flat {
    let logits = Logits::new(logits, labels);
    let classes = logits.classes;
    let sums = logits.sum::<T>(2 * classes, |sums, class, _, p| {
        sums[class] += p[class].wide();
        for (sum, p) in sums[classes..].iter_mut().zip(p) {
            *sum += p.wide();
        }
    });
    flat(super::narrowed::<T>(&sums), [2 * classes])
}

pub(super) fn dice_backward<T: Real>(
    gradient: &Flat,
    logits: &Flat,
    labels: &Flat,
    dice: &ClassDice,
) -> Flat {
    let upstream = values::<T>(&gradient.to_contiguous())[0].wide();
    let slopes: Vec<[T; 2]> = dice
        .slopes()
        .into_iter()
        .map(|slopes| slopes.map(|slope| T::real(slope * upstream)))
        .collect();
    Logits::new(logits, labels).map::<T>(|own, p| {
        let slope = |class: usize| slopes[class][usize::from(class == own)];
        let along: T = p
            .iter()
            .enumerate()
            .map(|(class, p)| *p * slope(class))
            .sum();
        for (class, p) in p.iter_mut().enumerate() {
            *p = *p * (slope(class) - along);
        }
    })
}
