//! The losses of both branches.

use terrashard_models::Loss;

use super::enlargement::piece;
use super::ledger::Blank;
use super::machine::{FLOAT, Machine};
use super::tape::{Tape, Var};

/// Every this many pixels of the maps at the input's resolution is compared by the affinity loss.
const AFFINITY_EVERY: u64 = 8;

/// Rows of the similarity matrices that exist at a time.
const AFFINITY_TILE: u64 = 256;

/// Channels of the super-resolved image.
pub(super) const IMAGE_CHANNELS: u64 = 4;

/// Maps of 32 bits that LibTorch has at once in a piece of the focal loss with its gradient: probabilities, logarithms, weights
/// and counts of both labels, the flipped logits, and three for sums.
const FOCAL_MAPS: u64 = 11;

/// The same of binary cross-entropy.
const BCE_MAPS: u64 = 8;

/// The same of Dice.
const DICE_MAPS: u64 = 6;

/// Maps of all classes in softmax and what goes with it.
const SOFTMAX_MAPS: u64 = 4;

/// A map that a loss is computed of.
#[derive(Clone)]
pub(super) struct Map {
    pub(super) var: Var,
    /// Elements as they lie.
    pub(super) elements: u64,
    /// Elements by pixels.
    pub(super) pixels: u64,
}

/// What the losses are computed of.
pub(super) struct Maps {
    pub(super) images: u64,
    pub(super) segmentation: Map,
    pub(super) superres: Option<Map>,
    /// The branches' maps at the input's resolution, with their elements and sides.
    pub(super) low: Option<[(Var, u64); 2]>,
    pub(super) low_side: u64,
    /// What else a forward pass gives and no loss reads: it lives as long.
    pub(super) _others: Vec<Var>,
}

/// Runs the losses. What is differentiated, each with the gradient of its value.
pub(super) fn losses(tape: &Tape, loss: Loss, maps: &Maps) -> Vec<(Var, Blank)> {
    let mut values = match loss {
        Loss::Focal => vec![labelled(tape, maps, FOCAL_MAPS)],
        Loss::BceDice => vec![
            labelled(tape, maps, BCE_MAPS),
            labelled(tape, maps, DICE_MAPS),
        ],
        Loss::CrossEntropyDice => of_classes(tape, maps),
    };
    if let Some([a, b]) = &maps.low {
        values.push(affinity(tape, maps, a, b));
    }
    values.extend(maps.superres.as_ref().map(|map| l1(tape, maps, map)));
    let gradient = |var| (var, tape.machine.floats(1));
    values.into_iter().map(gradient).collect()
}

/// A loss of a mask, with so many temporaries on LibTorch.
fn labelled(tape: &Tape, maps: &Maps, temporaries: u64) -> Var {
    let map = &maps.segmentation;
    in_pieces(tape, map, |machine| {
        let image = map.elements / maps.images.max(1);
        let own = piece(machine, maps.images, image) * image;
        // Logits of 32 bits are read as they are.
        match machine.is_narrow() {
            true => temporaries * own,
            false => (temporaries - 1) * own,
        }
    })
}

fn l1(tape: &Tape, maps: &Maps, map: &Map) -> Var {
    in_pieces(tape, map, |machine| {
        let image = map.pixels / maps.images.max(1);
        let own = piece(machine, maps.images, image) * image;
        // The differences of a piece, and the map with its columns laid out: three of so many rows as an input pixel has.
        own + own * 3 / 5
    })
}

/// A loss with its gradient. Where LibTorch composes it of its own operations, it has so many temporary floats at a time.
fn in_pieces(tape: &Tape, map: &Map, temporary: impl FnOnce(&Machine) -> u64) -> Var {
    let machine = tape.machine.clone();
    let Map { var, elements, .. } = map.clone();
    let value = machine.floats(1);
    if machine.is_flex() {
        // Nothing of a map's size; 16 bits are widened first.
        drop(machine.widened(&var.value));
        let kept = var.value.kept();
        return tape.record(&[&var], value, move |_| {
            let wide = machine.widened(&kept);
            let slope = machine.inner(elements);
            drop(wide);
            vec![Some(machine.rounded(slope))]
        });
    }
    let slope = machine.tensor(elements).kept();
    if !machine.computes_losses_in_one_pass() {
        drop(machine.bytes(temporary(&machine) * FLOAT));
    }
    tape.record(&[&var], value, move |_| vec![Some(slope)])
}

/// Cross-entropy and Dice of several classes, over pixels.
fn of_classes(tape: &Tape, maps: &Maps) -> Vec<Var> {
    let machine = tape.machine.clone();
    let Map {
        var,
        elements,
        pixels,
    } = maps.segmentation.clone();
    let laid = match elements == pixels {
        true => var,
        false => {
            let y = machine.tensor(pixels);
            let machine = machine.clone();
            tape.record(&[&var], y, move |_| vec![Some(machine.tensor(elements))])
        }
    };
    let loss = || {
        let machine = machine.clone();
        let temporaries = move |machine: &Machine| {
            let count = match machine.is_flex() {
                true => u64::from(machine.is_narrow()),
                false => SOFTMAX_MAPS,
            };
            machine.bytes(count * pixels * FLOAT)
        };
        drop(temporaries(&machine));
        let value = machine.floats(1);
        let kept = laid.value.kept();
        tape.record(&[&laid], value, move |_| {
            let wide = temporaries(&machine);
            let slope = machine.inner(pixels);
            drop((wide, kept));
            vec![Some(machine.rounded(slope))]
        })
    };
    vec![loss(), loss()]
}

fn affinity(tape: &Tape, maps: &Maps, a: &(Var, u64), b: &(Var, u64)) -> Var {
    let machine = tape.machine.clone();
    let side = maps.low_side.div_ceil(AFFINITY_EVERY);
    let positions = side * side;
    let tile = maps.images * positions.min(AFFINITY_TILE) * positions;
    // Sampled vectors of both maps are few; a tile of their products is not.
    let tiles = move |machine: &Machine| match machine.is_flex() {
        true => machine.inner(2 * tile),
        false => machine.tensor(tile),
    };
    let wide: Vec<_> = [a, b].map(|map| machine.widened(&map.0.value)).into();
    drop(tiles(&machine));
    drop(wide);
    let value = machine.floats(1);
    let kept = [a.0.value.kept(), b.0.value.kept()];
    let elements = [a.1, b.1];
    tape.record(&[&a.0, &b.0], value, move |_| {
        if machine.is_flex() {
            let wide: Vec<_> = kept.iter().map(|kept| machine.widened(kept)).collect();
            drop(tiles(&machine));
            drop(wide);
        }
        let whole = |elements| Some(machine.tensor(elements));
        elements.map(whole).to_vec()
    })
}
