//! The terms of the loss over a step.

use burn::tensor::{DType, Device, Tensor};
use terrashard_models::Losses;

use super::score::LOSS;

/// The terms of the loss, summed over micro-batches and then ranks: total, segmentation, affinity, L1. They stay on the device,
/// which goes on without waiting for anyone to read them.
#[derive(Debug, Default)]
pub(crate) struct Terms(Option<Tensor<1>>);

impl Terms {
    /// How many there are.
    pub(super) const COUNT: usize = 4;

    pub(super) fn add(&mut self, losses: &Losses) {
        let total = losses.total.clone().inner();
        let term = |term: &Option<Tensor<1>>| match term {
            Some(term) => term.clone().inner(),
            None => total.zeros_like(),
        };
        let terms = vec![
            total.clone(),
            losses.segmentation.clone().inner(),
            term(&losses.affinity),
            term(&losses.l1),
        ];
        let terms = Tensor::cat(terms, 0).cast(DType::F64);
        self.0 = Some(match self.0.take() {
            Some(sums) => sums + terms,
            None => terms,
        });
    }

    /// The sums, `[COUNT]`; zeros where nothing was added.
    pub(super) fn on(self, device: &Device) -> Tensor<1> {
        self.0
            .unwrap_or_else(|| Tensor::zeros([Self::COUNT], (device, DType::F64)))
    }

    /// What a training of this configuration can be measured by, by name.
    pub(crate) fn metrics(config: &crate::config::Config) -> Vec<&'static str> {
        match config.model.superres {
            true => vec![LOSS, config.train.loss.name(), "affinity", "l1"],
            false => vec![LOSS],
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
