//! Convolutions of enlarged maps, computed at the small size.

use terrashard_ops::Factor;

use super::ledger::Blank;
use super::machine::{FLOAT, Machine};
use super::tape::{Tape, Var};

/// Elements of the largest temporary that a GPU gets at a time; the processor gets one image.
const TEMPORARY: u64 = 1 << 25;

/// Positions of the small map in a strip of burn's own backend.
const STRIP: u64 = 1024;

/// Images in a piece of a batch, for temporaries of so many elements an image.
pub(super) fn piece(machine: &Machine, images: u64, elements: u64) -> u64 {
    match machine.is_gpu() {
        true => (TEMPORARY / elements.max(1)).clamp(1, images.max(1)),
        false => 1,
    }
}

/// How a map is laid out that losses are computed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Pixels,
    /// By classes of pixels, where the backend has that.
    Classes,
}

/// An enlargement with its convolution.
#[derive(Debug, Clone)]
pub(super) struct Enlargement {
    pub(super) images: u64,
    /// Height and width of the small map.
    pub(super) side: u64,
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    pub(super) factor: Factor,
    pub(super) layout: Layout,
    pub(super) name: String,
}

impl Enlargement {
    fn small(&self) -> u64 {
        self.images * self.side * self.side
    }

    /// Height and width of the large map.
    pub(super) fn large_side(&self) -> u64 {
        self.factor.output(self.side as usize) as u64
    }

    /// Classes of pixels of a block.
    fn classes(&self) -> u64 {
        let classes = match self.factor {
            Factor::Whole(factor) => factor.min(3) as u64,
            Factor::FiveHalves => 3,
        };
        classes * classes
    }

    fn low(&self) -> u64 {
        self.small() * self.outputs * self.classes()
    }

    fn pixels(&self) -> u64 {
        self.images * self.large_side() * self.large_side() * self.outputs
    }

    fn by_classes(&self, machine: &Machine) -> bool {
        self.layout == Layout::Classes
            && !machine.is_flex()
            && matches!(self.factor, Factor::Whole(_))
    }

    /// Elements of the result as it lies.
    pub(super) fn result(&self, machine: &Machine) -> u64 {
        match self.by_classes(machine) {
            true => self.low(),
            false => self.pixels(),
        }
    }

    /// The shifted copies of a piece of the input.
    fn columns(&self, machine: &Machine) -> Blank {
        let image = 9 * self.inputs * self.side * self.side;
        match machine.is_flex() {
            true => machine.inner(9 * self.inputs.max(self.outputs * self.classes()) * STRIP),
            false => machine.inner(piece(machine, self.images, image) * image),
        }
    }

    /// LibTorch enlarges by 2.5 through the enlargement by 3, in 32 bits.
    fn threefold(&self, machine: &Machine) -> Option<Blank> {
        let through_three = self.factor == Factor::FiveHalves && !machine.is_flex();
        through_three.then(|| machine.bytes(2 * 9 * self.small() * self.outputs * FLOAT))
    }

    pub(super) fn forward(&self, tape: &Tape, x: &Var) -> Var {
        let machine = tape.machine.clone();
        let y = {
            let x = machine.widened(&x.value);
            let y = match machine.is_flex() {
                true => {
                    // Strips of classes, then the pixels.
                    let _strips = machine.pieces(self.low());
                    machine.inner(self.pixels())
                }
                false => self.of_classes(&machine),
            };
            drop(x);
            machine.rounded(y)
        };
        let (kept, own) = (x.value.kept(), self.clone());
        let wanted = x.is_tracked();
        tape.record(&[x], y, move |gradient| {
            let gx = own.backward(&machine, gradient, &kept, wanted);
            vec![gx]
        })
    }

    /// The result on LibTorch: classes, and pixels where those are asked for.
    fn of_classes(&self, machine: &Machine) -> Blank {
        let columns = self.columns(machine);
        let low = machine.inner(self.low());
        drop(columns);
        let _threefold = self.threefold(machine);
        match self.by_classes(machine) {
            true => low,
            false => machine.inner(self.pixels()),
        }
    }

    fn backward(&self, m: &Machine, gradient: Blank, kept: &Blank, wanted: bool) -> Option<Blank> {
        let x = m.widened(kept);
        let wide = m.widened(&gradient);
        drop(gradient);
        let threefold = self.threefold(m);
        // burn's own backend has the gradient until the end.
        let mut large = None;
        let low = match self.by_classes(m) {
            true => wide,
            false => {
                let low = m.inner(self.low());
                large = m.is_flex().then_some(wide);
                low
            }
        };
        drop(threefold);
        let columns = self.columns(m);
        let gx = wanted.then(|| {
            let gx = m.inner(self.small() * self.inputs);
            if m.is_flex() {
                // Strips, before they are put together.
                drop(m.pieces(self.small() * self.inputs));
            }
            gx
        });
        if m.is_flex() {
            let strips = self.small().div_ceil(STRIP);
            drop(m.pieces(strips * 9 * self.inputs * self.classes() * self.outputs));
        }
        drop((columns, low, large, x));
        let gx = gx.map(|gx| m.rounded(gx));
        m.deliver(std::slice::from_ref(&self.name));
        gx
    }
}
