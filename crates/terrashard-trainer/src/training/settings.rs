//! From a configuration to the settings of the sharded optimizer.

use burn::tensor::Device;
use terrashard_data::{Balance, Selection};
use terrashard_zero::{
    AdamW, LossScale, NonFinite, Offload, Optimizer, ParameterGroup, Precision, ReduceDtype,
    Reduction, Select, Sgd, Unused, ZeroConfig, declared,
};

use crate::config::{self, Batch, Config, DataSection, GroupEntry, OptimizerRule};
use crate::error::{Error, Result};

/// Element types of a configuration's training.
pub(super) fn precision(config: &Config) -> Precision {
    match config.train.precision {
        config::Precision::Fp32 | config::Precision::Tf32 => Precision::F32,
        config::Precision::Bf16 => Precision::Bf16,
        config::Precision::Fp16 => Precision::F16,
    }
}

/// The settings that leave samples out, in words.
pub(super) fn leaving_out(data: &DataSection) -> String {
    let Selection { min_valid, balance } = data.selection;
    let mut keys = vec!["`data.stride`"];
    if min_valid > 0.0 {
        keys.push("`data.selection.min_valid`");
    }
    if matches!(balance, Balance::Only { min_foreground } if min_foreground > 0) {
        keys.push("`min_foreground` in `data.selection.balance`");
    }
    keys.join(" or ")
}

/// The settings of the optimizer of a model whose parameters have these names.
///
/// # Errors
/// [`Error::InvalidValue`] for a group that no parameter is in.
pub(crate) fn zero_config<'a>(
    config: &Config,
    precision: Precision,
    batch: Batch,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<ZeroConfig> {
    let (zero, train) = (&config.zero, &config.train);
    let sgd = Sgd::default();
    let adamw = AdamW::default();
    let [beta1, beta2] = train.betas.unwrap_or([adamw.beta1, adamw.beta2]);
    Ok(ZeroConfig {
        stage: zero.stage,
        precision,
        reduce_dtype: match zero.reduce_dtype {
            config::ReduceDtype::Fp32 => ReduceDtype::Full,
            config::ReduceDtype::Compute => ReduceDtype::Compute,
        },
        bucket_bytes: zero.bucket_bytes,
        persist_bytes: zero.persist_bytes,
        shard_group: zero.shard_group,
        accumulate: batch.accumulate,
        reduction: Reduction::Sum,
        optimizer: match train.optimizer {
            OptimizerRule::AdamW => Optimizer::AdamW(AdamW {
                beta1,
                beta2,
                epsilon: train.eps.unwrap_or(adamw.epsilon),
                weight_decay: train.weight_decay,
            }),
            OptimizerRule::Sgd => Optimizer::Sgd(Sgd {
                momentum: train.momentum.unwrap_or(sgd.momentum),
                nesterov: train.nesterov.unwrap_or(sgd.nesterov),
                weight_decay: train.weight_decay,
            }),
        },
        groups: parameter_groups(config, names)?,
        clip_norm: train.clip_norm,
        nonfinite: match train.nonfinite {
            config::NonFinite::Abort => NonFinite::Abort,
            config::NonFinite::Skip => NonFinite::Skip,
            config::NonFinite::SkipThenAbort(most) => NonFinite::SkipThenAbort(most),
        },
        unused: match train.unused {
            config::Unused::Zero => Unused::Zero,
            config::Unused::Error => Unused::Error,
        },
        ema: train.ema,
        offload: match zero.offload {
            config::Offload::None => Offload::None,
            config::Offload::Optimizer => Offload::Optimizer,
            config::Offload::Parameters => Offload::Parameters,
        },
        offload_fraction: zero.offload_fraction.unwrap_or(1.0),
        prefetch: zero.prefetch,
        overlap: zero.overlap,
        loss_scale: LossScale::default(),
    })
}

/// Refuses what does not fit the model: patterns that match nothing, and a model of which nothing is trained. Allocates nothing.
///
/// # Errors
/// [`Error::InvalidValue`], [`Error::Model`].
pub(super) fn check_model(config: &Config) -> Result<()> {
    let model = config.model.init(&Device::flex())?;
    let parameters = declared(&model);
    let names = parameters.iter().map(|parameter| parameter.name.as_str());
    let groups = parameter_groups(config, names.clone())?;
    let frozen = |name: &str| {
        let group = groups.iter().find(|group| group.select.picks(name, &[]));
        group.is_some_and(|group| group.frozen)
    };
    if names.clone().all(frozen) {
        let expected = "a parameter that is trained: all are frozen";
        return Err(Error::invalid("train.groups", "frozen = true", expected));
    }
    let blocks = model.blocks().into_iter();
    let blocks: Vec<String> = blocks.map(|block| block.name).collect();
    if let Some(pattern) = config.zero.recompute.unmatched(&blocks) {
        let expected = format!("a pattern that matches one of {}", blocks.join(", "));
        return Err(Error::invalid(
            "zero.recompute",
            format!("\"{pattern}\""),
            expected,
        ));
    }
    Ok(())
}

/// The parameter groups of a configuration.
///
/// # Errors
/// [`Error::InvalidValue`] for one that no parameter is in: its pattern is misspelt, or an earlier entry takes all of them.
pub(crate) fn parameter_groups<'a>(
    config: &Config,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<Vec<ParameterGroup>> {
    let groups: Vec<ParameterGroup> = config
        .train
        .groups
        .iter()
        .map(|entry| group(entry, config.train.weight_decay))
        .collect();
    let mut members = vec![0usize; groups.len()];
    for name in names {
        // Patterns of names look at no shape.
        if let Some(first) = groups
            .iter()
            .position(|group| group.select.picks(name, &[]))
        {
            members[first] += 1;
        }
    }
    match members.iter().position(|members| *members == 0) {
        None => Ok(groups),
        Some(empty) => Err(Error::invalid(
            "train.groups.match",
            format!("\"{}\"", config.train.groups[empty].pattern),
            "a pattern that matches parameters which no earlier group takes; `terrashard export` lists the names",
        )),
    }
}

fn group(entry: &GroupEntry, weight_decay: f64) -> ParameterGroup {
    ParameterGroup {
        select: Select::Name(entry.pattern.clone()),
        lr_factor: entry.lr_factor,
        weight_decay: entry.weight_decay.unwrap_or(weight_decay),
        frozen: entry.frozen,
    }
}
