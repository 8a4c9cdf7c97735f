//! The residual branches of a transformer block, `x + drop(f(norm(x)))`, each as one operation.
//!
//! Backward makes again what is cheap: norms, activations, and on most backends the probabilities of attention. What an operation of the
//! graph costs beside its computation, it costs once for a whole branch.

mod attention;
mod feed_forward;
mod node;

use crate::dropout::{self, Mask};
use crate::kernels::Kernels;
use crate::modules::{Conv2d, LayerNorm, Linear};
use crate::{Activation, ConvShape, Pass};
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Tensor};
use node::Parameter;

/// The layers of a branch with attention, whose keys and values may come from a map reduced in height and width.
#[derive(Debug, Clone, Copy)]
pub struct AttentionLayers<'a> {
    /// Before everything else.
    pub norm: &'a LayerNorm,
    /// From channels to queries.
    pub q: &'a Linear,
    /// From channels to keys and values, side by side.
    pub kv: &'a Linear,
    /// After attention.
    pub proj: &'a Linear,
    /// What reduces the map, with a kernel as large as its stride, and the norm after it.
    pub reduction: Option<(&'a Conv2d, &'a LayerNorm)>,
    /// Heads of attention, which divide the channels.
    pub heads: usize,
}

/// The layers of a feed-forward branch.
#[derive(Debug, Clone, Copy)]
pub struct FeedForwardLayers<'a> {
    /// Before everything else.
    pub norm: &'a LayerNorm,
    /// From channels to hidden channels.
    pub fc1: &'a Linear,
    /// Depthwise, 3x3, on the map whose pixels are the tokens.
    pub dw: &'a Conv2d,
    /// Before the second layer.
    pub activation: Activation,
    /// From hidden channels to channels.
    pub fc2: &'a Linear,
}

/// Stochastic depth of a branch; see [`drop_path`](crate::drop_path).
#[derive(Debug, Clone, Copy)]
pub struct DropPath<'a> {
    /// The probability with which a sample leaves the branch out.
    pub rate: f64,
    /// What the masks follow from, beside those of the pass.
    pub layer: &'a str,
}

/// `x + drop(proj(attention(q(n), kv(reduced n))))` with `n = norm(x)`.
///
/// # Shapes
/// x `[N, H W, channels]`, kept; `grid` is H and W.
///
/// # Panics
/// As [`drop_path`](crate::drop_path); if a convolution has no bias.
pub fn attention_branch(
    x: Tensor<3>,
    layers: &AttentionLayers<'_>,
    grid: [usize; 2],
    drop: DropPath<'_>,
    pass: &Pass,
) -> Tensor<3> {
    let mut parameters = norm(layers.norm).to_vec();
    for layer in [layers.q, layers.kv, layers.proj] {
        parameters.extend(linear(layer));
    }
    if let Some((convolution, reduced)) = layers.reduction {
        parameters.extend(conv2d(convolution));
        parameters.extend(norm(reduced));
    }
    let kind = Kind::Attention {
        heads: layers.heads,
        reduction: layers.reduction.map(|(convolution, norm)| Reduction {
            shape: convolution.shape(),
            epsilon: norm.epsilon(),
        }),
    };
    let branch = Branch::new(kind, layers.norm, grid, drop, &x, pass);
    node::run(x, &parameters, branch, pass)
}

/// `x + drop(fc2(activation(dw(fc1(norm(x))))))`.
///
/// # Shapes
/// x `[N, H W, channels]`, kept; `grid` is H and W.
///
/// # Panics
/// As [`drop_path`](crate::drop_path); if the convolution has no bias.
pub fn feed_forward_branch(
    x: Tensor<3>,
    layers: &FeedForwardLayers<'_>,
    grid: [usize; 2],
    drop: DropPath<'_>,
    pass: &Pass,
) -> Tensor<3> {
    let parameters = [
        norm(layers.norm),
        linear(layers.fc1),
        conv2d(layers.dw),
        linear(layers.fc2),
    ];
    let kind = Kind::FeedForward(layers.activation);
    let branch = Branch::new(kind, layers.norm, grid, drop, &x, pass);
    node::run(x, &parameters.concat(), branch, pass)
}

fn norm(layer: &LayerNorm) -> [Parameter<'_>; 2] {
    [Parameter::of(&layer.weight), Parameter::of(&layer.bias)]
}

fn linear(layer: &Linear) -> [Parameter<'_>; 2] {
    [Parameter::of(&layer.weight), Parameter::of(&layer.bias)]
}

fn conv2d(layer: &Conv2d) -> [Parameter<'_>; 2] {
    let bias = layer.bias.as_ref();
    let bias = bias.expect("a convolution in a branch has a bias");
    [Parameter::of(&layer.weight), Parameter::of(bias)]
}

/// A branch with everything that is no tensor of the graph.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub(crate) kind: Kind,
    /// Height and width of the map whose pixels are the tokens.
    pub(crate) grid: [usize; 2],
    /// Of the norm.
    pub(crate) epsilon: f64,
    drop: Option<Mask>,
}

/// What a branch computes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Parameters: weights and biases of norm, queries, keys with values, last layer, and perhaps of convolution and norm of
    /// the reduction.
    Attention {
        heads: usize,
        reduction: Option<Reduction>,
    },
    /// Parameters: weights and biases of norm, first layer, convolution, second layer.
    FeedForward(Activation),
}

/// How keys and values are reduced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reduction {
    pub(crate) shape: ConvShape,
    /// Of the norm after the convolution.
    pub(crate) epsilon: f64,
}

/// What a branch keeps between forward and backward beside its input.
pub(crate) type Saved<B> = Vec<Option<FloatTensor<B>>>;

/// Gradients of x and of the parameters.
pub(crate) type Results<B> = Vec<Option<FloatTensor<B>>>;

/// What backward gets.
#[derive(Debug)]
pub(crate) struct Backward<B: Kernels> {
    pub(crate) gradient: FloatTensor<B>,
    pub(crate) x: FloatTensor<B>,
    pub(crate) parameters: Vec<FloatTensor<B>>,
    pub(crate) saved: Saved<B>,
    /// Whether the gradient of x is wanted, then those of the parameters.
    pub(crate) wanted: Vec<bool>,
}

impl Branch {
    fn new(
        kind: Kind,
        norm: &LayerNorm,
        grid: [usize; 2],
        drop: DropPath<'_>,
        x: &Tensor<3>,
        pass: &Pass,
    ) -> Self {
        Self {
            kind,
            grid,
            epsilon: norm.epsilon(),
            drop: dropout::path_mask(x.dims()[0], drop.rate, drop.layer, pass),
        }
    }

    /// What each sample's branch is multiplied by, `[N, 1, 1]`, where samples are dropped.
    pub(crate) fn kept<B: Kernels>(&self, x: &FloatTensor<B>) -> Option<FloatTensor<B>> {
        let mask = self.drop.as_ref()?;
        let factors = mask.factors(1).convert_dtype(x.dtype());
        let samples = x.shape()[0];
        let factors = B::float_from_data(factors, &x.device());
        Some(B::float_reshape(factors, [samples, 1, 1].into()))
    }

    /// Whether the backend's own body takes these types, or everything has to be in a wider one.
    fn is_narrow<B: Kernels>(&self, types: impl IntoIterator<Item = DType>, dtype: DType) -> bool {
        B::computes_narrow_branches() && types.into_iter().all(|other| other == dtype)
    }

    /// The result in the type of x, computed in the type that the backend computes that in.
    fn forward<B: Kernels>(
        &self,
        x: FloatTensor<B>,
        parameters: Vec<FloatTensor<B>>,
    ) -> (FloatTensor<B>, Saved<B>) {
        let dtype = x.dtype();
        if self.is_narrow::<B>(parameters.iter().map(TensorMetadata::dtype), dtype) {
            return B::branch_forward(self, x, parameters);
        }
        let parameters = parameters.into_iter().map(B::widened).collect();
        let (y, saved) = B::branch_forward(self, B::widened(x), parameters);
        (B::rounded(y, dtype), saved)
    }

    /// Gradients of x and of the parameters, each in its type.
    fn backward<B: Kernels>(&self, given: Backward<B>) -> Results<B> {
        let dtype = given.gradient.dtype();
        let mut types = vec![given.x.dtype()];
        types.extend(given.parameters.iter().map(TensorMetadata::dtype));
        if self.is_narrow::<B>(types.iter().copied(), dtype) {
            return B::branch_backward(self, given);
        }
        let results = B::branch_backward(
            self,
            Backward {
                gradient: B::widened(given.gradient),
                x: B::widened(given.x),
                parameters: given.parameters.into_iter().map(B::widened).collect(),
                ..given
            },
        );
        let results = results.into_iter().zip(types);
        results
            .map(|(result, dtype)| result.map(|result| B::rounded(result, dtype)))
            .collect()
    }
}

/// The portable body.
pub(crate) fn forward<B: Kernels>(
    branch: &Branch,
    x: FloatTensor<B>,
    parameters: Vec<FloatTensor<B>>,
) -> (FloatTensor<B>, Saved<B>) {
    let kept = branch.kept::<B>(&x);
    let (y, saved) = match branch.kind {
        Kind::Attention { heads, reduction } => {
            attention::forward::<B>(branch, heads, reduction, x.clone(), &parameters)
        }
        Kind::FeedForward(activation) => {
            feed_forward::forward::<B>(branch, activation, x.clone(), &parameters)
        }
    };
    let y = match kept {
        Some(kept) => B::float_mul(y, kept),
        None => y,
    };
    (B::float_add(y, x), saved)
}

/// The portable body.
pub(crate) fn backward<B: Kernels>(branch: &Branch, given: Backward<B>) -> Results<B> {
    let residual = given.gradient.clone();
    let gradient = match branch.kept::<B>(&given.x) {
        Some(kept) => B::float_mul(given.gradient, kept),
        None => given.gradient,
    };
    let given = Backward { gradient, ..given };
    let mut results = match branch.kind {
        Kind::Attention { heads, reduction } => {
            attention::backward::<B>(branch, heads, reduction, given)
        }
        Kind::FeedForward(activation) => feed_forward::backward::<B>(branch, activation, given),
    };
    results[0] = results[0].take().map(|gx| B::float_add(gx, residual));
    results
}

/// Gradients as they are computed, those of the last layer first.
struct Collected<B: Kernels> {
    results: Results<B>,
    wanted: Vec<bool>,
}

impl<B: Kernels> Collected<B> {
    fn new(wanted: Vec<bool>) -> Self {
        Self {
            results: vec![None; wanted.len()],
            wanted,
        }
    }

    /// What is wanted of the layer whose weight is parameter `weight`: always the gradient of its input.
    fn of(&self, weight: usize) -> [bool; 3] {
        [true, self.wanted[1 + weight], self.wanted[2 + weight]]
    }

    /// Keeps the gradients of a layer's weight and bias, and gives back that of its input.
    fn take(&mut self, weight: usize, gradients: Vec<Option<FloatTensor<B>>>) -> FloatTensor<B> {
        let mut gradients = gradients.into_iter();
        let input = gradients.next().flatten();
        let places = self.results[1 + weight..].iter_mut();
        places
            .zip(gradients)
            .for_each(|(place, gradient)| *place = gradient);
        input.expect("a layer's backward gives what it was asked for")
    }

    fn with_input(mut self, gradient: FloatTensor<B>) -> Results<B> {
        self.results[0] = Some(gradient);
        self.results
    }
}

/// `[N, H W, C]` as `[N, C, H, W]`.
fn as_map<B: Kernels>(tokens: FloatTensor<B>, [height, width]: [usize; 2]) -> FloatTensor<B> {
    let shape = tokens.shape();
    let map = B::float_reshape(tokens, [shape[0], height, width, shape[2]].into());
    B::float_permute(map, &[0, 3, 1, 2])
}

/// `[N, C, H, W]` as `[N, H W, C]`.
fn as_tokens<B: Kernels>(map: FloatTensor<B>) -> FloatTensor<B> {
    let shape = map.shape();
    let map = B::float_permute(map, &[0, 2, 3, 1]);
    B::float_reshape(map, [shape[0], shape[2] * shape[3], shape[1]].into())
}
