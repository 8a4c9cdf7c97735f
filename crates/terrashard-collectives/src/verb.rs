//! What a rank can ask of its group.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{FloatDType, Tensor, TensorData};

use crate::element::element_type;
use crate::{Error, Result};

/// One of the collective operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Every rank gets the sum.
    AllReduce,
    /// Every rank gets its part of the sum.
    ReduceScatter,
    /// Every rank gets everybody's input.
    AllGather,
    /// Every rank gets the input of the root.
    Broadcast {
        /// The rank whose input is taken.
        root: usize,
    },
    /// Every rank waits for every other.
    Barrier,
    /// The group is split by color.
    Split,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce => write!(f, "all-reduce"),
            Self::ReduceScatter => write!(f, "reduce-scatter"),
            Self::AllGather => write!(f, "all-gather"),
            Self::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Self::Barrier => write!(f, "barrier"),
            Self::Split => write!(f, "split"),
        }
    }
}

/// A call as all ranks have to make it alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub verb: Verb,
    /// Elements of the input.
    pub len: usize,
    /// The element type of the input.
    pub dtype: FloatDType,
}

impl Call {
    /// The call of `verb` with `input` in a group of `ranks`.
    pub(crate) fn new(verb: Verb, input: &Tensor<1>, ranks: usize) -> Result<Self> {
        let call = Self {
            verb,
            len: input.dims()[0],
            dtype: element_type(input.dtype())?,
        };
        call.check(ranks)
    }

    /// This call, if a group of `ranks` can make it.
    pub(crate) fn check(self, ranks: usize) -> Result<Self> {
        let len = self.len;
        match self.verb {
            Verb::ReduceScatter if !len.is_multiple_of(ranks) => {
                Err(Error::Indivisible { len, ranks })
            }
            Verb::Broadcast { root } if root >= ranks => Err(Error::RootOutOfRange { root, ranks }),
            _ => Ok(self),
        }
    }

    /// What `rank` puts in of `input`: nothing where another rank is the root of a broadcast.
    ///
    /// # Errors
    ///
    /// [`Error::Read`].
    pub(crate) fn read(&self, input: Tensor<1>, rank: usize) -> Result<TensorData> {
        match self.verb {
            Verb::Broadcast { root } if root != rank => Ok(TensorData::new(Vec::<f32>::new(), [0])),
            _ => input.try_into_data().map_err(|source| Error::Read {
                source: Arc::new(source),
            }),
        }
    }

    /// A call of a verb that carries no tensor.
    pub(crate) fn without_elements(verb: Verb) -> Self {
        Self {
            verb,
            len: 0,
            dtype: FloatDType::F32,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verb {
            Verb::Barrier | Verb::Split => write!(f, "{}", self.verb),
            verb => write!(
                f,
                "{verb} of {} {}",
                self.len,
                format!("{:?}", self.dtype).to_lowercase()
            ),
        }
    }
}
