//! What a transformer block costs the graph. Alone in its process, since every node of any graph gets the next number.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::backend::autodiff::NodeId;
use burn::module::Module;
use burn::tensor::Tensor;
use terrashard_collectives::local;
use terrashard_models::{Loss, Mode, ModelConfig, Normalizers, Pass, Scope, Targets};
use terrashard_tests::hash;
use terrashard_tests::training::block;
use terrashard_zero::{Initial, ZeroConfig, ZeroOptimizer};

/// Counts what each block adds to the graph.
struct Counted<'a> {
    optimizer: &'a ZeroOptimizer,
    nodes: RefCell<BTreeMap<String, u64>>,
}

impl Scope for Counted<'_> {
    fn block<M, const D: usize, const E: usize, F>(
        &self,
        name: &str,
        module: &M,
        inputs: Vec<Tensor<D>>,
        forward: F,
    ) -> Tensor<E>
    where
        M: Module + Sync + 'static,
        F: Fn(&M, Vec<Tensor<D>>, &Pass) -> Tensor<E> + Send + Sync + 'static,
    {
        let before = NodeId::new().value;
        let output = block(self.optimizer, self.pass(), module, inputs, forward);
        let nodes = NodeId::new().value - before - 1;
        self.nodes.borrow_mut().insert(name.into(), nodes);
        output
    }

    fn pass(&self) -> Pass {
        Pass::new(Mode::Training)
    }
}

#[test]
fn a_transformer_block_is_a_handful_of_nodes() {
    let config = ModelConfig {
        dims: [8, 16, 20, 32],
        heads: [1, 2, 5, 8],
        depths: [1; 4],
        head_channels: 16,
        ..ModelConfig::b0()
    };
    let results = local::run(1, |communicator| {
        let device = burn::tensor::Device::flex();
        let model = config.init(&device).map_err(|error| error.to_string())?;
        let initial = Initial::Keyed(&hash::initial);
        let communicator = std::sync::Arc::new(communicator);
        let config = ZeroConfig::default();
        let optimizer = ZeroOptimizer::new(&model, config, initial, communicator, &device);
        let mut optimizer = optimizer.map_err(|error| error.to_string())?;
        let batch = hash::batch(64, 0..1);
        let graph = device.clone().autodiff();
        let data = |values: Vec<f32>, shape: [usize; 4], device| {
            Tensor::<4>::from_data(burn::tensor::TensorData::new(values, shape), device)
        };
        let targets = Targets {
            labels: terrashard_models::Labels::new(batch.mask, [1, 320, 320], &graph),
            superres: Some(data(batch.hres, [1, 4, 320, 320], &device).into()),
        };
        let scope = Counted {
            optimizer: &optimizer,
            nodes: RefCell::default(),
        };
        let maps = model.forward(data(batch.image, [1, 6, 64, 64], &graph), &scope);
        let losses = Loss::Focal.of(&maps, &targets, &Normalizers::of(&targets), &scope);
        let nodes = scope.nodes.into_inner();
        // Every parameter of a block had its gradient all the same.
        optimizer
            .backward(losses.total)
            .map_err(|error| error.to_string())?;
        let gradients = optimizer.whole_gradients();
        let gradients = gradients.map_err(|error| error.to_string())?;
        let nought = gradients
            .iter()
            .filter(|(_, values)| values.iter::<f64>().all(|value| value == 0.0))
            .map(|(name, _)| name.clone());
        Ok::<_, String>((nodes, nought.collect::<Vec<_>>()))
    });
    let (nodes, nought) = results.expect("one rank trains").remove(0);
    assert!(nought.is_empty(), "no gradient: {nought:?}");
    let blocks: Vec<_> = nodes
        .iter()
        .filter(|(name, _)| name.contains(".blocks."))
        .collect();
    assert_eq!(blocks.len(), 4, "{nodes:?}");
    for (name, nodes) in blocks {
        // The token, tracked and not, the mark of the block's depth, and the two branches.
        assert!((3..=8).contains(nodes), "{name}: {nodes} nodes");
    }
}
