//! The quantities that records hold: their units, which way is better, and how well one measurement tells them.

/// One quantity.
#[derive(Debug, PartialEq)]
pub(crate) struct Quantity {
    /// Its key in a row.
    pub(crate) key: &'static str,
    pub(crate) better: Better,
    pub(crate) noise: Noise,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Better {
    Lower,
    Higher,
    /// Neither: a difference is a difference.
    Neither,
}

/// What a quantity varies by from one measurement to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Noise {
    /// It is counted and does not vary: every difference is one.
    Counted,
    /// It is timed or sampled.
    Measured,
}

/// All of them, in the order of the table.
pub(crate) const QUANTITIES: &[Quantity] = &[
    lower("step_ms"),
    higher("images_s"),
    lower("ms"),
    lower("forward_ms"),
    lower("cpu_ms"),
    lower("wall_ms"),
    lower("host_ms"),
    lower("compute_ms"),
    lower("communication_ms"),
    lower("data_ms"),
    lower("optimizer_ms"),
    lower("joules"),
    lower("exposed_comm"),
    lower("seconds"),
    higher("GB_s"),
    lower("alloc_GiB"),
    lower("reserved_GiB"),
    lower("peak_bytes"),
    lower("peak_rss_bytes"),
    lower("device_peak_bytes"),
    counted("state_bytes", Better::Lower),
    counted("wire_bytes", Better::Lower),
    counted("parameters", Better::Neither),
    lower("final_loss"),
    higher("iou"),
    higher("f1"),
    higher("psnr"),
    higher("ssim"),
];

/// Fields that tell one case from another.
pub(crate) const IDENTITY: &[&str] = &[
    "bench",
    "who",
    "backend",
    "device",
    "machine",
    "model",
    "what",
    "variant",
    "branch",
    "disk",
    "instruction_set",
    "px",
    "size",
    "batch",
    "batch_per_rank",
    "ranks",
    "stage",
    "offload",
    "recompute",
    "sharding",
    "precision",
    "threads",
    "limit_GiB",
    "l1_weight",
    "seed",
];

const fn lower(key: &'static str) -> Quantity {
    Quantity {
        key,
        better: Better::Lower,
        noise: Noise::Measured,
    }
}

const fn higher(key: &'static str) -> Quantity {
    Quantity {
        key,
        better: Better::Higher,
        noise: Noise::Measured,
    }
}

const fn counted(key: &'static str, better: Better) -> Quantity {
    Quantity {
        key,
        better,
        noise: Noise::Counted,
    }
}

/// Values that it takes to say what they vary by: the quartiles of fewer lie as close to each other as chance has it.
const LEAST_FOR_SPREAD: usize = 4;

/// A figure with what it varied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The median.
    pub(crate) value: f64,
    /// From where to where it varied; none where that was not recorded.
    pub(crate) spread: Option<(f64, f64)>,
    /// Steps or repetitions that it is the median of, where that is known.
    pub(crate) count: usize,
}

impl Figure {
    /// A single value of which nothing more is known.
    pub(crate) fn single(value: f64) -> Self {
        Self {
            value,
            spread: None,
            count: 1,
        }
    }

    /// The median of values and their quartiles, which fewer than [`LEAST_FOR_SPREAD`] values do not tell.
    pub(crate) fn of_steps(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let count = values.len();
        (count > 0).then(|| Self {
            value: quantile(&values, 0.5),
            spread: (count >= LEAST_FOR_SPREAD)
                .then(|| (quantile(&values, 0.25), quantile(&values, 0.75))),
            count,
        })
    }

    /// Repeated measurements of one case: the median of them, and from the lowest to the highest.
    pub(crate) fn of_repetitions(figures: &[Self]) -> Option<Self> {
        match figures {
            [] => None,
            [single] => Some(*single),
            several => {
                let mut values: Vec<f64> = several.iter().map(|figure| figure.value).collect();
                values.sort_by(f64::total_cmp);
                Some(Self {
                    value: quantile(&values, 0.5),
                    spread: Some((values[0], values[values.len() - 1])),
                    count: values.len(),
                })
            }
        }
    }
}

/// Of sorted values, between neighbours in proportion.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_a_median_and_quartiles() {
        // numpy.percentile([4, 1, 3, 2, 10], [25, 50, 75]) is 2, 3, 4.
        let figure = Figure::of_steps(vec![4.0, 1.0, 3.0, f64::NAN, 2.0, 10.0]).unwrap();
        assert_eq!((figure.value, figure.spread), (3.0, Some((2.0, 4.0))));
        assert_eq!(figure.count, 5);
        // Of an even number: numpy.percentile([1, 2, 3, 4], [25, 50, 75]) is 1.75, 2.5, 3.25.
        let figure = Figure::of_steps(vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!((figure.value, figure.spread), (2.5, Some((1.75, 3.25))));
        assert_eq!(Figure::of_steps(vec![f64::NAN]), None);
        // A single step, or two, do not tell what steps vary by.
        for few in [vec![5.0], vec![4.0, 6.0], vec![4.0, 5.0, 6.0]] {
            let figure = Figure::of_steps(few).unwrap();
            assert_eq!((figure.value, figure.spread), (5.0, None));
        }
    }

    #[test]
    fn repetitions_vary_from_the_lowest_to_the_highest() {
        let figures = [12.0, 10.0, 11.0].map(Figure::single);
        let figure = Figure::of_repetitions(&figures).unwrap();
        assert_eq!((figure.value, figure.spread), (11.0, Some((10.0, 12.0))));
        let single = Figure::of_steps(vec![1.0, 2.0, 3.0]);
        assert_eq!(Figure::of_repetitions(&[single.unwrap()]), single);
    }
}
