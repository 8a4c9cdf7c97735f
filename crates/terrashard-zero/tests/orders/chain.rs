//! A chain of equal blocks, the last tied with the first, and how it is trained.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use terrashard_collectives::local::LocalCommunicator;
use terrashard_layout::Stage;
use terrashard_zero::{Initial, Recompute, Result, ZeroConfig, ZeroOptimizer};

use crate::net::{Dense, initial, noise};

pub(crate) type Named = BTreeMap<String, Vec<f64>>;

pub(crate) fn named(states: Vec<(String, TensorData)>) -> Named {
    states
        .into_iter()
        .map(|(n, d)| (n, d.convert::<f64>().try_to_vec::<f64>().unwrap()))
        .collect()
}

pub(crate) fn lazy<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
    let init = move |device: &Device, _grad: bool| {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i| noise("i", i as u64))
            .collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    };
    Param::uninitialized(
        ParamId::new(),
        init,
        Device::flex(),
        true,
        Shape::from(shape),
    )
}
pub(crate) fn dense(i: usize, o: usize) -> Dense {
    Dense {
        weight: lazy([i, o]),
        bias: lazy([o]),
    }
}

/// Four equal blocks, the last tied with the first.
#[derive(Module, Debug)]
pub(crate) struct Chain {
    pub(crate) a: Dense,
    pub(crate) b: Dense,
    pub(crate) c: Dense,
    pub(crate) d: Dense,
    pub(crate) side: Dense,
}
impl Chain {
    pub(crate) fn new() -> Self {
        let a = dense(6, 6);
        let d = Dense {
            weight: a.weight.clone(),
            bias: lazy([6]),
        };
        Self {
            a,
            b: dense(6, 6),
            c: dense(6, 6),
            d,
            side: dense(6, 6),
        }
    }
}

pub(crate) fn cfg(stage: Stage) -> ZeroConfig {
    ZeroConfig {
        stage,
        bucket_bytes: Some(128),
        ..ZeroConfig::default()
    }
}

pub(crate) fn opt(net: &Chain, config: ZeroConfig, c: LocalCommunicator) -> Result<ZeroOptimizer> {
    let o = ZeroOptimizer::new(
        net,
        config,
        Initial::Keyed(&initial),
        Arc::new(c),
        &Device::flex(),
    )?;
    let names = |p: &str| vec![format!("{p}.weight"), format!("{p}.bias")];
    o.declare_blocks(&["a", "b", "c", "d"].map(names))?;
    Ok(o)
}

pub(crate) fn x(seed: u64, auto: bool) -> Tensor<2> {
    let values: Vec<f32> = (0..18).map(|i| noise("x", seed * 100 + i)).collect();
    let device = if auto {
        Device::flex().autodiff()
    } else {
        Device::flex()
    };
    Tensor::from_data(TensorData::new(values, [3, 6]), &device)
}

pub(crate) fn layer(o: &ZeroOptimizer, m: &Dense, h: Tensor<2>, r: Recompute) -> Tensor<2> {
    o.block(m, vec![h], r, |m: &Dense, mut i: Vec<Tensor<2>>, _| {
        let h = i.remove(0);
        (h.matmul(m.weight.val()) + m.bias.val().unsqueeze::<2>()).tanh()
    })
}

pub(crate) fn loss(o: &ZeroOptimizer, n: &Chain, seed: u64, r: Recompute) -> Tensor<1> {
    let mut h = x(seed, true);
    for m in [&n.a, &n.b, &n.c, &n.d] {
        h = layer(o, m, h, r);
    }
    h.powi_scalar(2).sum()
}
