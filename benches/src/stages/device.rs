//! What a rank computes on: LibTorch on the processor, or a GPU of its own.

#[cfg(not(feature = "tch"))]
pub(super) use without::*;

#[cfg(feature = "tch")]
pub(super) use libtorch::*;

#[cfg(not(feature = "nccl"))]
use super::job::{Device, Error};

/// What a build lacks for a device.
#[cfg(not(feature = "nccl"))]
fn missing(device: Device) -> Error {
    let feature = match device {
        Device::Flex | Device::Tch => "terrashard-benches/tch",
        Device::Cuda => "terrashard-benches/nccl",
    };
    Error::Device { device, feature }
}

/// What a build without LibTorch has of it.
#[cfg(not(feature = "tch"))]
mod without {
    use std::time::Instant;

    use burn::tensor;

    use super::super::job::{Device, Error, Job};
    use super::super::{GraphUse, Measured, Part};
    use super::missing;

    pub(crate) fn libtorch(job: &Job) -> Result<tensor::Device, Error> {
        Err(missing(job.device))
    }

    pub(crate) fn gpus(job: &Job, _: Instant) -> Result<Option<Measured>, String> {
        libtorch(job)
            .map(|_| None)
            .map_err(|error| error.to_string())
    }

    pub(crate) fn prepare(_: &Job) -> Result<(), String> {
        Ok(())
    }

    pub(crate) fn forget_set_up(_: Option<usize>) {}

    pub(crate) fn peaks(_: Option<usize>) -> [Option<f64>; 2] {
        [None; 2]
    }

    pub(crate) fn graphs(_: Option<usize>) -> Option<GraphUse> {
        None
    }

    pub(crate) fn profiled(
        _: Option<usize>,
        _: impl FnOnce() -> Result<(), String>,
    ) -> Result<Vec<Part>, String> {
        Err(missing(Device::Tch).to_string())
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use std::sync::Arc;
    use std::time::Instant;

    use burn::tensor;
    use terrashard_collectives::local;
    use terrashard_torch::{Graphs, Memory, Profile, tch};

    use super::super::job::{Error, Job, Precision};
    use super::super::rank::measure;
    use super::super::{GraphUse, Measured, Part};

    pub(crate) fn libtorch(job: &Job) -> Result<tensor::Device, Error> {
        tch::set_num_threads(job.threads() as i32);
        Ok(terrashard_torch::cpu())
    }

    /// This process's GPU, by its number among the processes of this host.
    pub(crate) fn gpus(job: &Job, began: Instant) -> Result<Option<Measured>, String> {
        terrashard_torch::load_cuda().map_err(|error| error.to_string())?;
        if tch::Cuda::device_count() == 0 {
            return Err("no gpu was found".into());
        }
        if job.ranks > 1 {
            return several(job, began);
        }
        limit(job, 0)?;
        let measured = local::run(1, |communicator| {
            let device = terrashard_torch::gpu(0);
            measure(job, began, Arc::new(communicator), device, Some(0))
        });
        let mut measured = measured.map_err(|error| error.to_string())?;
        Ok(measured.pop())
    }

    /// What the job may take of this process's GPU.
    fn limit(job: &Job, gpu: usize) -> Result<(), String> {
        match job.memory {
            Some(bytes) => {
                terrashard_torch::limit_memory(gpu, bytes).map_err(|error| error.to_string())
            }
            None => Ok(()),
        }
    }

    #[cfg(not(feature = "nccl"))]
    fn several(job: &Job, _: Instant) -> Result<Option<Measured>, String> {
        Err(super::missing(job.device).to_string())
    }

    /// This process is one of several, by its environment.
    #[cfg(feature = "nccl")]
    fn several(job: &Job, began: Instant) -> Result<Option<Measured>, String> {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        use terrashard_collectives::Communicator;
        use terrashard_collectives::bootstrap::Launched;
        use terrashard_collectives::nccl::{self, NcclWorld, Options};

        use super::super::processes::RESULT;

        let failed = |error: terrashard_collectives::Error| error.to_string();
        let launched = Launched::from_environment().map_err(failed)?;
        let launched = launched.unwrap_or_else(Launched::alone);
        let options = Options::from_environment().map_err(failed)?;
        let visible = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
        limit(job, nccl::gpu_of(&launched, visible).map_err(failed)?)?;
        let world = NcclWorld::join(&launched, options).map_err(failed)?;
        let own = || {
            let communicator = Arc::new(world.communicator());
            measure(job, began, communicator, world.device(), Some(world.gpu()))
        };
        // Memory that is used up is a panic, as everything is that burn cannot do.
        let measured = catch_unwind(AssertUnwindSafe(own)).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let literal = payload.downcast_ref::<&str>().map(ToString::to_string);
            Err(text.or(literal).unwrap_or_else(|| "a panic".into()))
        });
        match measured {
            Ok(measured) => Ok((launched.rank == 0).then_some(measured)),
            Err(error) => {
                // The others wait for this rank. What it has to say comes before it ends with them.
                println!("{RESULT}{}", serde_json::json!({ "error": error }));
                world.communicator().abort(&error);
                Err(error)
            }
        }
    }

    pub(crate) fn prepare(job: &Job) -> Result<(), String> {
        let set = terrashard_torch::set_tf32(job.precision != Precision::Fp32);
        let set = set.and_then(|()| Graphs::set(job.graphs));
        set.map_err(|error| error.to_string())
    }

    /// Graphs of kernels that were made, their runs, and GiB that they hold.
    pub(crate) fn graphs(gpu: Option<usize>) -> Option<GraphUse> {
        gpu?;
        let Graphs { made, runs, held } = Graphs::counts().ok()?;
        let held_gib = held as f64 / f64::from(1 << 30);
        (made > 0).then_some(GraphUse {
            made,
            runs,
            held_gib,
        })
    }

    /// Memory of the set-up counts no more.
    pub(crate) fn forget_set_up(gpu: Option<usize>) {
        if let Some(gpu) = gpu {
            // Peaks that cannot be reset cannot be read either, which is told then.
            let _ = terrashard_torch::empty_cache();
            let _ = Memory::reset_peak(gpu);
        }
    }

    /// GiB that tensors held at most, and that were taken at most.
    pub(crate) fn peaks(gpu: Option<usize>) -> [Option<f64>; 2] {
        let memory = gpu.and_then(|gpu| Memory::of(gpu).ok());
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let of = |bytes: fn(&Memory) -> u64| memory.as_ref().map(|memory| gib(bytes(memory)));
        [
            of(|memory| memory.allocated_peak),
            of(|memory| memory.reserved_peak),
        ]
    }
    /// What `step` consists of, which waits for the device at its end.
    pub(crate) fn profiled(
        gpu: Option<usize>,
        step: impl FnOnce() -> Result<(), String>,
    ) -> Result<Vec<Part>, String> {
        let failed = |error: terrashard_torch::Error| error.to_string();
        let profile = Profile::start(gpu.is_some()).map_err(failed)?;
        step()?;
        let rows = profile.finish().map_err(failed)?.into_iter();
        let part = |row: terrashard_torch::ProfileRow| Part {
            name: row.name,
            on_device: row.on_device,
            calls: row.calls,
            ms: row.seconds * 1e3,
        };
        Ok(rows.map(part).collect())
    }
}
