//! Where tensors are: the processor or GPUs, and what computes there.

use burn::tensor;
use serde::Serialize;

use crate::error::{Error, Result};

/// How LibTorch computes, in the whole process. Burn's own backend computes in one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arithmetic {
    /// Whether GPUs round the factors of 32-bit matrix products to 10 bits.
    pub tf32: bool,
    /// Whether only algorithms are taken that give the same bits each time.
    pub deterministic: bool,
    /// Whether a GPU runs small blocks by graphs of their kernels.
    pub graphs: bool,
}

impl Default for Arithmetic {
    fn default() -> Self {
        Self {
            tf32: false,
            deterministic: false,
            graphs: true,
        }
    }
}

/// Where tensors are, and what computes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The processor, by burn's own backend.
    #[default]
    Cpu,
    /// The processor, by LibTorch.
    #[serde(rename = "cpu-libtorch")]
    CpuLibTorch,
    /// NVIDIA GPUs, by LibTorch: one for each rank.
    Cuda,
}

impl Device {
    /// Whether this build and this machine have it.
    ///
    /// # Errors
    /// [`Error::NotInBuild`], [`Error::NoGpu`].
    pub fn check(self) -> Result<()> {
        match self {
            Self::Cpu => Ok(()),
            Self::CpuLibTorch => libtorch::check("--backend tch"),
            Self::Cuda => {
                libtorch::check("--device cuda")?;
                match self.gpus() {
                    0 => Err(Error::NoGpu),
                    _ => Ok(()),
                }
            }
        }
    }

    /// GPUs that this process sees; none where it computes on the processor.
    pub fn gpus(self) -> usize {
        match self {
            Self::Cpu | Self::CpuLibTorch => 0,
            Self::Cuda => libtorch::gpus(),
        }
    }

    /// Lets each rank take no more than so many bytes of its GPU's memory. Comes before anything is computed.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] on the processor, whose memory nobody limits; [`Error::DeviceLimit`].
    pub fn limit_memory(self, bytes: Option<u64>) -> Result<()> {
        let Some(bytes) = bytes else { return Ok(()) };
        match self {
            Self::Cuda => libtorch::limit_memory(bytes),
            Self::Cpu | Self::CpuLibTorch => Err(Error::invalid(
                "zero.device_memory",
                format!("{bytes} bytes on the processor"),
                "nothing there: it limits the memory of GPUs, with `--device cuda`; `terrashard plan` takes it on any machine",
            )),
        }
    }

    /// The most that tensors have held on a GPU; none on the processor.
    pub(crate) fn peak_bytes(self, gpu: usize) -> Option<u64> {
        match self {
            Self::Cuda => libtorch::peak_bytes(gpu),
            Self::Cpu | Self::CpuLibTorch => None,
        }
    }

    /// Where a rank of this host computes, of `ranks` that share its processor. All ranks of a process have the same
    /// arithmetic.
    ///
    /// # Errors
    /// [`Error::NotInBuild`], [`Error::NoGpu`], [`Error::LibTorch`].
    pub fn of_rank(
        self,
        local_rank: usize,
        ranks: usize,
        arithmetic: Arithmetic,
    ) -> Result<tensor::Device> {
        self.check()?;
        if self != Self::Cpu {
            libtorch::set(arithmetic)?;
        }
        Ok(match self {
            Self::Cpu => tensor::Device::flex(),
            Self::CpuLibTorch => libtorch::cpu(ranks),
            Self::Cuda if local_rank < self.gpus() => libtorch::gpu(local_rank),
            Self::Cuda => {
                return Err(Error::invalid(
                    "--ranks",
                    format!("rank {local_rank} of this host"),
                    format!("at most {}, one for each gpu", self.gpus()),
                ));
            }
        })
    }

    /// Where `ranks` ranks of this process compute that need nothing of each other: each GPU of those that are there, or the
    /// processor. Ranks take them in turn.
    ///
    /// # Errors
    /// As [`Device::of_rank`].
    pub fn of_ranks(self, ranks: usize) -> Result<Vec<tensor::Device>> {
        let devices = self.gpus().clamp(1, ranks.max(1));
        let device = |rank| self.of_rank(rank, ranks, Arithmetic::default());
        (0..devices).map(device).collect()
    }
}

#[cfg(feature = "tch")]
impl Device {
    /// LibTorch's own name of where a rank of this host computes, if LibTorch computes there.
    pub(crate) fn libtorch(self, local_rank: usize) -> Option<terrashard_torch::tch::Device> {
        match self {
            Self::Cpu => None,
            Self::CpuLibTorch => Some(terrashard_torch::tch::Device::Cpu),
            Self::Cuda => Some(terrashard_torch::tch::Device::Cuda(local_rank)),
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use super::*;

    pub(super) fn check(_: &str) -> Result<()> {
        Ok(())
    }

    pub(super) fn set(arithmetic: Arithmetic) -> Result<()> {
        terrashard_torch::set_tf32(arithmetic.tf32)
            .and_then(|()| terrashard_torch::set_deterministic(arithmetic.deterministic))
            .and_then(|()| terrashard_torch::Graphs::set(arithmetic.graphs))
            .map_err(|error| Error::LibTorch(error.to_string()))
    }

    pub(super) fn gpus() -> usize {
        // Where LibTorch's part for GPUs cannot be had, none can be used.
        if terrashard_torch::load_cuda().is_err() {
            return 0;
        }
        usize::try_from(terrashard_torch::tch::Cuda::device_count()).unwrap_or(0)
    }

    pub(super) fn cpu(ranks: usize) -> tensor::Device {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / ranks.max(1)).max(1);
        terrashard_torch::tch::set_num_threads(i32::try_from(threads).unwrap_or(1));
        terrashard_torch::cpu()
    }

    pub(super) fn gpu(index: usize) -> tensor::Device {
        terrashard_torch::gpu(index)
    }

    pub(super) fn limit_memory(bytes: u64) -> Result<()> {
        let limit = |error: String| Error::DeviceLimit {
            bytes,
            reason: error,
        };
        let visible = gpus();
        terrashard_torch::limit_memory(own_gpu(visible)?, bytes)
            .map_err(|error| limit(error.to_string()))
    }

    /// The GPU of this process among those that it may use.
    #[cfg(feature = "nccl")]
    fn own_gpu(visible: usize) -> Result<usize> {
        use terrashard_collectives::bootstrap::Launched;

        let launched = Launched::from_environment()?.unwrap_or_else(Launched::alone);
        Ok(terrashard_collectives::nccl::gpu_of(&launched, visible)?)
    }

    #[cfg(not(feature = "nccl"))]
    fn own_gpu(_: usize) -> Result<usize> {
        Ok(0)
    }

    pub(super) fn peak_bytes(gpu: usize) -> Option<u64> {
        let memory = terrashard_torch::Memory::of(gpu).ok()?;
        Some(memory.allocated_peak)
    }
}

/// What a build without LibTorch says of it.
#[cfg(not(feature = "tch"))]
mod libtorch {
    use super::*;

    pub(super) fn check(flag: &str) -> Result<()> {
        Err(Error::NotInBuild { flag: flag.into() })
    }

    pub(super) fn set(_: Arithmetic) -> Result<()> {
        Ok(())
    }

    pub(super) fn gpus() -> usize {
        0
    }

    pub(super) fn cpu(_: usize) -> tensor::Device {
        tensor::Device::flex()
    }

    pub(super) fn gpu(_: usize) -> tensor::Device {
        tensor::Device::flex()
    }

    pub(super) fn limit_memory(_: u64) -> Result<()> {
        check("--device cuda")
    }

    pub(super) fn peak_bytes(_: usize) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_always_there() {
        Device::Cpu.check().expect("no feature is needed");
        assert_eq!(Device::Cpu.gpus(), 0);
        let device = Device::Cpu
            .of_rank(3, 4, Arithmetic::default())
            .expect("threads share it");
        assert_eq!(device, tensor::Device::flex());
    }

    #[test]
    fn the_processors_memory_is_not_limited() {
        Device::Cpu
            .limit_memory(None)
            .expect("nothing is asked for");
        let message = Device::Cpu
            .limit_memory(Some(1 << 30))
            .unwrap_err()
            .to_string();
        assert!(message.contains("zero.device_memory"), "{message}");
        assert_eq!(Device::Cpu.peak_bytes(0), None);
    }

    #[cfg(not(feature = "tch"))]
    #[test]
    fn a_build_without_libtorch_says_which_is_needed() {
        for (device, flag) in [
            (Device::CpuLibTorch, "--backend tch"),
            (Device::Cuda, "--device cuda"),
        ] {
            let message = device.check().expect_err("it is not there").to_string();
            assert!(message.contains(flag), "{message}");
            assert!(message.contains("terrashard-trainer/nccl"), "{message}");
        }
    }
}
