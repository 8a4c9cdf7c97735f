//! The parameters of one rank, and how a model's blocks get them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use burn::backend::DispatchTensor;
use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_layout::{LayoutConfig, ShardTable};

use crate::anchor::{self, Port};
use crate::comparison::compare_tables;
use crate::config::ZeroConfig;
use crate::entrance::{Entering, Entrance, Entry};
use crate::error::{Error, Result};
use crate::gather::{Direction, Gathered, Gathers, Lease};
use crate::groups::RankGroups;
use crate::packing::{reshaped, zeros};
use crate::parameters::{Replace, declared, dtype, identities, replaced};
use crate::policy::Policy;
use crate::reading::read_f64;
use crate::reducer::Reducer;
use crate::setup::{Initial, Placement, Source, compare_host_memory, initial_values, specs};
use crate::update::BucketStates;
use crate::values::Values;

/// One rank's parameters: whole at stages 0 to 2, sharded at stage 3.
///
/// Part of a [`crate::ZeroOptimizer`], and by itself what test and prediction need: the values without gradients and
/// optimizer states. Clones are handles to the same parameters.
#[derive(Clone, Debug)]
pub struct ShardedParameters(pub(crate) Arc<Core>);

/// Whether parameters come with the states of their update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trained {
    Yes,
    No,
}

/// What the optimizer, the graph's operations and recomputed blocks of one rank share.
pub(crate) struct Core {
    pub(crate) table: Arc<ShardTable>,
    pub(crate) config: ZeroConfig,
    pub(crate) policy: Policy,
    pub(crate) groups: RankGroups,
    pub(crate) device: Device,
    rows: HashMap<ParamId, usize>,
    values: RwLock<Values>,
    reducer: Mutex<Reducer>,
    gathers: Mutex<Gathers>,
    gathered: Arc<Gathered>,
    #[cfg(feature = "tch")]
    _without_graphs: Option<terrashard_torch::WithoutGraphs>,
}

/// Graphs of kernels read parameters where they lie, and go with them.
#[cfg(feature = "tch")]
impl Drop for Core {
    fn drop(&mut self) {
        // A graph that LibTorch cannot free is of no harm.
        let _ = terrashard_torch::Graphs::forget();
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShardedParameters")
    }
}

impl ShardedParameters {
    /// Lays out the parameters of `module` and fills this rank's values. See [`crate::ZeroOptimizer::new`].
    ///
    /// # Errors
    /// Those of [`crate::ZeroOptimizer::new`].
    pub fn new<M: Module>(
        module: &M,
        config: ZeroConfig,
        initial: Initial<'_>,
        communicator: Arc<dyn Communicator>,
        device: &Device,
    ) -> Result<Self> {
        Ok(Self::with_states(module, config, initial, communicator, device, Trained::No)?.0)
    }

    /// The parameters and, in the same pass over the initial values, the states of the update.
    pub(crate) fn with_states<M: Module>(
        module: &M,
        config: ZeroConfig,
        initial: Initial<'_>,
        communicator: Arc<dyn Communicator>,
        device: &Device,
        trained: Trained,
    ) -> Result<(Self, Vec<BucketStates>)> {
        config.validate(communicator.ranks())?;
        let device = device.clone().inner();
        let groups = RankGroups::new(communicator, &config)?;
        let parameters = declared(module);
        let table = Arc::new(ShardTable::new(
            specs(&parameters, &config),
            &LayoutConfig {
                ranks: groups.shards.ranks(),
                stage: config.stage,
                persist_bytes: config.persist_bytes,
                bucket_bytes: config.bucket_bytes,
            },
        )?);
        compare_tables(&table, groups.world.as_ref(), &device)?;
        let mut rows = HashMap::new();
        for parameter in &parameters {
            let row = table
                .index(&parameter.name)
                .expect("the table was built from these names");
            // A tied parameter lives in the row that it is tied to.
            rows.entry(parameter.id).or_insert(row);
        }
        let placement = Placement {
            table: &table,
            config: &config,
            groups: &groups,
            device: &device,
        };
        let mut states = match trained {
            Trained::No => Vec::new(),
            Trained::Yes => {
                if table.buckets().is_empty() {
                    return Err(Error::Setting {
                        key: "groups",
                        value: "no parameter".into(),
                        expected: "a parameter that is trained and not empty",
                    });
                }
                compare_host_memory(placement)?;
                let buckets = table.buckets().iter();
                buckets
                    .map(|bucket| BucketStates::zeros(&table, bucket, &config, &device))
                    .collect()
            }
        };
        let values = initial_values(
            &mut Source::new(module, &parameters, &initial, placement),
            &mut states,
        )?;
        let reducer = Reducer::new(table.clone(), groups.clone(), device.clone(), &config);
        let ahead = if config.overlap { config.prefetch } else { 0 };
        let gathers = Gathers::new(table.clone(), groups.shards.clone(), ahead);
        #[cfg(feature = "tch")]
        let without_graphs = crate::libtorch::without_graphs(&config)?;
        let core = Core {
            policy: Policy::of(config.stage),
            table,
            config,
            groups,
            device,
            rows,
            values: RwLock::new(values),
            reducer: Mutex::new(reducer),
            gathered: gathers.counter().clone(),
            gathers: Mutex::new(gathers),
            #[cfg(feature = "tch")]
            _without_graphs: without_graphs,
        };
        Ok((Self(Arc::new(core)), states))
    }

    /// Declares the model's blocks in forward order, each by the names of its parameters, so that stage 3 can gather
    /// [`ZeroConfig::prefetch`] blocks ahead. Blocks that are not declared are gathered when they are used.
    ///
    /// # Errors
    /// [`Error::UnknownParameter`].
    pub fn declare_blocks(&self, blocks: &[Vec<String>]) -> Result<()> {
        let table = &self.0.table;
        let rows = blocks.iter().map(|names| {
            let rows = names.iter().map(|name| {
                let index = table
                    .index(name)
                    .ok_or_else(|| Error::UnknownParameter { name: name.clone() })?;
                let owner = table.rows()[index].parameter.tied_to.as_deref();
                Ok(owner.and_then(|owner| table.index(owner)).unwrap_or(index))
            });
            let mut rows = self.0.sharded(rows.collect::<Result<Vec<_>>>()?);
            rows.dedup();
            Ok(rows)
        });
        let rows = rows.collect::<Result<_>>()?;
        self.0.gathers().declare(rows);
        Ok(())
    }

    /// `module`, a part of the model, with its parameters entering the graph at the depth of `anchor`, the activation
    /// that goes into the module. At stage 3 they are gathered here, let go with the returned module, and gathered
    /// again in backward (collective).
    ///
    /// At stage 3 every rank enters the same modules in the same order: a branch that some ranks leave out ends the run with
    /// an error. What is gathered here is counted until this returns; use [`Self::block`] to have it counted as long as
    /// it is used.
    ///
    /// With an anchor outside autodiff, the parameters are plain. A module that does not belong to the model is
    /// returned as it is. Such a failure, and one of a gather, is returned by the next [`Self::check`],
    /// [`crate::ZeroOptimizer::backward`] or [`crate::ZeroOptimizer::step`].
    pub fn enter<M: Module, const D: usize>(&self, module: &M, anchor: &Tensor<D>) -> M {
        if !anchor.device().is_autodiff() {
            return self.plain(module);
        }
        let (module, lease) = self.0.enter(
            module,
            anchor,
            &self.0.token(anchor),
            Entry::Counted,
            Entering::AtOnce,
        );
        lease.release();
        module
    }

    /// `module` with its parameters as plain tensors, for testing and prediction. Collective at stage 3, where all of
    /// `module` is gathered at once: use [`Self::block`] or [`Self::enter`] to gather block by block.
    ///
    /// Parameters that do not belong to the model stay the module's own.
    pub fn plain<M: Module>(&self, module: &M) -> M {
        let lease = self.0.lease(module);
        let plain = self.0.plain_with(module, &lease);
        lease.release();
        plain
    }

    /// The first failure inside a forward pass, which could not return it.
    ///
    /// # Errors
    /// [`Error::ForeignParameter`], [`Error::Collective`].
    pub fn check(&self) -> Result<()> {
        let settled = self.0.gathers().settle();
        self.0.reducer().take_failure()?;
        settled
    }

    /// Notes that this rank gave numbers to others inside a forward or backward pass, such as its sums of a statistic over ranks, and
    /// whether they were finite. Such sums carry a number that is not finite to all ranks at once; by what each gave,
    /// [`crate::Origin`] names the rank where it began. Every rank notes the same exchanges in the same order.
    pub fn note_given(&self, finite: bool) {
        self.0.reducer().gave(finite);
    }

    /// The table of all parameters.
    pub fn table(&self) -> &ShardTable {
        &self.0.table
    }

    /// The communicator of all ranks.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.0.groups.world
    }

    /// The group in which shards live and the one over which they are replicated: with hybrid sharding they differ
    /// from all ranks.
    pub fn groups(&self) -> &RankGroups {
        &self.0.groups
    }

    /// The plain device of the parameters.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Sums a few numbers over the ranks, in double precision. Collective.
    ///
    /// # Errors
    /// [`Error::Collective`], [`Error::Device`].
    pub fn sum_over_ranks(&self, numbers: Vec<f64>) -> Result<Vec<f64>> {
        let tensor = Tensor::<1>::from_data(
            TensorData::from(numbers.as_slice()),
            (&self.0.device, DType::F64),
        );
        read_f64(self.0.groups.world.all_reduce(tensor)?.wait()?)
    }

    /// Bytes of parameter values that this rank holds, on the device and in host memory.
    pub fn held_bytes(&self) -> usize {
        let (device, host) = self.0.values().bytes();
        device + host
    }

    /// Bytes of gathered parameters in use now: 0 between steps.
    pub fn gathered_bytes(&self) -> usize {
        self.0.gathered.now()
    }

    /// The most gathered bytes at once since the last call.
    pub fn take_gathered_peak(&self) -> usize {
        self.0.gathered.take_peak()
    }
}

impl Core {
    /// The row of a parameter, if it is one of the model's.
    pub(crate) fn row(&self, parameter: ParamId) -> Option<usize> {
        self.rows.get(&parameter).copied()
    }

    pub(crate) fn values(&self) -> std::sync::RwLockReadGuard<'_, Values> {
        self.values.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn values_mut(&self) -> std::sync::RwLockWriteGuard<'_, Values> {
        self.values.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reducer. Only the rank's own thread takes it, so a lock poisoned by a panic protects nothing.
    pub(crate) fn reducer(&self) -> MutexGuard<'_, Reducer> {
        self.reducer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn gathers(&self) -> MutexGuard<'_, Gathers> {
        self.gathers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tensor that is always tracked, so that parameters are part of the graph even where their anchor is not.
    pub(crate) fn token<const D: usize>(&self, anchor: &Tensor<D>) -> Tensor<1> {
        let element = dtype(self.config.precision.compute());
        // Nothing reads its value.
        beside(Tensor::empty([1], (&self.device, element)), anchor).require_grad()
    }

    /// Those of `rows` that have to be gathered, sorted.
    fn sharded(&self, mut rows: Vec<usize>) -> Vec<usize> {
        let all = self.table.rows();
        rows.retain(|&row| !self.table.keeps_whole(&all[row]) && all[row].numel() > 0);
        rows.sort_unstable();
        rows
    }

    /// The rows of a module's parameters, one for each use.
    fn rows_of<M: Module>(&self, module: &M) -> Vec<usize> {
        let identities = identities(module).into_iter();
        identities
            .filter_map(|id| self.rows.get(&id).copied())
            .collect()
    }

    /// The trainable rows of a module's parameters, one for each use.
    pub(crate) fn trainable<M: Module>(&self, module: &M) -> Vec<usize> {
        let mut rows = self.rows_of(module);
        rows.retain(|&row| self.table.rows()[row].parameter.trainable);
        rows
    }

    /// An empty lease of the parameters that a use of `module` gathers.
    pub(crate) fn lease<M: Module>(&self, module: &M) -> Arc<Lease> {
        let rows = if self.config.stage.shards_parameters() {
            self.sharded(self.rows_of(module))
        } else {
            Vec::new()
        };
        Arc::new(Lease::new(&rows))
    }

    /// Gathers what a lease is for. A failure is kept for the end of the pass.
    fn fill(&self, lease: &Lease, direction: Direction) {
        if lease.rows().is_empty() {
            return;
        }
        let shard = |row| {
            self.values()
                .shard(row, &self.device)
                .expect("leased rows are sharded")
        };
        let gathered = self.gathers().gather(lease.rows(), direction, &shard);
        match gathered {
            Ok((values, hold)) => lease.fill(values, hold),
            Err(error) => self.reducer().fail(error),
        }
    }

    /// The flat value of `row`: held, leased, or zeros after a failed gather.
    fn flat(&self, row: usize, lease: &Lease) -> Tensor<1> {
        let whole = self.values().whole(row);
        whole.or_else(|| lease.take(row)).unwrap_or_else(|| {
            let element = dtype(self.config.precision.compute());
            zeros(self.table.rows()[row].numel(), &self.device, element)
        })
    }

    pub(crate) fn shaped(&self, row: usize, lease: &Lease) -> DispatchTensor {
        let shape = &self.table.rows()[row].parameter.shape;
        reshaped(self.flat(row, lease).into_dispatch(), shape)
    }

    pub(crate) fn plain_with<M: Module>(&self, module: &M, lease: &Lease) -> M {
        struct Plain<'a>(&'a Core, &'a Lease);
        impl Replace for Plain<'_> {
            fn parameter<const D: usize>(
                &mut self,
                id: ParamId,
                _shape: &[usize],
            ) -> Option<Param<Tensor<D>>> {
                let row = self.0.row(id)?;
                let tensor = Tensor::from_dispatch(self.0.shaped(row, self.1));
                Some(Param::initialized(id, tensor))
            }
        }
        self.fill(lease, Direction::Forward);
        replaced(module, &mut Plain(self, lease))
    }

    pub(crate) fn enter<M: Module, const D: usize>(
        self: &Arc<Self>,
        module: &M,
        anchor: &Tensor<D>,
        token: &Tensor<1>,
        entry: Entry,
        entering: Entering,
    ) -> (M, Arc<Lease>) {
        let lease = self.lease(module);
        let direction = match entry {
            Entry::Counted => Direction::Forward,
            Entry::Repeated => Direction::Backward,
        };
        self.fill(&lease, direction);
        let entrance = Entrance {
            core: self.clone(),
            mark: anchor::mark(anchor),
            token: token.clone(),
            lease: lease.clone(),
            entry,
            trained: !self.trainable(module).is_empty(),
        };
        (entrance.module(module, entering), lease)
    }

    /// Whether the parameters of a bucket are held as shards.
    pub(crate) fn sharded_bucket(&self, bucket: usize) -> bool {
        let pieces = &self.table.buckets()[bucket].pieces;
        let row = &self.table.rows()[pieces[0].row];
        !self.table.keeps_whole(row)
    }
}

/// A plain tensor on the autodiff device of `anchor`: operations mix no two strategies of checkpointing.
pub(crate) fn beside<const D: usize, const A: usize>(
    plain: Tensor<D>,
    anchor: &Tensor<A>,
) -> Tensor<D> {
    let tensor = plain.autodiff();
    match anchor.gradient_checkpointing_strategy() {
        Some(strategy) => tensor.with_gradient_checkpointing_strategy(strategy),
        None => tensor,
    }
}

impl Port for Core {
    fn value(&self, slot: usize, lease: &Lease) -> DispatchTensor {
        if lease.contains(slot) && !lease.holds(slot) {
            self.fill(lease, Direction::Backward);
        }
        self.shaped(slot, lease)
    }

    fn deliver(&self, slot: usize, lease: &Lease, gradient: DispatchTensor) {
        lease.pay();
        if !self.table.rows()[slot].parameter.trainable {
            return;
        }
        let numel = self.table.rows()[slot].numel();
        let flat = reshaped(gradient, &[numel]);
        self.reducer().deliver(slot, Tensor::from_dispatch(flat));
    }
}
