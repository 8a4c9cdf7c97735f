//! What computes in a test.

use burn::tensor::Device;

/// A backend of burn's, on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// burn's own.
    Flex,
    /// LibTorch.
    #[cfg(feature = "tch")]
    Tch,
}

impl Backend {
    /// Its plain device.
    pub fn device(self) -> Device {
        match self {
            Self::Flex => Device::flex(),
            #[cfg(feature = "tch")]
            Self::Tch => {
                // Ranks are threads here: each computes by itself.
                terrashard_torch::tch::set_num_threads(1);
                terrashard_torch::cpu()
            }
        }
    }
}
