//! What happens once, at the start: the rows of the table, the comparison of host memory, the first values.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_layout::{ParameterSpec, Row, ShardTable};

use crate::config::{Offload, ZeroConfig};
use crate::error::{Error, Result};
use crate::groups::RankGroups;
use crate::host_memory::{available_host_memory, check_host_memory};
use crate::packing::{join, pack_whole, pad};
use crate::parameters::{Declared, dtype, values};
use crate::policy::{Extent, Policy};
use crate::reading::read_f64;
use crate::state::StateKind;
use crate::update::{BucketStates, host_bytes};
use crate::values::{Held, Resident, Values};

/// Where parameters get their first values.
pub enum Initial<'a> {
    /// From the module, which burn initialises; rank 0's values are broadcast.
    Module,
    /// From a function of name and shape that gives the same values on every rank, in row-major order.
    Keyed(&'a dyn Fn(&str, &[usize]) -> Vec<f32>),
}

/// The rows of the table: tied parameters are those that share one burn parameter.
pub(crate) fn specs(parameters: &[Declared], config: &ZeroConfig) -> Vec<ParameterSpec> {
    let mut first: HashMap<ParamId, &str> = HashMap::new();
    let spec = |parameter: &'_ Declared, tied_to: Option<String>| {
        let group = config.group_of(
            tied_to.as_deref().unwrap_or(&parameter.name),
            &parameter.shape,
        );
        ParameterSpec {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            dtype: config.precision.compute(),
            group,
            trainable: !config.group(group).frozen,
            tied_to,
        }
    };
    let mut specs = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let tied_to = first.get(&parameter.id).map(ToString::to_string);
        first.entry(parameter.id).or_insert(&parameter.name);
        specs.push(spec(parameter, tied_to));
    }
    specs
}

/// Refuses to start where host memory is too small for what is offloaded. Collective; all ranks decide the same.
pub(crate) fn compare_host_memory(placement: Placement<'_>) -> Result<()> {
    let Placement {
        table,
        config,
        groups,
        device,
    } = placement;
    if config.offload == Offload::None {
        return Ok(());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // 48 bits are exact in a double.
    let host = terrashard_layout::counter::hash(0, &host, 0) >> 16;
    let own = [
        host as f64,
        host_bytes(table, config) as f64,
        available_host_memory().map_or(f64::MAX, |bytes| bytes as f64),
    ];
    let own = Tensor::<1>::from_data(TensorData::from(own.as_slice()), (device, DType::F64));
    let all = read_f64(groups.world.all_gather(own)?.wait()?)?;
    let ranks: Vec<_> = all
        .chunks(3)
        .map(|rank| (rank[0] as u64, rank[1] as u64, rank[2] as u64))
        .collect();
    check_host_memory(&ranks)
}

/// Makes the first values, one parameter at a time: each is materialised whole, and this rank keeps what the stage
/// says. Fills master weights and moving averages of `states` on the way, if there are any.
pub(crate) fn initial_values(
    source: &mut Source<'_>,
    states: &mut [BucketStates],
) -> Result<Values> {
    let Placement {
        table,
        config,
        groups,
        ..
    } = source.placement;
    let policy = Policy::of(config.stage);
    let (rank, ranks) = (groups.shards.rank(), table.ranks());
    let compute = dtype(config.precision.compute());
    let resident = |shard| Resident::placed(shard, config.offload);
    let mut rows: Vec<Held> = vec![Held::Tied; table.rows().len()];
    let mut chunks = Vec::with_capacity(table.buckets().len());
    for (index, bucket) in table.buckets().iter().enumerate() {
        let masters = states.get(index).is_some_and(BucketStates::has_masters);
        let average = states.get(index).is_some_and(BucketStates::has_average);
        let mut master_parts = Vec::new();
        let mut shards = Vec::new();
        for piece in &bucket.pieces {
            let row = &table.rows()[piece.row];
            let value = source.value(row)?;
            let shard =
                |value: &Tensor<1>| pad(value.clone().slice(row.interval(rank, ranks)), piece.len);
            if masters || average {
                master_parts.push(match policy.extent {
                    Extent::Whole => value.clone(),
                    Extent::Shard => shard(&value),
                });
            }
            rows[piece.row] = if table.keeps_whole(row) {
                Held::Whole(value.cast(compute))
            } else {
                shards.push(shard(&value).cast(compute));
                Held::InChunk {
                    bucket: index,
                    offset: piece.offset,
                    len: piece.len,
                }
            };
        }
        if masters || average {
            let weights = match policy.extent {
                Extent::Whole => pack_whole(table, bucket, master_parts),
                Extent::Shard => join(master_parts),
            };
            // An average of nothing would be drawn to zero for as long as it remembers.
            if average {
                states[index].set(StateKind::Ema, weights.clone());
            }
            if masters {
                states[index].set_masters(weights);
            }
        }
        chunks.push((!shards.is_empty()).then(|| resident(join(shards))));
    }
    // What is in no bucket: frozen and empty parameters.
    for (index, row) in table.rows().iter().enumerate() {
        let parameter = &row.parameter;
        if parameter.is_reduced() || parameter.tied_to.is_some() {
            continue;
        }
        let value = source.value(row)?.cast(compute);
        rows[index] = if table.keeps_whole(row) || row.numel() == 0 {
            Held::Whole(value)
        } else {
            let own = value.slice(row.interval(rank, ranks));
            Held::Shard(resident(join(vec![pad(own, row.shard_len(ranks))])))
        };
    }
    Ok(Values { rows, chunks })
}

/// Where values go.
#[derive(Clone, Copy)]
pub(crate) struct Placement<'a> {
    pub(crate) table: &'a ShardTable,
    pub(crate) config: &'a ZeroConfig,
    pub(crate) groups: &'a RankGroups,
    pub(crate) device: &'a Device,
}

/// Where values come from.
pub(crate) struct Source<'a> {
    placement: Placement<'a>,
    from: From<'a>,
}

enum From<'a> {
    Function(&'a dyn Fn(&str, &[usize]) -> Vec<f32>),
    /// By name, until it is used.
    Module(HashMap<String, TensorData>),
}

impl<'a> Source<'a> {
    pub(crate) fn new<M: Module>(
        module: &M,
        parameters: &[Declared],
        initial: &Initial<'a>,
        placement: Placement<'a>,
    ) -> Self {
        let from = match initial {
            Initial::Keyed(function) => From::Function(*function),
            Initial::Module => {
                let names = parameters.iter().map(|parameter| parameter.name.clone());
                From::Module(names.zip(values(module)).collect())
            }
        };
        Self { placement, from }
    }

    /// The whole value of a parameter, `[numel]` in the type of the master weights.
    fn value(&mut self, row: &Row) -> Result<Tensor<1>> {
        let Placement {
            config,
            groups,
            device,
            ..
        } = self.placement;
        let name = &row.parameter.name;
        let data = match &mut self.from {
            From::Function(function) => {
                let values = function(name, &row.parameter.shape);
                let len = values.len();
                TensorData::new(values, [len])
            }
            From::Module(values) => values
                .remove(name)
                .expect("the table was built from these names"),
        };
        let (expected, got) = (row.numel(), data.num_elements());
        if got != expected {
            return Err(Error::InitialLength {
                name: name.into(),
                expected,
                got,
            });
        }
        let (bytes, _, element) = data.into_parts();
        let flat = TensorData::from_bytes(bytes, [got], element);
        let value = Tensor::from_data(flat, (device, dtype(config.precision.master())));
        Ok(match self.from {
            From::Function(_) => value,
            From::Module(_) => groups.world.broadcast(value, 0)?.wait()?,
        })
    }
}
