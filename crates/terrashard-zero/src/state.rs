//! Named, shard-wise access to everything that a checkpoint holds.

use std::ops::Range;

use burn::tensor::{Tensor, TensorData};
use terrashard_layout::{Bucket, ElementType, Row};

use crate::decision::Progress;
use crate::error::{Error, Result};
use crate::packing::{pack_shard, pack_whole, pad, unpack_whole};
use crate::parameters::{self, element};
use crate::policy::Extent;
use crate::sharded_parameters::{Core, ShardedParameters};
use crate::values::{Held, Resident};
use crate::zero_optimizer::ZeroOptimizer;

/// What a piece of state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// The parameter's value.
    Parameter,
    /// AdamW's first moment or SGD's momentum.
    Momentum,
    /// AdamW's second moment.
    Variance,
    /// Moving average of the parameter.
    Ema,
}

impl StateKind {
    /// All kinds; a run has those that its update rule needs.
    pub const ALL: [StateKind; 4] = [
        StateKind::Parameter,
        StateKind::Momentum,
        StateKind::Variance,
        StateKind::Ema,
    ];
}

/// A run of elements of one parameter's state, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct StatePiece {
    /// Name of the parameter.
    pub name: String,
    /// What it is.
    pub kind: StateKind,
    /// Shape of the whole parameter.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: ElementType,
    /// Which elements of the flattened parameter.
    pub interval: Range<usize>,
    /// Their values.
    pub data: TensorData,
}

impl StatePiece {
    /// The values as bytes in native (little-endian) order: `interval.len() * dtype.bytes()`.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_bytes()
    }
}

/// How [`crate::ZeroOptimizer::load`] reads saved elements: name, kind and interval to bytes.
pub type ReadState<'a> = dyn Fn(&str, StateKind, Range<usize>) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>
    + 'a;

impl ZeroOptimizer {
    /// This rank's share of everything a checkpoint holds, in the type of the master weights. The shares of all ranks
    /// together hold each element of each state once, at every stage, also where states are replicated. Tied
    /// parameters stand under the name that they are tied to; frozen ones have a value only.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn own_states(&self) -> Result<Vec<StatePiece>> {
        let core = &self.parameters.0;
        let mut pieces = Vec::new();
        if !core.groups.speaks() {
            return Ok(pieces);
        }
        let (rank, ranks) = (core.groups.shards.rank(), core.table.ranks());
        for (index, bucket) in core.table.buckets().iter().enumerate() {
            for kind in StateKind::ALL {
                // Parameters that are their own master weights are not packed to be cut apart again.
                let is_apart = kind == StateKind::Parameter
                    && !self.states[index].has_masters()
                    && core.values().chunks[index].is_none();
                if is_apart {
                    for part in &bucket.pieces {
                        let row = &core.table.rows()[part.row];
                        let interval = row.interval(rank, ranks);
                        let whole = core.values().whole(part.row);
                        let whole = whole.expect("a bucket without a chunk is held whole");
                        pieces.push(piece(row, kind, interval.clone(), whole.slice(interval))?);
                    }
                    continue;
                }
                let Some(state) = self.bucket_state(index, kind) else {
                    continue;
                };
                let chunk = self.own_chunk(index, state);
                for part in &bucket.pieces {
                    let row = &core.table.rows()[part.row];
                    let interval = row.interval(rank, ranks);
                    let own = part.offset..part.offset + interval.len();
                    pieces.push(piece(row, kind, interval, chunk.clone().slice(own))?);
                }
            }
        }
        let master = parameters::dtype(core.config.precision.master());
        for (index, row) in core.table.rows().iter().enumerate() {
            let parameter = &row.parameter;
            if parameter.is_reduced() || parameter.tied_to.is_some() {
                continue;
            }
            let interval = row.interval(rank, ranks);
            let whole = core.values().whole(index);
            let own = match whole {
                Some(whole) => whole.slice(interval.clone()),
                None => {
                    let shard = core.values().shard(index, &core.device);
                    let shard = shard.expect("a parameter that is not whole is a shard");
                    shard.slice(0..interval.len())
                }
            };
            pieces.push(piece(
                row,
                StateKind::Parameter,
                interval,
                own.cast(master),
            )?);
        }
        pieces.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
        Ok(pieces)
    }

    /// Replaces parameters and states by saved ones, saved at any rank count, stage and offload, and sets how far
    /// training is. Each rank reads only what it holds. Local: no rank waits for another.
    ///
    /// # Errors
    /// [`Error::LoadState`] if `read` fails, [`Error::StateLength`] if it returns another number of bytes.
    pub fn load(&mut self, progress: Progress, read: &ReadState<'_>) -> Result<()> {
        self.parameters.load(read)?;
        let core = self.parameters.0.clone();
        for (index, bucket) in core.table.buckets().iter().enumerate() {
            for kind in StateKind::ALL {
                let here = match kind {
                    StateKind::Parameter => self.states[index].has_masters(),
                    _ => self.bucket_state(index, kind).is_some(),
                };
                if !here {
                    continue;
                }
                let values = core.read_bucket(bucket, core.policy.extent, kind, read)?;
                match kind {
                    StateKind::Parameter => self.states[index].set_masters(values),
                    _ => self.states[index].set(kind, values),
                }
            }
        }
        self.progress = progress.fitting(&core.config);
        Ok(())
    }

    /// One state of every parameter, whole, with the parameter's name: for comparisons and exports. Collective where
    /// the state is sharded; every rank gets all of it. Empty for a kind that the run does not have; frozen and empty
    /// parameters have a value only.
    ///
    /// # Errors
    /// [`Error::Collective`].
    pub fn whole_states(&self, kind: StateKind) -> Result<Vec<(String, TensorData)>> {
        let core = &self.parameters.0;
        let buckets = 0..core.table.buckets().len();
        let states: Option<Vec<_>> = buckets
            .map(|index| self.bucket_state(index, kind))
            .collect();
        let Some(states) = states else {
            return Ok(Vec::new());
        };
        let mut whole = self.whole_buckets(states)?;
        if kind == StateKind::Parameter {
            let master = parameters::dtype(core.config.precision.master());
            for (index, row) in core.table.rows().iter().enumerate() {
                let parameter = &row.parameter;
                if parameter.is_reduced() || parameter.tied_to.is_some() {
                    continue;
                }
                let held = core.values().whole(index);
                let flat = match held {
                    Some(whole) => whole,
                    None => {
                        let shard = core.values().shard(index, &core.device);
                        let shard = shard.expect("a parameter that is not whole is a shard");
                        let whole = core.groups.shards.all_gather(shard)?.wait()?;
                        whole.slice(0..row.numel())
                    }
                };
                whole.push(named(row, flat.cast(master)));
            }
            whole.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        Ok(whole)
    }

    /// The gradients of the finished window, whole, summed over ranks and micro-batches, before clipping, averaging
    /// and unscaling, in the type in which they were reduced. The window stays: `step` follows as if nothing had been
    /// read. Collective.
    ///
    /// # Errors
    /// [`Error::MicroBatches`] without a micro-batch before, [`Error::Collective`].
    pub fn whole_gradients(&mut self) -> Result<Vec<(String, TensorData)>> {
        let gradients = self.window_gradients()?.to_vec();
        self.whole_buckets(gradients)
    }

    /// A state of a bucket in the stage's extent.
    pub(crate) fn bucket_state(&self, index: usize, kind: StateKind) -> Option<Tensor<1>> {
        let core = &self.parameters.0;
        self.states[index].state(kind, || core.bucket_parameter(index))
    }

    fn whole_buckets(&self, tensors: Vec<Tensor<1>>) -> Result<Vec<(String, TensorData)>> {
        let core = &self.parameters.0;
        let mut whole = Vec::new();
        for (bucket, tensor) in core.table.buckets().iter().zip(tensors) {
            let buffer = match core.policy.extent {
                Extent::Whole => tensor,
                Extent::Shard => core.groups.shards.all_gather(tensor)?.wait()?,
            };
            let flats = unpack_whole(&core.table, bucket, buffer);
            let rows = bucket
                .pieces
                .iter()
                .map(|part| &core.table.rows()[part.row]);
            whole.extend(rows.zip(flats).map(|(row, flat)| named(row, flat)));
        }
        whole.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(whole)
    }
}

impl ShardedParameters {
    /// Replaces the values by saved ones, saved at any rank count, stage and offload. Each rank reads only what it
    /// holds. Local: no rank waits for another.
    ///
    /// # Errors
    /// [`Error::LoadState`] if `read` fails, [`Error::StateLength`] if it returns another number of bytes.
    pub fn load(&self, read: &ReadState<'_>) -> Result<()> {
        let core = &self.0;
        // What was gathered ahead is of the values before.
        core.gathers().settle()?;
        let compute = parameters::dtype(core.config.precision.compute());
        let kind = StateKind::Parameter;
        for (index, bucket) in core.table.buckets().iter().enumerate() {
            if core.sharded_bucket(index) {
                let chunk = core.read_bucket(bucket, Extent::Shard, kind, read)?;
                let chunk = Resident::placed(chunk.cast(compute), core.config.offload);
                core.values_mut().chunks[index] = Some(chunk);
            }
        }
        let (rank, ranks) = (core.groups.shards.rank(), core.table.ranks());
        for (index, row) in core.table.rows().iter().enumerate() {
            let held = core.values().rows[index].clone();
            let held = match held {
                Held::Tied | Held::InChunk { .. } => continue,
                Held::Whole(_) => {
                    let value = core.read_interval(row, kind, 0..row.numel(), read)?;
                    Held::Whole(value.cast(compute))
                }
                Held::Shard(_) => {
                    let own = core.read_interval(row, kind, row.interval(rank, ranks), read)?;
                    let own = pad(own.cast(compute), row.shard_len(ranks));
                    Held::Shard(Resident::placed(own, core.config.offload))
                }
            };
            core.values_mut().rows[index] = held;
        }
        Ok(())
    }
}

impl Core {
    /// A bucket's parameters in the stage's extent, in the type of the computation.
    pub(crate) fn bucket_parameter(&self, index: usize) -> Tensor<1> {
        let values = self.values();
        if let Some(chunk) = &values.chunks[index] {
            return chunk.clone().into_tensor(&self.device);
        }
        let bucket = &self.table.buckets()[index];
        let flats = bucket.pieces.iter().map(|piece| {
            let whole = values.whole(piece.row);
            whole.expect("a bucket without a chunk is held whole")
        });
        let flats = flats.collect();
        match self.policy.extent {
            Extent::Whole => pack_whole(&self.table, bucket, flats),
            Extent::Shard => pack_shard(&self.table, bucket, self.groups.shards.rank(), flats),
        }
    }

    /// A saved state of a bucket in an extent.
    fn read_bucket(
        &self,
        bucket: &Bucket,
        extent: Extent,
        kind: StateKind,
        read: &ReadState<'_>,
    ) -> Result<Tensor<1>> {
        let (rank, ranks) = (self.groups.shards.rank(), self.table.ranks());
        let flats = bucket.pieces.iter().map(|part| {
            let row = &self.table.rows()[part.row];
            match extent {
                Extent::Whole => self.read_interval(row, kind, 0..row.numel(), read),
                Extent::Shard => {
                    let own = self.read_interval(row, kind, row.interval(rank, ranks), read)?;
                    Ok(pad(own, part.len))
                }
            }
        });
        let flats = flats.collect::<Result<Vec<_>>>()?;
        Ok(match extent {
            Extent::Whole => pack_whole(&self.table, bucket, flats),
            Extent::Shard => Tensor::cat(flats, 0),
        })
    }

    fn read_interval(
        &self,
        row: &Row,
        kind: StateKind,
        interval: Range<usize>,
        read: &ReadState<'_>,
    ) -> Result<Tensor<1>> {
        let name = &row.parameter.name;
        let len = interval.len();
        let bytes = read(name, kind, interval).map_err(|source| Error::LoadState {
            name: name.clone(),
            kind,
            source,
        })?;
        let dtype = self.config.precision.master();
        let expected = len * dtype.bytes();
        if bytes.len() != expected {
            return Err(Error::StateLength {
                name: name.clone(),
                kind,
                dtype,
                expected,
                got: bytes.len(),
            });
        }
        let data = TensorData::from_bytes_vec(bytes, [len], parameters::dtype(dtype));
        Ok(Tensor::from_data(
            data,
            (&self.device, parameters::dtype(dtype)),
        ))
    }
}

fn named(row: &Row, flat: Tensor<1>) -> (String, TensorData) {
    (row.parameter.name.clone(), flat.into_data())
}

fn piece(row: &Row, kind: StateKind, interval: Range<usize>, own: Tensor<1>) -> Result<StatePiece> {
    let own_dtype = own.dtype();
    let data = own.try_into_data().map_err(|error| Error::Device {
        reason: error.to_string(),
    })?;
    Ok(StatePiece {
        name: row.parameter.name.clone(),
        kind,
        shape: row.parameter.shape.clone(),
        dtype: element(own_dtype),
        interval,
        data,
    })
}
