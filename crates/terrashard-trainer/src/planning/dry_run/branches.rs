//! The two residual branches of a transformer block.

use std::rc::Rc;

use super::ledger::Blank;
use super::machine::{FLOAT, Machine};
use super::tape::{Tape, Var};

/// The most channels whose hidden tensor a GPU makes again in backward.
const MADE_AGAIN: u64 = 512;

/// Elements of a part of the matrix of scores, where it is built part by part.
const PART: u64 = 1 << 24;

/// Values that an unfolded group of images has on burn's own backend.
const UNFOLDED: u64 = 4 << 20;

/// A branch's sizes.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    pub(super) images: u64,
    pub(super) tokens: u64,
    /// Tokens that keys and values come from.
    pub(super) reduced: u64,
    pub(super) channels: u64,
    pub(super) hidden: u64,
    pub(super) heads: u64,
    /// Whether samples are dropped from it.
    pub(super) drops: bool,
    /// Whether the activation is GELU, which a GPU computes with the convolution.
    pub(super) gelu: bool,
    /// Names of its parameters.
    pub(super) names: Vec<String>,
}

impl Branch {
    fn all(&self) -> u64 {
        self.images * self.tokens * self.channels
    }

    fn rows(&self) -> u64 {
        self.images * self.tokens
    }

    fn reduced_all(&self) -> u64 {
        self.images * self.reduced * self.channels
    }

    fn hidden_all(&self) -> u64 {
        self.images * self.tokens * self.hidden
    }

    fn reduces(&self) -> bool {
        self.reduced < self.tokens
    }

    /// Values of the unfolded map that is reduced, as many images at once as fit.
    fn unfolded(&self) -> u64 {
        let image = self.tokens * self.channels;
        image * (UNFOLDED / image.max(1)).clamp(1, self.images)
    }
}

pub(super) fn attention(tape: &Tape, x: &Var, branch: Branch) -> Var {
    let (machine, branch) = (tape.machine.clone(), Rc::new(branch));
    let (y, saved) = forward(&machine, &x.value, &branch, attention_forward);
    let kept = Kept::of(x, saved);
    tape.record(&[x], y, move |gradient| {
        backward(&machine, gradient, kept, &branch, attention_backward)
    })
}

pub(super) fn feed_forward(tape: &Tape, x: &Var, branch: Branch) -> Var {
    let (machine, branch) = (tape.machine.clone(), Rc::new(branch));
    let (y, saved) = forward(&machine, &x.value, &branch, feed_forward_forward);
    let kept = Kept::of(x, saved);
    tape.record(&[x], y, move |gradient| {
        backward(&machine, gradient, kept, &branch, feed_forward_backward)
    })
}

/// What backward gets again.
struct Kept {
    x: Blank,
    saved: Vec<Blank>,
}

impl Kept {
    fn of(x: &Var, saved: Vec<Blank>) -> Self {
        Self {
            x: x.value.kept(),
            saved: saved.iter().map(Blank::kept).collect(),
        }
    }
}

type Forward = fn(&Machine, &Branch) -> (Blank, Vec<Blank>);

fn forward(machine: &Machine, x: &Blank, branch: &Branch, run: Forward) -> (Blank, Vec<Blank>) {
    let _x = machine.widened(x);
    let _parameters = machine.parameters(&branch.names);
    let (y, saved) = run(machine, branch);
    machine.hold_in_graphs(branch.all(), &branch.names, saved.iter().chain([&y]));
    (machine.rounded(y), saved)
}

fn backward(
    machine: &Machine,
    gradient: Blank,
    kept: Kept,
    branch: &Branch,
    run: fn(&Machine, &Branch, Blank, Vec<Blank>) -> Blank,
) -> Vec<Option<Blank>> {
    let x = machine.widened(&kept.x);
    let parameters = machine.parameters(&branch.names);
    let residual = machine.widened(&gradient);
    drop(gradient);
    let dropped = match branch.drops {
        true => machine.inner(branch.all()),
        false => residual.clone(),
    };
    let gx = run(machine, branch, dropped, kept.saved);
    drop((x, residual));
    let gx = machine.rounded(gx);
    machine.deliver(&branch.names);
    drop(parameters);
    vec![Some(gx)]
}

fn attention_forward(m: &Machine, b: &Branch) -> (Blank, Vec<Blank>) {
    let mut saved = Vec::new();
    let mut source = m.norm(b.all(), b.rows()).y;
    let q = m.inner(b.all());
    if !m.is_gpu() {
        saved.push(q.clone());
    }
    if b.reduces() {
        let patches = match m.is_flex() {
            true => m.inner(b.unfolded()),
            false => m.inner(b.all()),
        };
        let reduced = m.inner(b.reduced_all());
        drop(patches);
        saved.push(reduced);
        source = m.norm(b.reduced_all(), b.images * b.reduced).y;
    }
    saved.push(m.inner(2 * b.reduced_all()));
    drop(source);
    let mixed = m.inner(b.all());
    if m.is_flex() {
        // The results of all heads, before they are laid side by side.
        let heads = m.inner(b.all());
        let scores = m.inner(b.tokens * b.reduced * threads(b));
        drop((heads, scores));
    } else if !m.is_gpu() || m.is_narrow() {
        // The logarithms of sums.
        saved.push(m.bytes(FLOAT * b.heads * b.rows()));
    }
    saved.push(mixed);
    let y = m.inner(b.all());
    drop(q);
    (y, saved)
}

/// Heads that are worked on side by side.
fn threads(b: &Branch) -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    cores.min(b.images * b.heads)
}

fn attention_backward(m: &Machine, b: &Branch, gradient: Blank, saved: Vec<Blank>) -> Blank {
    let norm = m.norm(b.all(), b.rows());
    let gmixed = m.inner(b.all());
    let q = m.is_gpu().then(|| m.inner(b.all()));
    let (gq, gkv) = attended_backward(m, b);
    drop((gmixed, q));
    let gradients = m.inner(m.elements(&b.names));
    let gn = if b.reduces() {
        let second = m.norm(b.reduced_all(), b.images * b.reduced);
        let gsource = m.inner(b.reduced_all());
        let greduced = m.norm_backward(b.reduced_all());
        drop((second, gsource));
        let patches = m.inner(if m.is_flex() { b.unfolded() } else { b.all() });
        drop(patches);
        let rows = m.inner(b.all());
        let gn = m.inner(b.all());
        drop((rows, greduced));
        gn
    } else {
        m.inner(b.all())
    };
    drop((gq, gkv));
    let gx = m.norm_backward(b.all());
    drop((norm, gn, gradient, saved, gradients));
    gx
}

/// Gradients of queries, and of keys with values.
fn attended_backward(m: &Machine, b: &Branch) -> (Blank, Blank) {
    let gq = m.inner(b.all());
    let parts = m.inner(2 * b.reduced_all());
    if m.is_flex() {
        let heads = m.inner(b.all());
        let scores = m.inner(3 * b.tokens * b.reduced * threads(b));
        drop((heads, scores));
    } else if m.is_gpu() && m.is_narrow() {
        // The kernel adds up the gradient of queries in 32 bits, for heads of a multiple of 32 channels.
        let width = (b.channels / b.heads).next_multiple_of(32);
        let tokens = b.tokens.next_multiple_of(128);
        drop(m.floats(b.images * b.heads * tokens * (width + 1)));
    } else if m.is_gpu() {
        // Parts of the matrix of scores: probabilities, their gradient, that of the scores and a copy on its way; and the three inputs
        // laid out for products.
        let row = (b.images * b.heads * b.reduced).max(1);
        let part = (PART / row).clamp(1, b.tokens) * row;
        let scores = m.inner(4 * part);
        let inputs = m.inner(b.all() + 2 * b.reduced_all());
        drop((scores, inputs));
    }
    let gkv = m.inner(2 * b.reduced_all());
    drop(parts);
    (gq, gkv)
}

fn keeps_hidden(m: &Machine, b: &Branch) -> bool {
    !m.is_gpu() || b.channels > MADE_AGAIN
}

fn feed_forward_forward(m: &Machine, b: &Branch) -> (Blank, Vec<Blank>) {
    let norm = m.norm(b.all(), b.rows());
    let hidden = m.inner(b.hidden_all());
    drop(norm);
    let mut saved = Vec::new();
    if keeps_hidden(m, b) {
        saved.push(hidden.clone());
    }
    let convolved = m.inner(b.hidden_all());
    let activated = if b.gelu || !m.is_gpu() {
        let activated = m.inner(b.hidden_all());
        drop(hidden);
        activated
    } else {
        drop(hidden);
        m.inner(b.hidden_all())
    };
    let y = m.inner(b.all());
    drop(activated);
    saved.push(convolved);
    (y, saved)
}

fn feed_forward_backward(m: &Machine, b: &Branch, gradient: Blank, saved: Vec<Blank>) -> Blank {
    // On burn's own backend what comes before the convolution is made again only when it is needed.
    let norm = (!m.is_flex()).then(|| m.norm(b.all(), b.rows()));
    let activated = m.inner(b.hidden_all());
    if !m.is_flex() {
        drop(activated);
        let gconvolved = m.inner(b.hidden_all());
        let hidden = (!keeps_hidden(m, b)).then(|| m.inner(b.hidden_all()));
        let ghidden = m.inner(b.hidden_all());
        drop((gconvolved, hidden));
        let gradients = m.inner(m.elements(&b.names));
        let gn = m.inner(b.all());
        drop(ghidden);
        let gx = m.norm_backward(b.all());
        drop((norm, gn, gradient, saved, gradients));
        return gx;
    }
    let gactivated = m.inner(b.hidden_all());
    drop(activated);
    let gconvolved = m.inner(b.hidden_all());
    drop((gactivated, gradient));
    let ghidden = m.inner(b.hidden_all());
    drop((gconvolved, saved));
    let gradients = m.inner(m.elements(&b.names));
    let norm = m.norm(b.all(), b.rows());
    let gn = m.inner(b.all());
    drop((norm, ghidden));
    let gx = m.norm_backward(b.all());
    drop((gn, gradients));
    gx
}
