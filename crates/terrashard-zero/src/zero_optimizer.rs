//! One rank's sharded optimizer: it holds the parameters, lets a model's blocks enter the graph with them, reduces
//! their gradients during backward and updates its shard.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::{Communicator, Pending};
use terrashard_layout::{LayoutConfig, ShardTable};

use crate::adamw::{Moments, Update};
use crate::anchor::{self, Port, Slot};
use crate::config::{NonFinite, Reduction, ZeroConfig};
use crate::error::{Error, Result};
use crate::packing::{pack_shard, pack_whole, unpack_whole, zeros};
use crate::parameters::{Replace, declared, dtype, replaced};
use crate::policy::{Extent, Policy};
use crate::reducer::Reducer;
use crate::setup::{Initial, compare_tables, initial_values, specs};
use crate::values::{RankState, Value};

/// Parameter gathers that may travel at once.
const IN_FLIGHT: usize = 2;

/// What became of a step. Every rank has the same outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutcome {
    /// The parameters were updated.
    Applied {
        /// Global gradient norm before clipping.
        norm: f64,
        /// The scalars given to `step`, summed over ranks.
        scalars: Vec<f64>,
    },
    /// A gradient was not finite and nothing changed ([`NonFinite::Skip`]).
    Skipped {
        /// Ranks whose shard held non-finite values.
        ranks: usize,
        /// The scalars given to `step`, summed over ranks.
        scalars: Vec<f64>,
    },
}

/// Bytes that this rank holds, counted on its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Parameter values.
    pub parameters: usize,
    /// Gradients between micro-batches.
    pub gradients: usize,
    /// AdamW's two moments.
    pub optimizer: usize,
}

/// One rank's part of a sharded optimizer.
///
/// ```text
/// let block = optimizer.enter(&model.block, &x);   // forward, block by block
/// optimizer.backward(loss)?;                       // once for each micro-batch
/// let outcome = optimizer.step(lr, &[])?;          // once for each optimizer step
/// ```
///
/// Each rank builds its own model and optimizer: burn's `Param` clones share one value and its graph one lock.
pub struct ZeroOptimizer {
    pub(crate) table: Arc<ShardTable>,
    pub(crate) communicator: Arc<dyn Communicator>,
    pub(crate) config: ZeroConfig,
    pub(crate) policy: Policy,
    pub(crate) state: Arc<RankState>,
    pub(crate) device: Device,
    token: Tensor<1>,
    rows: HashMap<ParamId, usize>,
    /// For each bucket.
    pub(crate) moments: Vec<Moments>,
    /// Optimizer steps applied.
    pub(crate) steps: u64,
    /// Reduced gradients of the finished window and the number of its micro-batches.
    window: Option<(Vec<Tensor<1>>, usize)>,
}

impl ZeroOptimizer {
    /// Lays out the parameters of `module`, fills this rank's values and compares tables with the other ranks.
    ///
    /// The module's own parameters are read only for [`Initial::Module`]; otherwise nothing of it is initialised.
    /// Collective: every rank calls it with an equal module and configuration.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Stage`], [`Error::Layout`], [`Error::InitialLength`], [`Error::TableMismatch`],
    /// [`Error::Collective`].
    pub fn new<M: Module>(
        module: &M,
        config: ZeroConfig,
        initial: Initial<'_>,
        communicator: Arc<dyn Communicator>,
        device: &Device,
    ) -> Result<Self> {
        config.validate()?;
        let device = device.clone().inner();
        let parameters = declared(module);
        let table = Arc::new(ShardTable::new(
            specs(&parameters, &config),
            &LayoutConfig {
                ranks: communicator.ranks(),
                stage: config.stage,
                persist_bytes: 0,
                bucket_bytes: config.bucket_bytes,
            },
        )?);
        compare_tables(&table, communicator.as_ref(), &device)?;
        let element = dtype(config.dtype);
        let first = initial_values(module, &parameters, &initial, element, &device)?;
        let mut rows = HashMap::new();
        let mut by_row: Vec<Option<Value>> = vec![None; table.rows().len()];
        for (parameter, flat) in parameters.iter().zip(first) {
            let row = table
                .index(&parameter.name)
                .expect("the table was built from these names");
            let first = *rows.entry(parameter.id).or_insert(row);
            // A tied parameter lives in the row that it is tied to.
            let flat = if first == row {
                flat
            } else {
                zeros(0, &device, element)
            };
            by_row[row] = Some(Value {
                flat,
                shape: parameter.shape.clone(),
            });
        }
        let by_row: Vec<Value> = by_row
            .into_iter()
            .map(|value| value.expect("the table has a row for each declared parameter only"))
            .collect();
        let policy = Policy::of(config.stage);
        let moments = table.buckets().iter().map(|bucket| {
            let len = policy.extent.elements(bucket, table.ranks());
            Moments {
                m: zeros(len, &device, element),
                v: zeros(len, &device, element),
            }
        });
        let moments = moments.collect();
        let reducer = Reducer::new(
            table.clone(),
            communicator.clone(),
            policy,
            device.clone(),
            element,
            config.accumulate,
        );
        let token = Tensor::<1>::zeros([1], (&device.clone().autodiff(), element)).require_grad();
        let optimizer = Self {
            state: Arc::new(RankState::new(by_row, reducer)),
            table,
            communicator,
            config,
            policy,
            device,
            token,
            rows,
            moments,
            steps: 0,
            window: None,
        };
        if matches!(initial, Initial::Module) {
            optimizer.broadcast_values()?;
        }
        Ok(optimizer)
    }

    /// `module`, a part of the model this optimizer was built from, with its parameters entering the graph at the
    /// depth of `anchor`, the activation that goes into the module.
    ///
    /// With an anchor outside autodiff, the parameters are plain. A module that does not belong to this optimizer is
    /// returned as it is, and the next [`Self::backward`] or [`Self::step`] returns [`Error::ForeignParameter`].
    pub fn enter<M: Module, const D: usize>(&self, module: &M, anchor: &Tensor<D>) -> M {
        struct Enter<'a, const A: usize> {
            optimizer: &'a ZeroOptimizer,
            anchor: &'a Tensor<A>,
        }
        impl<const A: usize> Replace for Enter<'_, A> {
            fn tensor<const D: usize>(
                &mut self,
                id: ParamId,
                shape: &[usize],
            ) -> Option<Tensor<D>> {
                let state = &self.optimizer.state;
                let Some(&row) = self.optimizer.rows.get(&id) else {
                    state.reducer().fail(Error::ForeignParameter {
                        shape: shape.to_vec(),
                    });
                    return None;
                };
                if !self.optimizer.table.rows()[row].parameter.trainable {
                    return Some(state.shaped::<D>(row).autodiff());
                }
                state.reducer().entered(row);
                let port: Arc<dyn Port> = state.clone();
                Some(anchor::enter(
                    self.anchor,
                    &self.optimizer.token,
                    Slot { port, index: row },
                ))
            }
        }
        if !anchor.device().is_autodiff() {
            return self.plain(module);
        }
        replaced(
            module,
            &mut Enter {
                optimizer: self,
                anchor,
            },
        )
    }

    /// `module` with its parameters as plain tensors, for testing and prediction.
    ///
    /// Parameters that do not belong to this optimizer stay the module's own.
    pub fn plain<M: Module>(&self, module: &M) -> M {
        struct Plain<'a>(&'a ZeroOptimizer);
        impl Replace for Plain<'_> {
            fn tensor<const D: usize>(
                &mut self,
                id: ParamId,
                _shape: &[usize],
            ) -> Option<Tensor<D>> {
                self.0.rows.get(&id).map(|&row| self.0.state.shaped(row))
            }
        }
        replaced(module, &mut Plain(self))
    }

    /// Runs backward of one micro-batch and reduces its gradients on the way, as the stage says.
    ///
    /// Collective. Parameters that did not take part count as zero.
    ///
    /// # Shapes
    /// `loss`: `[1]`, on the autodiff device.
    ///
    /// # Errors
    /// [`Error::MicroBatches`] if the step already has all its micro-batches, [`Error::Collective`],
    /// [`Error::ForeignParameter`].
    pub fn backward(&self, loss: Tensor<1>) -> Result<()> {
        self.state.reducer().begin()?;
        // The reducer is not locked here: burn's backward delivers gradients to it.
        drop(loss.backward());
        self.state.reducer().finish()
    }

    /// Ends the window of micro-batches: clips by the global norm and updates the parameters with learning rate `lr`.
    ///
    /// All ranks take the same decision, from one all-reduce of a few numbers; `scalars` travel in it, so that a
    /// caller's own counts cost no collective. Collective.
    ///
    /// # Errors
    /// [`Error::NonFinite`] under [`NonFinite::Abort`], [`Error::MicroBatches`] without a micro-batch before,
    /// [`Error::Collective`], [`Error::Device`].
    pub fn step(&mut self, lr: f64, scalars: &[f64]) -> Result<StepOutcome> {
        let (gradients, micro_batches) = self.take_window()?;
        let mean = match self.config.reduction {
            Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / (self.table.ranks() * micro_batches) as f64,
        };
        let squares = self.own_sum_of_squares(&gradients)?;
        let finite = squares.is_finite();
        let mut message = vec![
            if finite { squares } else { 0.0 },
            if finite { 0.0 } else { 1.0 },
        ];
        message.extend_from_slice(scalars);
        let sums = self.sum_over_ranks(message)?;
        let norm = sums[0].sqrt() * mean;
        let failed = sums[1] as usize;
        let scalars = sums[2..].to_vec();
        if failed > 0 {
            return match self.config.nonfinite {
                NonFinite::Skip => Ok(StepOutcome::Skipped {
                    ranks: failed,
                    scalars,
                }),
                NonFinite::Abort => Err(Error::NonFinite {
                    step: self.steps + 1,
                    ranks: failed,
                    parameter: self.first_non_finite(&gradients)?,
                }),
            };
        }
        let clip = self
            .config
            .clip_norm
            .map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0));
        self.steps += 1;
        self.update(gradients, lr, mean * clip)?;
        Ok(StepOutcome::Applied { norm, scalars })
    }

    /// Sums a few numbers over the ranks, in double precision. Collective.
    ///
    /// # Errors
    /// [`Error::Collective`], [`Error::Device`].
    pub fn sum_over_ranks(&self, numbers: Vec<f64>) -> Result<Vec<f64>> {
        let tensor = Tensor::<1>::from_data(
            TensorData::from(numbers.as_slice()),
            (&self.device, DType::F64),
        );
        read_f64(self.communicator.all_reduce(tensor)?.wait()?)
    }

    /// The table of all parameters.
    pub fn table(&self) -> &ShardTable {
        &self.table
    }

    /// Optimizer steps applied so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The ranks' communicator.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.communicator
    }

    /// The plain device of parameters and states.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What this rank holds now.
    pub fn held_bytes(&self) -> HeldBytes {
        let bytes = |tensor: &Tensor<1>| tensor.dims()[0] * tensor.dtype().size();
        HeldBytes {
            parameters: self.state.held_bytes(),
            gradients: self.state.reducer().held_bytes(),
            optimizer: self
                .moments
                .iter()
                .map(|moments| bytes(&moments.m) + bytes(&moments.v))
                .sum(),
        }
    }

    /// The reduced gradients of the window in the stage's extent, taken from the reducer once.
    pub(crate) fn window_gradients(&mut self) -> Result<&[Tensor<1>]> {
        let window = self.take_window()?;
        Ok(&self.window.insert(window).0)
    }

    fn take_window(&mut self) -> Result<(Vec<Tensor<1>>, usize)> {
        match self.window.take() {
            Some(window) => Ok(window),
            None => self.state.reducer().take(),
        }
    }

    /// This rank's chunk of a tensor in the stage's extent.
    pub(crate) fn own_chunk(&self, bucket: usize, tensor: Tensor<1>) -> Tensor<1> {
        let chunk = self.table.buckets()[bucket].chunk;
        match self.policy.extent {
            Extent::Shard => tensor,
            Extent::Whole => tensor.narrow(0, self.communicator.rank() * chunk, chunk),
        }
    }

    /// The sum of squares of this rank's shard. Each element of the model is in one rank's sum, and each sum runs over
    /// the same elements at every stage, so that the norm is the same bit by bit.
    fn own_sum_of_squares(&self, gradients: &[Tensor<1>]) -> Result<f64> {
        if gradients.is_empty() {
            return Ok(0.0);
        }
        let sums = gradients.iter().enumerate().map(|(bucket, gradient)| {
            let own = self.own_chunk(bucket, gradient.clone());
            (own.clone() * own).sum()
        });
        let sums = read_f64(Tensor::cat(sums.collect(), 0))?;
        Ok(sums.iter().sum())
    }

    /// The first parameter of this rank's shard with a non-finite gradient.
    fn first_non_finite(&self, gradients: &[Tensor<1>]) -> Result<String> {
        for (index, bucket) in self.table.buckets().iter().enumerate() {
            let own = read_f64(self.own_chunk(index, gradients[index].clone()))?;
            for piece in &bucket.pieces {
                if own[piece.offset..piece.offset + piece.len]
                    .iter()
                    .any(|value| !value.is_finite())
                {
                    return Ok(self.table.rows()[piece.row].parameter.name.clone());
                }
            }
        }
        Ok("a parameter on another rank".into())
    }

    fn update(&mut self, gradients: Vec<Tensor<1>>, lr: f64, gradient_factor: f64) -> Result<()> {
        let table = self.table.clone();
        let rank = self.communicator.rank();
        let mut in_flight: VecDeque<(usize, Pending)> = VecDeque::new();
        for (index, (bucket, gradient)) in table.buckets().iter().zip(gradients).enumerate() {
            let flats = bucket
                .pieces
                .iter()
                .map(|piece| self.state.flat(piece.row))
                .collect();
            let parameter = match self.policy.extent {
                Extent::Whole => pack_whole(&table, bucket, flats),
                Extent::Shard => pack_shard(&table, bucket, rank, flats),
            };
            let group = self.config.group(bucket.group);
            let update = Update {
                rule: self.config.adamw,
                lr: lr * group.lr_factor,
                weight_decay: group.weight_decay,
                step: self.steps,
                gradient_factor,
            };
            let (parameter, moments) =
                update.apply(parameter, gradient, self.moments[index].clone());
            self.moments[index] = moments;
            match self.policy.extent {
                Extent::Whole => self.store(index, parameter),
                Extent::Shard => {
                    in_flight.push_back((index, self.communicator.all_gather(parameter)?));
                    self.store_gathered(&mut in_flight, IN_FLIGHT)?;
                }
            }
        }
        self.store_gathered(&mut in_flight, 0)
    }

    fn store_gathered(
        &self,
        in_flight: &mut VecDeque<(usize, Pending)>,
        limit: usize,
    ) -> Result<()> {
        while in_flight.len() > limit
            && let Some((bucket, pending)) = in_flight.pop_front()
        {
            self.store(bucket, pending.wait()?);
        }
        Ok(())
    }

    /// Makes a bucket's buffer `[ranks * chunk]` the values of its parameters.
    pub(crate) fn store(&self, bucket: usize, buffer: Tensor<1>) {
        let bucket = &self.table.buckets()[bucket];
        let flats = unpack_whole(&self.table, bucket, buffer);
        for (piece, flat) in bucket.pieces.iter().zip(flats) {
            self.state.set(piece.row, flat);
        }
    }

    fn broadcast_values(&self) -> Result<()> {
        for row in 0..self.table.rows().len() {
            let value = self
                .communicator
                .broadcast(self.state.flat(row), 0)?
                .wait()?;
            self.state.set(row, value);
        }
        Ok(())
    }
}

/// A tensor's values as doubles.
pub(crate) fn read_f64(tensor: Tensor<1>) -> Result<Vec<f64>> {
    let data = tensor.try_into_data_as::<f64>();
    let data = data.map_err(|error| Error::Device {
        reason: error.to_string(),
    })?;
    data.try_to_vec::<f64>().map_err(|error| Error::Device {
        reason: format!("{error:?}"),
    })
}
