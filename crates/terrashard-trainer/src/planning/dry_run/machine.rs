//! What computes: how wide values are, and the operations that every part of the model has.

use std::cell::RefCell;
use std::rc::Rc;

use super::ledger::{Blank, Kind, Ledger};
use super::reduction::Reduction;
use super::{Losses, Starts};
use crate::config::Device;

/// Bytes of a 32-bit float.
pub(super) const FLOAT: u64 = 4;

/// A device with the element type of the computation.
pub(super) struct Machine {
    pub(super) ledger: Ledger,
    pub(super) device: Device,
    /// Bytes of an element of the computation.
    pub(super) element: u64,
    pub(super) losses: Losses,
    pub(super) reduction: RefCell<Reduction>,
    pub(super) pieces: Rc<RefCell<Pool>>,
    pub(super) starts: Starts,
    /// What graphs hold from one step to the next.
    pub(super) in_graphs: RefCell<Vec<Blank>>,
}

/// Many small pieces of memory. The system's allocator keeps them for later when they are let go, until the step is over.
#[derive(Debug, Default)]
pub(super) struct Pool {
    used: u64,
    held: u64,
    blanks: Vec<Blank>,
}

/// Pieces in use.
pub(super) struct Pieces {
    bytes: u64,
    pool: Rc<RefCell<Pool>>,
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.pool.borrow_mut().used -= self.bytes;
    }
}

/// The most bytes of a branch's input for which a GPU runs the branch by graphs.
const MOST_IN_GRAPHS: u64 = 12 << 20;

impl Machine {
    pub(super) fn is_gpu(&self) -> bool {
        self.device == Device::Cuda
    }

    /// Holds what a branch gives out, where that is in graphs: `forward`, and the gradients of its input of so many elements and of its
    /// parameters.
    pub(super) fn hold_in_graphs<'a>(
        &self,
        input: u64,
        names: &[String],
        forward: impl IntoIterator<Item = &'a Blank>,
    ) {
        let by_graphs = self.is_gpu() && self.starts == Starts::InGraphs;
        if by_graphs && input * self.element <= MOST_IN_GRAPHS {
            let backward = self.tensor(input + self.elements(names));
            let mut held = self.in_graphs.borrow_mut();
            held.push(backward);
            held.extend(forward.into_iter().cloned());
        }
    }

    /// Whether losses need nothing beside their gradients.
    pub(super) fn computes_losses_in_one_pass(&self) -> bool {
        self.is_gpu() && self.losses == Losses::OnePass
    }

    /// burn's own backend, which computes 16 bits in 32 and keeps channels last.
    pub(super) fn is_flex(&self) -> bool {
        self.device == Device::Cpu
    }

    /// Whether what is computed in has more bytes than what is stored.
    pub(super) fn is_narrow(&self) -> bool {
        self.element < FLOAT
    }

    /// Bytes of an element inside an operation.
    pub(super) fn wide(&self) -> u64 {
        match self.is_flex() {
            true => self.element.max(FLOAT),
            false => self.element,
        }
    }

    pub(super) fn bytes(&self, bytes: u64) -> Blank {
        self.ledger.hold(Kind::Workspace, bytes)
    }

    /// So many elements of the type inside an operation, in many small pieces.
    pub(super) fn pieces(&self, elements: u64) -> Pieces {
        let bytes = elements * self.wide();
        let mut pool = self.pieces.borrow_mut();
        pool.used += bytes;
        let more = pool.used.saturating_sub(pool.held);
        if more > 0 {
            pool.held += more;
            let blank = self.bytes(more);
            pool.blanks.push(blank);
        }
        let pool = self.pieces.clone();
        Pieces { bytes, pool }
    }

    /// A tensor of the type of the computation.
    pub(super) fn tensor(&self, elements: u64) -> Blank {
        self.bytes(elements * self.element)
    }

    /// A tensor of the type inside an operation.
    pub(super) fn inner(&self, elements: u64) -> Blank {
        self.bytes(elements * self.wide())
    }

    /// A tensor of 32 bits.
    pub(super) fn floats(&self, elements: u64) -> Blank {
        self.bytes(elements * FLOAT)
    }

    /// The tensor in the type inside an operation: itself where that is its own.
    pub(super) fn widened(&self, tensor: &Blank) -> Blank {
        match self.wide() == self.element {
            true => tensor.clone(),
            false => self.bytes(tensor.bytes() / self.element * self.wide()),
        }
    }

    /// An operation's result in the type of the computation.
    pub(super) fn rounded(&self, tensor: Blank) -> Blank {
        match self.wide() == self.element {
            true => tensor,
            false => self.bytes(tensor.bytes() / self.wide() * self.element),
        }
    }

    /// The parameters under these names in the type inside an operation: a copy where that is another one.
    pub(super) fn parameters(&self, names: &[String]) -> Option<Blank> {
        (self.wide() != self.element).then(|| self.inner(self.elements(names)))
    }

    /// Elements of the parameters under these names.
    pub(super) fn elements(&self, names: &[String]) -> u64 {
        self.reduction.borrow().elements(names)
    }

    /// Makes the gradients of the parameters under these names and hands them over.
    pub(super) fn deliver(&self, names: &[String]) {
        let mut reduction = self.reduction.borrow_mut();
        reduction.deliver(names, |elements| self.tensor(elements));
    }

    /// A layer normalisation of `rows` rows: the result, and mean and deviation where the device keeps them.
    pub(super) fn norm(&self, elements: u64, rows: u64) -> Norm {
        if self.is_flex() {
            return Norm {
                y: self.inner(elements),
                _moments: None,
            };
        }
        if self.is_gpu() || !self.is_narrow() {
            return Norm {
                y: self.tensor(elements),
                _moments: Some(self.floats(2 * rows)),
            };
        }
        // On the processor 16 bits go through 32.
        let _x = self.floats(elements);
        let _wide = self.floats(elements);
        Norm {
            y: self.tensor(elements),
            _moments: Some(self.floats(2 * rows)),
        }
    }

    /// The gradient of a layer normalisation's input.
    pub(super) fn norm_backward(&self, elements: u64) -> Blank {
        if self.is_flex() {
            return self.inner(elements);
        }
        if !self.is_gpu() && self.is_narrow() {
            let _gradient = self.floats(elements);
            let _x = self.floats(elements);
            let _wide = self.floats(elements);
            return self.tensor(elements);
        }
        self.tensor(elements)
    }
}

/// See [`Machine::norm`].
pub(super) struct Norm {
    pub(super) y: Blank,
    _moments: Option<Blank>,
}
