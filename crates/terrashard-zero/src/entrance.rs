//! How the parameters of one use of a module enter the graph.

use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor};

use crate::anchor::{self, Between, Port, Slot};
use crate::error::Error;
use crate::gather::Lease;
use crate::parameters::{Replace, replaced};
use crate::sharded_parameters::{Core, beside};

/// Whether entering a parameter announces a gradient.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It does.
    Counted,
    /// It was announced when the block first ran.
    Repeated,
}

/// When a parameter enters the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entering {
    /// With its module.
    AtOnce,
    /// When its tensor is asked for: an operation that takes it from its slot never asks.
    Asked,
}

/// One use of a module whose parameters enter the graph.
#[derive(Clone)]
pub(crate) struct Entrance {
    pub(crate) core: Arc<Core>,
    pub(crate) mark: Tensor<1>,
    pub(crate) token: Tensor<1>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) entry: Entry,
    /// Whether some of the module is trained, so that the graph goes through it.
    pub(crate) trained: bool,
}

impl Entrance {
    /// `module` with its parameters on their way into the graph.
    pub(crate) fn module<M: Module>(&self, module: &M, entering: Entering) -> M {
        let entrance = self;
        replaced(module, &mut Enter { entrance, entering })
    }

    /// The parameter in `row` as a tensor of the graph.
    fn tensor<const D: usize>(&self, row: usize) -> Tensor<D> {
        let core = &self.core;
        let trainable = core.table.rows()[row].parameter.trainable;
        let between = match self.entry {
            Entry::Counted if self.lease.contains(row) => Between::MadeAgain,
            _ => Between::Kept,
        };
        if !trainable && between == Between::Kept {
            let value = core.shaped(row, &self.lease);
            return beside(Tensor::from_dispatch(value), &self.token);
        }
        if trainable && self.entry == Entry::Counted {
            core.reducer().entered(row);
        }
        // burn makes a value again only where it is part of the graph. A frozen one is, at the price of a gradient that
        // nobody needs, wherever gradients pass it; else it would stay gathered.
        let token = match trainable || self.trained {
            true => self.token.clone(),
            false => beside(self.token.clone().inner(), &self.token),
        };
        self.lease.owe();
        let port: Arc<dyn Port> = core.clone();
        let slot = Slot {
            port,
            index: row,
            lease: self.lease.clone(),
            between,
        };
        anchor::enter(&self.mark, &token, slot)
    }
}

struct Enter<'a> {
    entrance: &'a Entrance,
    entering: Entering,
}
impl Replace for Enter<'_> {
    fn parameter<const D: usize>(
        &mut self,
        id: ParamId,
        shape: &[usize],
    ) -> Option<Param<Tensor<D>>> {
        let entrance = self.entrance;
        let Some(row) = entrance.core.row(id) else {
            entrance.core.reducer().fail(Error::ForeignParameter {
                shape: shape.to_vec(),
            });
            return None;
        };
        Some(match self.entering {
            Entering::AtOnce => Param::initialized(id, entrance.tensor(row)),
            Entering::Asked => {
                let (entrance, device) = (entrance.clone(), entrance.token.device());
                let enter = move |_: &Device, _| entrance.tensor(row);
                Param::uninitialized(id, enter, device, true, shape.to_vec().into())
            }
        })
    }
}
