//! The graph of a forward pass, as burn's autodiff keeps and walks it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::ledger::{Blank, Kind};
use super::machine::Machine;
use crate::config::{Device, Recompute};

/// Where a value stands in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    id: usize,
    depth: usize,
}

/// A value, in the graph or beside it.
#[derive(Debug, Clone)]
pub(super) struct Var {
    pub(super) value: Blank,
    place: Option<Place>,
}

impl Var {
    /// A value that no gradient is wanted of.
    pub(super) fn plain(value: Blank) -> Self {
        Self { value, place: None }
    }

    pub(super) fn is_tracked(&self) -> bool {
        self.place.is_some()
    }
}

type Backward = Box<dyn FnOnce(Blank) -> Vec<Option<Blank>>>;

struct Step {
    output: Place,
    parents: Vec<Option<Place>>,
    backward: Backward,
}

/// A graph, or the way to run without one.
pub(super) struct Tape {
    pub(super) machine: Rc<Machine>,
    steps: RefCell<Vec<Step>>,
    next: Cell<usize>,
    records: bool,
}

impl Tape {
    /// A graph.
    pub(super) fn new(machine: Rc<Machine>) -> Self {
        Self {
            machine,
            steps: RefCell::default(),
            next: Cell::new(0),
            records: true,
        }
    }

    /// No graph: nothing is kept.
    fn without(machine: Rc<Machine>) -> Self {
        Self {
            records: false,
            ..Self::new(machine)
        }
    }

    fn place(&self, depth: usize) -> Place {
        let id = self.next.get();
        self.next.set(id + 1);
        Place { id, depth }
    }

    /// A value that a gradient is wanted of.
    fn leaf(&self, value: Blank) -> Var {
        let place = Some(self.place(0));
        Var { value, place }
    }

    /// The result of an operation. `backward` holds what the operation keeps, and makes the gradients of the parents of that of the
    /// result.
    pub(super) fn record(
        &self,
        parents: &[&Var],
        value: Blank,
        backward: impl FnOnce(Blank) -> Vec<Option<Blank>> + 'static,
    ) -> Var {
        if !self.records {
            return Var::plain(value);
        }
        let places: Vec<_> = parents.iter().map(|parent| parent.place).collect();
        let depth = places.iter().flatten().map(|place| place.depth).max();
        let output = self.place(depth.map_or(0, |depth| depth + 1));
        self.steps.borrow_mut().push(Step {
            output,
            parents: places,
            backward: Box::new(backward),
        });
        let place = Some(output);
        Var { value, place }
    }

    /// Walks back from some values with their gradients, the deepest steps first. The gradients of leaves are left.
    pub(super) fn backward(self, roots: Vec<(Var, Blank)>) -> HashMap<usize, Blank> {
        let mut gradients = HashMap::new();
        for (root, gradient) in roots {
            if let Some(place) = root.place {
                gradients.insert(place.id, gradient);
            }
        }
        let mut steps = self.steps.into_inner();
        steps.sort_by_key(|step| step.output.depth);
        while let Some(step) = steps.pop() {
            let Some(gradient) = gradients.remove(&step.output.id) else {
                continue;
            };
            let results = (step.backward)(gradient);
            for (parent, result) in step.parents.iter().zip(results) {
                if let (Some(parent), Some(result)) = (parent, result) {
                    // What comes second is added in place.
                    gradients.entry(parent.id).or_insert(result);
                }
            }
        }
        gradients
    }
}

/// A block of the model: run and kept, or run again in backward.
pub(super) fn block(
    tape: &Tape,
    recompute: Recompute,
    inputs: Vec<Var>,
    run: impl Fn(&Tape, &[Var]) -> Var + 'static,
) -> Var {
    if recompute == Recompute::Keep || !tape.records {
        return run(tape, &inputs);
    }
    let machine = tape.machine.clone();
    let plain: Vec<_> = inputs
        .iter()
        .map(|input| Var::plain(input.value.clone()))
        .collect();
    let output = run(&Tape::without(machine.clone()), &plain).value;
    drop(plain);
    let kept: Vec<Kept> = inputs
        .iter()
        .map(|input| Kept::of(&machine, recompute, &input.value))
        .collect();
    let tracked: Vec<bool> = inputs.iter().map(Var::is_tracked).collect();
    let parents: Vec<&Var> = inputs.iter().collect();
    tape.record(&parents, output, move |gradient| {
        let inner = Tape::new(machine.clone());
        let value = |kept: Kept| kept.value(&machine);
        let inputs = kept.into_iter().map(value).zip(&tracked);
        let inputs: Vec<Var> = inputs
            .map(|(value, tracked)| match tracked {
                true => inner.leaf(value),
                false => Var::plain(value),
            })
            .collect();
        let output = run(&inner, &inputs);
        let places: Vec<_> = inputs.iter().map(|input| input.place).collect();
        drop(inputs);
        let mut gradients = inner.backward(vec![(output, gradient)]);
        let gradient = |place: Option<Place>| gradients.remove(&place?.id);
        places.into_iter().map(gradient).collect()
    })
}

/// A block's input between forward and backward.
enum Kept {
    Device(Blank),
    /// In host memory.
    Host(Blank),
}

impl Kept {
    fn of(machine: &Machine, recompute: Recompute, value: &Blank) -> Self {
        match (recompute, machine.device) {
            (Recompute::Offload, Device::Cuda) => {
                Kept::Host(machine.ledger.hold(Kind::Host, value.bytes()))
            }
            // The processor's memory is that of the host: there it is a copy.
            (Recompute::Offload, Device::Cpu | Device::CpuLibTorch) => {
                Kept::Device(machine.bytes(value.bytes()).kept())
            }
            (Recompute::Keep | Recompute::Recompute, _) => Kept::Device(value.kept()),
        }
    }

    fn value(self, machine: &Machine) -> Blank {
        match self {
            Kept::Device(value) => value,
            Kept::Host(value) => machine.bytes(value.bytes()),
        }
    }
}
