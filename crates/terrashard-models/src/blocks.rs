//! The declared schedule of a model: its blocks in the order of a forward pass.

use crate::weights;
use burn::module::Module;

/// A unit of a model that is fetched, freed and perhaps run again as a whole; see [`Scope::block`](crate::Scope::block).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockInfo {
    /// The common beginning of its parameters' names; for the embedding of a stage, that of the convolution.
    pub name: String,
    /// The names of its parameters, in order of use.
    pub parameters: Vec<String>,
}

impl BlockInfo {
    /// A block that is one module of this path.
    pub(crate) fn new(path: String, module: &impl Module) -> Self {
        let block = Self {
            name: path.clone(),
            parameters: Vec::new(),
        };
        block.with(&path, module)
    }

    /// The block with the parameters of one more module.
    pub(crate) fn with(mut self, path: &str, module: &impl Module) -> Self {
        let names = weights::parameters(module).into_iter();
        self.parameters
            .extend(names.map(|(name, _)| format!("{path}.{name}")));
        self
    }
}
