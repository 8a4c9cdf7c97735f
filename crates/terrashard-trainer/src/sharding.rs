//! Weights for test and prediction: one copy for all threads, or a shard on each rank.

use std::sync::{Arc, Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::Serialize;
use terrashard_checkpoint::Kind;
use terrashard_collectives::Communicator;
use terrashard_layout::Stage;
use terrashard_models::{S2s2Net, Scope};
use terrashard_ops::{Mode, Pass};
use terrashard_zero::{Initial, Offload, Recompute, ShardedParameters, StateKind, ZeroConfig};

use crate::error::Result;
use crate::trained_model::TrainedModel;

/// Where the weights of a mapping are kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Placement {
    /// At stage 3, each rank holds a shard; at others, all ranks share one copy.
    pub stage: Stage,
    /// Whether the shards of stage 3 are kept in host memory.
    pub offload: bool,
    /// At stage 3, blocks that are gathered ahead.
    pub prefetch: usize,
    /// At stage 3, parameters below this many bytes stay whole.
    pub persist_bytes: usize,
}

/// A network with its weights, and the device that they are on.
#[derive(Debug, Clone)]
pub struct OnDevice {
    pub(crate) network: S2s2Net,
    pub(crate) device: Device,
}

/// A network's weights as a mapping uses them.
#[derive(Debug)]
pub enum Weights<'a> {
    /// One copy on each device, for all ranks that compute there.
    Whole(Vec<OnDevice>),
    /// A shard on each rank.
    Sharded(Sharding<'a>),
}

impl<'a> Weights<'a> {
    /// Those of a trained model. Shards are read by the ranks.
    ///
    /// # Errors
    /// [`crate::Error::Checkpoint`] if a tensor is missing, has another shape or is damaged; [`crate::Error::Model`].
    ///
    /// # Panics
    /// Without a device.
    pub fn new(
        trained: &'a TrainedModel,
        placement: Placement,
        devices: &[Device],
    ) -> Result<Self> {
        assert!(!devices.is_empty(), "ranks compute somewhere");
        if placement.stage != Stage::Three {
            let copy = |device: &Device| {
                Ok(OnDevice {
                    network: trained.network(device)?,
                    device: device.clone(),
                })
            };
            return Ok(Weights::Whole(
                devices.iter().map(copy).collect::<Result<_>>()?,
            ));
        }
        Ok(Weights::Sharded(Sharding {
            trained,
            placement,
            devices: devices.to_vec(),
            held: Mutex::default(),
        }))
    }

    /// With shards, what the rank that held most has held so far.
    pub fn held(&self) -> Option<HeldParameters> {
        match self {
            Weights::Whole(_) => None,
            Weights::Sharded(sharding) => Some(sharding.held()),
        }
    }
}

/// Weights that the ranks hold between them.
#[derive(Debug)]
pub struct Sharding<'a> {
    trained: &'a TrainedModel,
    placement: Placement,
    /// Those of the ranks, in turn.
    devices: Vec<Device>,
    held: Mutex<HeldParameters>,
}

/// The bytes of parameters that a rank held when it held most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HeldParameters {
    /// Its shards, on the device or in host memory.
    pub shards: usize,
    /// Gathered for the blocks in flight.
    pub gathered: usize,
}

impl Sharding<'_> {
    fn held(&self) -> HeldParameters {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads this rank's shards. Collective.
    ///
    /// # Errors
    /// [`crate::Error::Checkpoint`] if a tensor is missing, has another shape or is damaged; [`crate::Error::Zero`].
    pub(crate) fn rank(&self, communicator: Arc<dyn Communicator>) -> Result<RankShards> {
        let device = &self.devices[communicator.rank() % self.devices.len()];
        let network = self.trained.skeleton(device)?;
        let config = ZeroConfig {
            stage: Stage::Three,
            offload: match self.placement.offload {
                true => Offload::Parameters,
                false => Offload::None,
            },
            prefetch: self.placement.prefetch,
            persist_bytes: self.placement.persist_bytes,
            ..ZeroConfig::default()
        };
        // Each is replaced by the saved one.
        let zeros = |_: &str, shape: &[usize]| vec![0.0; shape.iter().product()];
        let parameters = ShardedParameters::new(
            &network,
            config,
            Initial::Keyed(&zeros),
            communicator,
            device,
        )?;
        let blocks: Vec<_> = network
            .blocks()
            .into_iter()
            .map(|block| block.parameters)
            .collect();
        parameters.declare_blocks(&blocks)?;
        let source = self.trained.source();
        parameters.load(&|name, kind, interval| {
            debug_assert_eq!(kind, StateKind::Parameter, "nothing else is sharded here");
            let values = source.read_f32(name, Kind::Parameter, interval)?;
            Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
        })?;
        Ok(RankShards {
            network,
            device: device.clone(),
            parameters,
        })
    }

    /// Counts what a rank held.
    pub(crate) fn count(&self, own: &RankShards) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.shards = held.shards.max(own.parameters.held_bytes());
        held.gathered = held.gathered.max(own.parameters.take_gathered_peak());
    }
}

/// One rank's shards and the network that they belong to.
#[derive(Debug)]
pub(crate) struct RankShards {
    pub(crate) network: S2s2Net,
    pub(crate) device: Device,
    pub(crate) parameters: ShardedParameters,
}

impl RankShards {
    /// What fetches the blocks of a forward pass.
    pub(crate) fn scope(&self) -> impl Scope {
        Sharded(&self.parameters)
    }
}

/// A forward pass for test and prediction with the parameters that a rank has shards of.
pub(crate) struct Sharded<'a>(pub(crate) &'a ShardedParameters);

impl Scope for Sharded<'_> {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        _name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        let pass = self.pass();
        self.0
            .block(module, inputs, Recompute::Keep, move |module, inputs, _| {
                forward(module, inputs, &pass)
            })
    }

    fn pass(&self) -> Pass {
        Pass::new(Mode::Inference)
    }
}
