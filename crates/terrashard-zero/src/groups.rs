//! Which ranks share shards and which hold the same ones: hybrid sharding.

use std::sync::Arc;

use terrashard_collectives::Communicator;

use crate::config::ZeroConfig;
use crate::error::Result;

/// The groups that a rank is part of.
///
/// Without hybrid sharding, shards live over all ranks. With [`ZeroConfig::shard_group`] `= g`, ranks `0..g`, `g..2g`
/// and so on each hold all shards between them, and ranks `i`, `g + i`, ... hold the same one.
#[derive(Clone, Debug)]
pub struct RankGroups {
    /// All ranks.
    pub world: Arc<dyn Communicator>,
    /// The ranks that hold a parameter's shards between them.
    pub shards: Arc<dyn Communicator>,
    /// The ranks that hold the same shards as this one; `None` where there is no other.
    pub replicas: Option<Arc<dyn Communicator>>,
}

impl RankGroups {
    /// Collective where there is more than one group.
    pub(crate) fn new(world: Arc<dyn Communicator>, config: &ZeroConfig) -> Result<Self> {
        let (rank, ranks) = (world.rank(), world.ranks());
        // Nothing is sharded at stage 0, so there is nothing to keep inside a group.
        let size = match config.shard_group {
            Some(size) if config.stage.shards_optimizer() => size,
            _ => ranks,
        };
        if size == ranks {
            return Ok(Self {
                shards: world.clone(),
                replicas: None,
                world,
            });
        }
        Ok(Self {
            shards: world.split(rank / size)?,
            replicas: Some(world.split(rank % size)?),
            world,
        })
    }

    /// Whether this rank speaks for those that hold the same shards.
    pub(crate) fn speaks(&self) -> bool {
        self.replicas
            .as_ref()
            .is_none_or(|replicas| replicas.rank() == 0)
    }
}
