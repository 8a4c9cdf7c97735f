//! Tensors of which only the size is known, and the count of what they take together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What memory is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Parameter values between their uses.
    Parameters,
    /// Master weights, moments and averages.
    Optimizer,
    /// Gradients that a rank holds until the update.
    Gradients,
    /// Gradients and parameters on their way between ranks.
    Buckets,
    /// Parameters that are gathered for a use.
    Gathered,
    /// Images and what they are compared with.
    Batch,
    /// What lives from forward to backward.
    Activations,
    /// What an operation needs while it runs.
    Workspace,
    /// In host memory, where that is another than the device's: no part of the total.
    Host,
}

const KINDS: usize = 9;

/// Bytes by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts([u64; KINDS]);

impl Counts {
    pub(super) fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum::<u64>() - self.of(Kind::Host)
    }
}

#[derive(Debug, Default)]
struct Book {
    now: Counts,
    /// What there was when there was most.
    peak: Counts,
    /// The most of each kind.
    most: Counts,
}

/// Counts what is held.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger(Rc<RefCell<Book>>);

impl Ledger {
    /// Takes memory until the last clone of the tensor is dropped.
    pub(super) fn hold(&self, kind: Kind, bytes: u64) -> Blank {
        self.change(|now| now.0[kind as usize] += bytes);
        Blank(Rc::new(Held {
            ledger: self.clone(),
            kind: Cell::new(kind),
            bytes,
        }))
    }

    /// What there was when there was most.
    pub(super) fn peak(&self) -> Counts {
        self.0.borrow().peak
    }

    /// The most of this kind.
    pub(super) fn most(&self, kind: Kind) -> u64 {
        self.0.borrow().most.of(kind)
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut book = self.0.borrow_mut();
        change(&mut book.now);
        let now = book.now;
        if now.total() > book.peak.total() {
            book.peak = now;
        }
        for (most, now) in book.most.0.iter_mut().zip(now.0) {
            *most = now.max(*most);
        }
    }
}

/// A tensor of which only the size is known; clones share its memory.
#[derive(Debug, Clone)]
pub(super) struct Blank(Rc<Held>);

#[derive(Debug)]
struct Held {
    ledger: Ledger,
    kind: Cell<Kind>,
    bytes: u64,
}

impl Blank {
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The same memory, held for something else from here on.
    pub(super) fn becomes(self, kind: Kind) -> Self {
        let Held {
            ledger,
            kind: held,
            bytes,
        } = self.0.as_ref();
        let from = held.replace(kind);
        ledger.change(|now| {
            now.0[from as usize] -= bytes;
            now.0[kind as usize] += bytes;
        });
        self
    }

    /// A clone for backward. What is somebody's already, such as a batch, stays that.
    pub(super) fn kept(&self) -> Self {
        match self.0.kind.get() {
            Kind::Workspace => self.clone().becomes(Kind::Activations),
            _ => self.clone(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let kind = self.kind.get();
        self.ledger.change(|now| now.0[kind as usize] -= self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_held_as_long_as_the_last_clone() {
        let ledger = Ledger::default();
        let a = ledger.hold(Kind::Workspace, 5);
        let kept = a.kept();
        drop(a);
        let b = ledger.hold(Kind::Workspace, 2);
        let peak = ledger.peak();
        assert_eq!((peak.of(Kind::Activations), peak.total()), (5, 7));
        drop(kept);
        drop(b);
        let _small = ledger.hold(Kind::Batch, 6).kept();
        assert_eq!(ledger.peak().total(), 7);
        assert_eq!(ledger.most(Kind::Batch), 6);
        // A batch that backward needs is still the batch.
        assert_eq!(ledger.most(Kind::Activations), 5);
    }
}
