//! `export` and `import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use terrashard_checkpoint::ElementType;
use terrashard_models::Origin;

/// `terrashard export`.
#[derive(Debug, Args)]
pub struct ExportArguments {
    /// Run directory or checkpoint
    pub checkpoint: PathBuf,
    /// Output file
    #[arg(short, long, value_name = "OUT", default_value = "model.safetensors")]
    pub output: PathBuf,
    /// Element type of the parameters [default: that of the checkpoint, fp32]
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeFlag>,
    /// Write the moving averages of the parameters, of a run with `train.ema`
    #[arg(long)]
    pub ema: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `--dtype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeFlag {
    /// Single precision.
    Fp32,
    /// 16 bits, with the range of single precision.
    Bf16,
    /// 16 bits, finer, with values below 65520.
    Fp16,
}

impl From<DtypeFlag> for ElementType {
    fn from(flag: DtypeFlag) -> Self {
        match flag {
            DtypeFlag::Fp32 => Self::F32,
            DtypeFlag::Bf16 => Self::Bf16,
            DtypeFlag::Fp16 => Self::F16,
        }
    }
}

/// `terrashard import`.
#[derive(Debug, Args)]
pub struct ImportArguments {
    /// Checkpoint; for `hf` its file with config.json beside it, or their folder
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    /// Whose checkpoint it is: of transformers, of NVlabs (MiT, SegFormer), of mmsegmentation or s2s2net, or safetensors with this
    /// program's names
    #[arg(long, value_enum)]
    pub from: OriginFlag,
    /// Output file
    #[arg(short, long, value_name = "OUT", default_value = "model.safetensors")]
    pub output: PathBuf,
    /// Bands of the model; each gets the mean of the source's kernels, times the source's bands by N [default: the source's]
    #[arg(long, value_name = "N")]
    pub bands: Option<usize>,
    /// Import what there is where the encoder is not whole
    #[arg(long)]
    pub allow_partial: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `--from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OriginFlag {
    /// Hugging Face's transformers.
    Hf,
    /// NVlabs' MiT and SegFormer.
    Nvlabs,
    /// mmsegmentation, or s2s2net.
    Mmseg,
    /// Safetensors with this program's names.
    Safetensors,
}

impl From<OriginFlag> for Origin {
    fn from(flag: OriginFlag) -> Self {
        match flag {
            OriginFlag::Hf => Self::HuggingFace,
            OriginFlag::Nvlabs => Self::Nvlabs,
            OriginFlag::Mmseg => Self::Mmseg,
            OriginFlag::Safetensors => Self::Safetensors,
        }
    }
}
