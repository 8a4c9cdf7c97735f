//! The terms of the loss over a step.

use burn::tensor::Tensor;
use terrashard_models::Losses;

/// The terms of the loss, summed over micro-batches and then ranks: total, segmentation, affinity, L1.
#[derive(Debug, Default)]
pub(super) struct Terms(pub(super) [f64; 4]);

impl Terms {
    pub(super) fn add(&mut self, losses: &Losses) {
        let value = |term: &Tensor<1>| term.clone().into_scalar::<f64>();
        let terms = [
            Some(&losses.total),
            Some(&losses.segmentation),
            losses.affinity.as_ref(),
            losses.l1.as_ref(),
        ];
        for (sum, term) in self.0.iter_mut().zip(terms) {
            *sum += term.map_or(0.0, value);
        }
    }

    /// The terms that a configuration's model has beside the total, by name; none where there is but one.
    pub(super) fn named(
        sums: &[f64],
        config: &crate::config::Config,
    ) -> std::collections::BTreeMap<String, f64> {
        match config.model.superres {
            true => [
                (config.train.loss.name().to_string(), sums[1]),
                ("affinity".to_string(), sums[2]),
                ("l1".to_string(), sums[3]),
            ]
            .into(),
            false => Default::default(),
        }
    }
}
