//! The one table that every part of a run iterates.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bucket::{self, Bucket, Residence};
use crate::counter::Digest;
use crate::{Error, ParameterSpec, RankBytes, Result, Row, Stage, StateConfig, StepTraffic};

const MIB: usize = 1 << 20;

/// How a model is spread over the ranks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutConfig {
    /// Ranks, at least 1.
    pub ranks: usize,
    /// What is sharded.
    pub stage: Stage,
    /// At stage 3, parameters smaller than this many bytes stay whole on every rank.
    pub persist_bytes: usize,
    /// The most bytes of a bucket's flat buffer, padding included. A parameter that is larger has a bucket of
    /// its own. `None` derives it from the model: an eighth of the bytes that are reduced, at least 1 MiB, at most
    /// 64 MiB, and never more than a quarter of them.
    pub bucket_bytes: Option<usize>,
}

impl Default for LayoutConfig {
    /// One rank, stage 0, nothing kept whole at stage 3, buckets derived from the model.
    fn default() -> Self {
        Self {
            ranks: 1,
            stage: Stage::Zero,
            persist_bytes: 0,
            bucket_bytes: None,
        }
    }
}

/// Who owns which elements of every parameter: rows sorted by name, buckets in launch order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardTable {
    rows: Vec<Row>,
    buckets: Vec<Bucket>,
    ranks: usize,
    stage: Stage,
    persist_bytes: usize,
    bucket_bytes: usize,
}

impl ShardTable {
    /// Lays out `parameters`, given in declared order, which is the order of forward.
    ///
    /// # Errors
    ///
    /// [`Error::NoRanks`], [`Error::DuplicateName`], [`Error::UnknownTie`], [`Error::TieOfTie`],
    /// [`Error::TieMismatch`] (shape, element type or trainability), [`Error::TooLarge`].
    pub fn new(parameters: Vec<ParameterSpec>, config: &LayoutConfig) -> Result<Self> {
        let &LayoutConfig {
            ranks,
            stage,
            persist_bytes,
            bucket_bytes,
        } = config;
        if ranks == 0 {
            return Err(Error::NoRanks);
        }
        let mut rows = Vec::with_capacity(parameters.len());
        for (order, parameter) in parameters.into_iter().enumerate() {
            check_size(&parameter, ranks)?;
            let replicated = stage.shards_parameters() && parameter.bytes() < persist_bytes;
            rows.push(Row {
                parameter,
                order,
                replicated,
            });
        }
        rows.sort_by(|a, b| a.parameter.name.cmp(&b.parameter.name));
        if let Some(pair) = rows
            .windows(2)
            .find(|pair| pair[0].parameter.name == pair[1].parameter.name)
        {
            return Err(Error::DuplicateName {
                name: pair[0].parameter.name.clone(),
            });
        }
        let completes = completion(&rows)?;
        let reduced = rows
            .iter()
            .map(|row| &row.parameter)
            .filter(|p| p.is_reduced())
            .map(ParameterSpec::bytes)
            .sum();
        let bucket_bytes = bucket_bytes.unwrap_or_else(|| derived_bucket_bytes(reduced));
        let residence = |row: &Row| residence(stage, row);
        let buckets = bucket::pack(&rows, &completes, residence, ranks, bucket_bytes);
        Ok(Self {
            rows,
            buckets,
            ranks,
            stage,
            persist_bytes,
            bucket_bytes,
        })
    }

    /// The parameters, sorted by name.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The parameter called `name`.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.index(name).map(|index| &self.rows[index])
    }

    /// The position in [`Self::rows`] of the parameter called `name`.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.rows
            .binary_search_by(|row| row.parameter.name.as_str().cmp(name))
            .ok()
    }

    /// The buckets in launch order: the reverse of the declared order, since backward yields the last block first.
    ///
    /// Of several groups, element types or residences, the bucket that backward completes first comes first. A parameter that
    /// others are tied to completes at the earliest use of any of them. Each trainable parameter that is neither
    /// tied nor empty is in one bucket, once; others are in none.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Ranks of the run.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// What is sharded.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The most bytes of a bucket that holds more than one parameter: the configured or the derived figure.
    pub fn bucket_bytes(&self) -> usize {
        self.bucket_bytes
    }

    /// How a rank holds the value of `row` between its uses.
    pub fn residence(&self, row: &Row) -> Residence {
        residence(self.stage, row)
    }

    /// Whether every rank keeps the whole value of `row` between its uses.
    pub fn keeps_whole(&self, row: &Row) -> bool {
        self.residence(row) == Residence::Whole
    }

    /// The bytes that the model states of this table take on each rank, as the ZeRO paper counts them: trained with
    /// the defaults of [`StateConfig`].
    pub fn memory(&self) -> RankBytes {
        self.rank_bytes(&StateConfig::default())
    }

    /// The bytes that the model states of this table take on each rank when it is trained like this.
    pub fn rank_bytes(&self, config: &StateConfig) -> RankBytes {
        RankBytes::of(self, config)
    }

    /// The bytes that each rank sends in one step when the table is trained like this by `groups` groups of
    /// [`Self::ranks`] ranks each, 1 unless sharding is hybrid.
    ///
    /// # Panics
    /// If `groups` is 0.
    pub fn step_traffic(&self, config: &StateConfig, groups: usize) -> StepTraffic {
        StepTraffic::of(self, config, groups)
    }

    /// The share of the model's elements that `persist_bytes` keeps whole on every rank, 0 to 1. Below stage 3, where
    /// the setting does nothing, it is 0.
    pub fn replicated_share(&self) -> f64 {
        let elements = |rows: &mut dyn Iterator<Item = &Row>| -> u64 {
            rows.map(|row| row.numel() as u64).sum()
        };
        let owners = || {
            self.rows
                .iter()
                .filter(|row| row.parameter.tied_to.is_none())
        };
        let whole = elements(&mut owners().filter(|row| row.replicated));
        match elements(&mut owners()) {
            0 => 0.0,
            all => whole as f64 / all as f64,
        }
    }

    /// A hash of everything in this table: names, declared order, shapes, element types, groups, trainability,
    /// ties, ranks, stage, thresholds, residence. Ranks of one run compare it at start; it differs between rank counts and
    /// stages on purpose, and is no fingerprint of a model.
    pub fn hash(&self) -> u64 {
        let mut digest = Digest::new();
        for number in [
            self.ranks,
            usize::from(u8::from(self.stage)),
            self.persist_bytes,
            self.bucket_bytes,
        ] {
            digest.number(number as u64);
        }
        digest.number(self.rows.len() as u64);
        for row in &self.rows {
            let parameter = &row.parameter;
            digest.text(&parameter.name);
            digest.number(row.order as u64);
            digest.number(parameter.shape.len() as u64);
            parameter
                .shape
                .iter()
                .for_each(|&size| digest.number(size as u64));
            digest.text(parameter.dtype.name());
            digest.number(parameter.group as u64);
            digest.number(u64::from(parameter.trainable));
            digest.number(u64::from(self.keeps_whole(row)));
            digest.number(u64::from(parameter.tied_to.is_some()));
            digest.text(parameter.tied_to.as_deref().unwrap_or(""));
        }
        digest.finish()
    }
}

fn residence(stage: Stage, row: &Row) -> Residence {
    match stage.shards_parameters() && !row.replicated {
        true => Residence::Shard,
        false => Residence::Whole,
    }
}

/// The bucket size of a model of which `reduced` bytes are reduced.
fn derived_bucket_bytes(reduced: usize) -> usize {
    (reduced / 8).clamp(MIB, 64 * MIB).min(reduced / 4)
}

/// Refuses a parameter whose padded bytes, over all ranks, overflow.
fn check_size(parameter: &ParameterSpec, ranks: usize) -> Result<()> {
    let numel = parameter
        .shape
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size));
    let padded = numel.and_then(|numel| numel.div_ceil(ranks).checked_mul(ranks));
    // Twelve bytes of optimizer states accompany an element, 16 in double precision.
    match padded.and_then(|padded| padded.checked_mul(32)) {
        Some(_) => Ok(()),
        None => Err(Error::TooLarge {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
        }),
    }
}

/// For each row, the forward position of the first use of its values: backward is done with it there.
fn completion(rows: &[Row]) -> Result<Vec<usize>> {
    let index: BTreeMap<&str, usize> = rows
        .iter()
        .enumerate()
        .map(|(index, row)| (row.parameter.name.as_str(), index))
        .collect();
    let mut completes: Vec<usize> = rows.iter().map(|row| row.order).collect();
    for row in rows {
        let tied = &row.parameter;
        let Some(owner_name) = &tied.tied_to else {
            continue;
        };
        let names = || (tied.name.clone(), owner_name.clone());
        let Some(&owner_index) = index.get(owner_name.as_str()) else {
            let (name, owner) = names();
            return Err(Error::UnknownTie { name, owner });
        };
        let owner = &rows[owner_index].parameter;
        if owner.tied_to.is_some() {
            let (name, owner) = names();
            return Err(Error::TieOfTie { name, owner });
        }
        let properties = [
            (
                "shape",
                format!("{:?}", owner.shape),
                format!("{:?}", tied.shape),
            ),
            (
                "element type",
                owner.dtype.to_string(),
                tied.dtype.to_string(),
            ),
            (
                "trainability",
                owner.trainable.to_string(),
                tied.trainable.to_string(),
            ),
        ];
        if let Some((what, expected, got)) = properties
            .into_iter()
            .find(|(_, expected, got)| expected != got)
        {
            let (name, owner) = names();
            return Err(Error::TieMismatch {
                name,
                owner,
                what,
                expected,
                got,
            });
        }
        completes[owner_index] = completes[owner_index].min(row.order);
    }
    Ok(completes)
}
