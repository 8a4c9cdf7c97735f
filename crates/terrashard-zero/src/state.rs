//! Named, shard-wise access to everything that a checkpoint holds.

use std::ops::Range;

use burn::tensor::{Tensor, TensorData};
use terrashard_layout::{ElementType, Row};

use crate::adamw::Moments;
use crate::error::{Error, Result};
use crate::packing::{pack_whole, pad, unpack_whole};
use crate::parameters;
use crate::policy::Extent;
use crate::zero_optimizer::ZeroOptimizer;

/// What a piece of state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// The parameter's value.
    Parameter,
    /// AdamW's first moment.
    Momentum,
    /// AdamW's second moment.
    Variance,
}

/// A run of elements of one parameter's state, as bytes in native (little-endian) order.
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
    /// Their bytes: `interval.len() * dtype.bytes()`.
    pub bytes: Vec<u8>,
}

/// How [`crate::ZeroOptimizer::load`] reads saved elements: name, kind and interval to bytes.
pub type ReadState<'a> = dyn Fn(&str, StateKind, Range<usize>) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>
    + 'a;

impl ZeroOptimizer {
    /// This rank's share of everything a checkpoint holds. The shares of all ranks together hold each element of each
    /// state once, at every stage, also where states are replicated. Tied parameters stand under the name that they
    /// are tied to; frozen ones have a value only.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn own_states(&self) -> Result<Vec<StatePiece>> {
        let (rank, ranks) = (self.communicator.rank(), self.table.ranks());
        let mut pieces = Vec::new();
        for (index, row) in self.table.rows().iter().enumerate() {
            let interval = row.interval(rank, ranks);
            if row.parameter.tied_to.is_none() {
                let own = self.state.flat(index).slice(interval.clone());
                pieces.push(piece(row, StateKind::Parameter, interval, own)?);
            }
        }
        for (index, bucket) in self.table.buckets().iter().enumerate() {
            let chunk = |tensor: &Tensor<1>| self.own_chunk(index, tensor.clone());
            let (m, v) = (chunk(&self.moments[index].m), chunk(&self.moments[index].v));
            for part in &bucket.pieces {
                let row = &self.table.rows()[part.row];
                let interval = row.interval(rank, ranks);
                let own = part.offset..part.offset + interval.len();
                let own_m = m.clone().slice(own.clone());
                pieces.push(piece(row, StateKind::Momentum, interval.clone(), own_m)?);
                pieces.push(piece(
                    row,
                    StateKind::Variance,
                    interval,
                    v.clone().slice(own),
                )?);
            }
        }
        Ok(pieces)
    }

    /// Replaces parameters and moments by saved ones, saved at any rank count and stage, and sets the number of steps
    /// applied. Each rank reads only what it holds. Local: no rank waits for another.
    ///
    /// # Errors
    /// [`Error::LoadState`] if `read` fails, [`Error::StateLength`] if it returns another number of bytes.
    pub fn load(&mut self, steps: u64, read: &ReadState<'_>) -> Result<()> {
        let table = self.table.clone();
        let (rank, ranks) = (self.communicator.rank(), table.ranks());
        for (index, row) in table.rows().iter().enumerate() {
            if row.parameter.tied_to.is_none() {
                let value = self.read_interval(row, StateKind::Parameter, 0..row.numel(), read)?;
                self.state.set(index, value);
            }
        }
        for (index, bucket) in table.buckets().iter().enumerate() {
            let load = |kind| -> Result<Tensor<1>> {
                let flats = bucket.pieces.iter().map(|part| {
                    let row = &table.rows()[part.row];
                    match self.policy.extent {
                        Extent::Whole => self.read_interval(row, kind, 0..row.numel(), read),
                        Extent::Shard => {
                            let own =
                                self.read_interval(row, kind, row.interval(rank, ranks), read)?;
                            Ok(pad(own, part.len))
                        }
                    }
                });
                let flats = flats.collect::<Result<Vec<_>>>()?;
                Ok(match self.policy.extent {
                    Extent::Whole => pack_whole(&table, bucket, flats),
                    Extent::Shard => Tensor::cat(flats, 0),
                })
            };
            let moments = Moments {
                m: load(StateKind::Momentum)?,
                v: load(StateKind::Variance)?,
            };
            self.moments[index] = moments;
        }
        self.steps = steps;
        Ok(())
    }

    /// One state of every parameter, whole, with the parameter's name: for comparisons and exports. Collective where
    /// the state is sharded; every rank gets all of it.
    ///
    /// # Errors
    /// [`Error::Collective`].
    pub fn whole_states(&self, kind: StateKind) -> Result<Vec<(String, TensorData)>> {
        match kind {
            StateKind::Parameter => {
                let own = |(_, row): &(usize, &Row)| row.parameter.tied_to.is_none();
                let rows = self.table.rows().iter().enumerate().filter(own);
                Ok(rows
                    .map(|(index, row)| named(row, self.state.flat(index)))
                    .collect())
            }
            StateKind::Momentum => self.whole_buckets(
                self.moments
                    .iter()
                    .map(|moments| moments.m.clone())
                    .collect(),
            ),
            StateKind::Variance => self.whole_buckets(
                self.moments
                    .iter()
                    .map(|moments| moments.v.clone())
                    .collect(),
            ),
        }
    }

    /// The gradients of the finished window, whole, summed over ranks and micro-batches, before clipping and
    /// averaging. The window stays: `step` follows as if nothing had been read. Collective.
    ///
    /// # Errors
    /// [`Error::MicroBatches`] without a micro-batch before, [`Error::Collective`].
    pub fn whole_gradients(&mut self) -> Result<Vec<(String, TensorData)>> {
        let gradients = self.window_gradients()?.to_vec();
        self.whole_buckets(gradients)
    }

    fn whole_buckets(&self, tensors: Vec<Tensor<1>>) -> Result<Vec<(String, TensorData)>> {
        let mut whole = Vec::new();
        for (bucket, tensor) in self.table.buckets().iter().zip(tensors) {
            let buffer = match self.policy.extent {
                Extent::Whole => tensor,
                Extent::Shard => self.communicator.all_gather(tensor)?.wait()?,
            };
            let flats = unpack_whole(&self.table, bucket, buffer);
            let rows = bucket
                .pieces
                .iter()
                .map(|part| &self.table.rows()[part.row]);
            whole.extend(rows.zip(flats).map(|(row, flat)| named(row, flat)));
        }
        whole.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(whole)
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
        let dtype = row.parameter.dtype;
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
    let data = own.try_into_data().map_err(|error| Error::Device {
        reason: error.to_string(),
    })?;
    Ok(StatePiece {
        name: row.parameter.name.clone(),
        kind,
        shape: row.parameter.shape.clone(),
        dtype: row.parameter.dtype,
        interval,
        bytes: data.as_bytes().to_vec(),
    })
}
