//! The update of every bucket, and what becomes of its parameters after it.
//!
//! States in host memory are updated on a thread of their own while the next bucket is read and the one before travels. On a
//! device that computes by itself there is nothing to wait for: updates are told to it one after another.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;

use burn::tensor::{Device, Tensor};
use terrashard_collectives::Pending;

use crate::config::Offload;
use crate::error::Result;
use crate::packing::unpack_whole;
use crate::parameters::dtype;
use crate::policy::Extent;
use crate::rule::Update;
use crate::sharded_parameters::Core;
use crate::update::{Arrival, BucketStates, Renewed};
use crate::values::{Held, Resident};
use crate::zero_optimizer::ZeroOptimizer;

/// Parameter gathers that may travel at once after an update.
const IN_FLIGHT: usize = 2;

/// Who knows what gradients are multiplied with, and whether there is a step at all.
pub(crate) enum Decided {
    /// The host: there is one, with this factor.
    Host(f64),
    /// The device, and the host does not yet.
    #[cfg(feature = "tch")]
    Device(Box<crate::gate::Gate>),
}

impl Decided {
    /// The factor, if it is the host that knows.
    fn factor(&self) -> f64 {
        match self {
            Self::Host(factor) => *factor,
            #[cfg(feature = "tch")]
            Self::Device(_) => 1.0,
        }
    }

    #[cfg(feature = "tch")]
    fn gate(&self) -> Option<crate::gate::Gate> {
        match self {
            Self::Host(_) => None,
            Self::Device(gate) => Some(gate.as_ref().clone()),
        }
    }
}

impl ZeroOptimizer {
    /// Updates every bucket.
    pub(crate) fn update(
        &mut self,
        gradients: Vec<Tensor<1>>,
        lr: f64,
        decided: &Decided,
    ) -> Result<()> {
        let core = self.parameters.0.clone();
        let config = &core.config;
        let step = self.progress.steps + 1;
        let states = std::mem::take(&mut self.states);
        let mut gathers = Gathers {
            optimizer: self,
            in_flight: VecDeque::new(),
        };
        let jobs = states.into_iter().zip(gradients).enumerate();
        let jobs = jobs.map(|(index, (states, gradient))| -> Result<Job> {
            let bucket = &core.table.buckets()[index];
            let group = config.group(bucket.group);
            Ok(Job {
                bucket: index,
                parameter: to_update(&core, index, &states),
                gradient: states.arrival(gradient)?,
                states,
                update: Update {
                    rule: config.optimizer,
                    lr: lr * group.lr_factor,
                    weight_decay: group.weight_decay,
                    step,
                    gradient_factor: decided.factor(),
                    ema: config.ema,
                    compute: config.precision.compute(),
                    #[cfg(feature = "tch")]
                    gate: decided.gate(),
                },
            })
        });
        let in_host_memory = core.device == Device::flex() || config.offload != Offload::None;
        if !config.overlap || core.table.buckets().len() < 2 || !in_host_memory {
            for job in jobs {
                gathers.finish(job?.run()?)?;
            }
            return gathers.settle(0);
        }
        thread::scope(|scope| {
            let (to_do, work) = mpsc::sync_channel::<Job>(1);
            let (done, results) = mpsc::channel();
            scope.spawn(move || {
                for job in work {
                    // Nobody listens after a failure.
                    if done.send(job.run()).is_err() {
                        return;
                    }
                }
            });
            for job in jobs {
                while let Ok(updated) = results.try_recv() {
                    gathers.finish(updated?)?;
                }
                if to_do.send(job?).is_err() {
                    break;
                }
            }
            drop(to_do);
            for updated in results {
                gathers.finish(updated?)?;
            }
            gathers.settle(0)
        })
    }

    /// Makes a bucket's buffer `[ranks * chunk]` the values of its parameters, all held whole. On LibTorch in their own memory,
    /// so that the buffer goes with its last use, and in the type of the computation, whatever the buffer's.
    fn store(&self, bucket: usize, buffer: Tensor<1>) -> Result<()> {
        let core = &self.parameters.0;
        let bucket = &core.table.buckets()[bucket];
        #[cfg(feature = "tch")]
        {
            let values = core.values();
            let rows = bucket.pieces.iter().map(|piece| values.whole(piece.row));
            if let Some(rows) = rows.collect::<Option<Vec<_>>>()
                && crate::libtorch::unpack_into(&core.table, bucket, &buffer, &rows)?
            {
                return Ok(());
            }
        }
        let flats = unpack_whole(&core.table, bucket, buffer);
        let mut values = core.values_mut();
        for (piece, flat) in bucket.pieces.iter().zip(flats) {
            values.rows[piece.row] = Held::Whole(flat);
        }
        Ok(())
    }
}

/// One bucket's update.
struct Job {
    bucket: usize,
    states: BucketStates,
    parameter: Option<Resident>,
    gradient: Arrival,
    update: Update,
}

/// A bucket after its update: its parameters in the stage's extent.
struct Updated {
    bucket: usize,
    states: BucketStates,
    parameter: Renewed,
}

impl Job {
    fn run(self) -> Result<Updated> {
        let Self {
            bucket,
            mut states,
            parameter,
            gradient,
            update,
        } = self;
        let parameter = states.update(&update, parameter, gradient)?;
        Ok(Updated {
            bucket,
            states,
            parameter,
        })
    }
}

/// The parameters that a bucket's update works on: its chunk is taken out of the values, whole parameters are packed.
/// None where the master weights are all separate.
fn to_update(core: &Core, index: usize, states: &BucketStates) -> Option<Resident> {
    let chunk = core.values_mut().chunks[index].take();
    if chunk.is_some() || states.has_all_masters() {
        return chunk;
    }
    Some(Resident::Device(core.bucket_parameter(index)))
}

/// Puts updated buckets back and gathers whole parameters.
struct Gathers<'a> {
    optimizer: &'a mut ZeroOptimizer,
    in_flight: VecDeque<(usize, Pending)>,
}

impl Gathers<'_> {
    fn finish(&mut self, updated: Updated) -> Result<()> {
        let core = self.optimizer.parameters.0.clone();
        let Updated {
            bucket,
            states,
            parameter,
        } = updated;
        // Buckets come back in order.
        self.optimizer.states.push(states);
        let parameter = parameter.resident(&core.device)?;
        let compute = dtype(core.config.precision.compute());
        if core.sharded_bucket(bucket) {
            let chunk = match parameter {
                Resident::Device(chunk) => Resident::Device(chunk.cast(compute)),
                in_host_memory => in_host_memory,
            };
            core.values_mut().chunks[bucket] = Some(chunk);
            return Ok(());
        }
        let parameter = parameter.into_tensor(&core.device);
        match core.policy.extent {
            Extent::Whole => self.optimizer.store(bucket, parameter)?,
            Extent::Shard => {
                // What travels is of the type of the computation.
                let pending = core.groups.shards.all_gather(parameter.cast(compute))?;
                self.in_flight.push_back((bucket, pending));
                self.settle(if core.config.overlap { IN_FLIGHT } else { 0 })?;
            }
        }
        Ok(())
    }

    fn settle(&mut self, limit: usize) -> Result<()> {
        while self.in_flight.len() > limit
            && let Some((bucket, pending)) = self.in_flight.pop_front()
        {
            self.optimizer.store(bucket, pending.wait()?)?;
        }
        Ok(())
    }
}
