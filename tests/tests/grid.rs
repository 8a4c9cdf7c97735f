//! The stage grid: every stage, rank count, accumulation, offload and recomputation trains the nasty net as one process
//! over the same micro-batches does.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use terrashard_collectives::local;
use terrashard_layout::Stage;
use terrashard_models::Plain;
use terrashard_tests::nasty::{
    Batch, Case, Named, Nasty, TARGETS, Trained, difference, initial, train,
};
use terrashard_zero::{Offload, Precision, Recompute, declared};

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];
const RECOMPUTE: [Recompute; 3] = [Recompute::Keep, Recompute::Recompute, Recompute::Offload];

fn run(case: &Case) -> Trained {
    let results = local::run(case.ranks, |communicator| {
        train(case, Arc::new(communicator))
    });
    let mut results = results.unwrap_or_else(|error| panic!("{error}: {case:?}"));
    let first = results.swap_remove(0);
    for other in results {
        assert!(first == other, "ranks end with different states: {case:?}");
    }
    first
}

fn one_process(case: &Case) -> Trained {
    let results = local::run(1, |communicator| train(case, Arc::new(communicator)));
    results.expect("one process trains").swap_remove(0)
}

/// The reference: one process at stage 0 without recomputation over the same micro-batches.
fn reference(case: &Case) -> Trained {
    let mut case = case.clone();
    case.config.stage = Stage::Zero;
    case.config.offload = Offload::None;
    case.recompute = Recompute::Keep;
    one_process(&case)
}

fn close(got: &Trained, expected: &Trained, bound: f64, case: &Case) {
    let (apart, name) = difference(&got.states, &expected.states);
    assert!(apart <= bound, "{name} is off by {apart:e}: {case:?}");
    for (got, expected) in got.norms.iter().zip(&expected.norms) {
        let apart = (got - expected).abs() / expected;
        assert!(apart <= bound, "norm {got} not {expected}: {case:?}");
    }
    for (got, expected) in got.losses.iter().zip(&expected.losses) {
        let apart = (got - expected).abs() / expected;
        assert!(apart <= bound, "loss {got} not {expected}: {case:?}");
    }
}

/// Where states may be at a stage.
fn offloads(stage: Stage) -> Vec<Offload> {
    match stage {
        Stage::Zero => vec![Offload::None],
        Stage::One | Stage::Two => vec![Offload::None, Offload::Optimizer],
        Stage::Three => vec![Offload::None, Offload::Parameters],
    }
}

fn grid(ranks: usize, precision: Precision, bound: f64) {
    for accumulate in [1, 3] {
        let mut base = Case::new(ranks);
        base.config.precision = precision;
        base.config.accumulate = accumulate;
        let expected = reference(&base);
        assert!(
            expected.norms.iter().any(|norm| *norm > 0.5),
            "clipping takes part"
        );
        let mut first: Option<Trained> = None;
        for stage in STAGES {
            for offload in offloads(stage) {
                for recompute in RECOMPUTE {
                    let mut case = base.clone();
                    (case.config.stage, case.config.offload) = (stage, offload);
                    case.recompute = recompute;
                    let got = run(&case);
                    close(&got, &expected, bound, &case);
                    if accumulate == 1 {
                        let first = first.get_or_insert_with(|| got.clone());
                        assert!(*first == got, "not bitwise equal to stage 0: {case:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn n1_five_ranks_in_f64() {
    grid(5, Precision::F64, 1e-10);
}

#[test]
fn n1_four_ranks_in_f64() {
    grid(4, Precision::F64, 1e-10);
}

#[test]
fn n1_three_ranks_in_f64() {
    grid(3, Precision::F64, 1e-10);
}

#[test]
fn n1_two_ranks_in_f64() {
    grid(2, Precision::F64, 1e-10);
}

#[test]
fn n1_one_rank_in_f64() {
    grid(1, Precision::F64, 1e-10);
}

#[test]
fn n1_five_ranks_in_f32() {
    grid(5, Precision::F32, 1e-5);
}

#[test]
fn n1_four_ranks_in_f32() {
    grid(4, Precision::F32, 1e-5);
}

#[test]
fn n1_three_ranks_in_f32() {
    grid(3, Precision::F32, 1e-5);
}

#[test]
fn n1_two_ranks_in_f32() {
    grid(2, Precision::F32, 1e-5);
}

#[test]
fn n1_b6_one_rank_in_f32() {
    grid(1, Precision::F32, 1e-5);
}

/// The reference of the reference: burn's own autodiff on burn's own parameters, AdamW written out on doubles.
#[test]
fn n1_one_process_trains_as_adamw_written_out() {
    for accumulate in [1, 2] {
        let mut case = Case::new(2);
        case.config.precision = Precision::F64;
        case.config.accumulate = accumulate;
        let (states, norms) = written_out(&case);
        let got = reference(&case);
        let (apart, name) = difference(&got.states, &states);
        assert!(apart <= 1e-11, "{name} is off by {apart:e}");
        for (got, expected) in got.norms.iter().zip(&norms) {
            assert!((got - expected).abs() <= 1e-12 * expected);
        }
    }
}

fn written_out(case: &Case) -> (Named, Vec<f64>) {
    let device = Device::flex().autodiff();
    let net = Nasty::new();
    let parameters = declared(&net);
    let mut states = Named::new();
    for parameter in &parameters {
        let values = initial(&parameter.name, &parameter.shape);
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        if parameter.name == "again.tied" {
            continue;
        }
        if !parameter.name.starts_with("frozen") && !values.is_empty() {
            for kind in ["Momentum", "Variance"] {
                states.insert(
                    format!("{kind}/{}", parameter.name),
                    vec![0.0; values.len()],
                );
            }
        }
        states.insert(format!("Parameter/{}", parameter.name), values);
    }
    let mut norms = Vec::new();
    for step in 0..case.steps {
        let mut gradients = Named::new();
        for m in 0..case.config.accumulate {
            let leaves = net.clone().map(&mut Leaves {
                states: &states,
                path: Vec::new(),
            });
            let ids = case.samples(step, 0, 1, m);
            let batch = Batch::new(&ids, &device, DType::F64, DType::F64);
            let output = leaves.forward(batch.x.clone(), &Plain::training(), 0.0);
            let loss = batch.loss(output, (case.window() * TARGETS as u64) as f64);
            leaves.visit(&mut Collect {
                from: &mut loss.backward(),
                into: &mut gradients,
                path: Vec::new(),
            });
        }
        let squares = gradients.values().flatten().map(|g| g * g);
        let norm = squares.sum::<f64>().sqrt();
        norms.push(norm);
        let clip = (0.5 / (norm + 1e-6)).min(1.0);
        let t = step as i32 + 1;
        for parameter in &parameters {
            let name = &parameter.name;
            let vector = parameter.shape.len() < 2;
            let (lr, decay) = match vector {
                true => (2.0 * case.lr, 0.0),
                false => (case.lr, 0.01),
            };
            let Some(mut m) = states.remove(&format!("Momentum/{name}")) else {
                continue;
            };
            let mut v = states.remove(&format!("Variance/{name}")).expect("as m");
            let values = states.get_mut(&format!("Parameter/{name}"));
            for (i, p) in values.expect("every parameter").iter_mut().enumerate() {
                // What is not used has a gradient of zero.
                let g = gradients.get(name).map_or(0.0, |gradient| gradient[i]) * clip;
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.999 * v[i] + 0.001 * g * g;
                let (m, v) = (
                    m[i] / (1.0 - 0.9f64.powi(t)),
                    v[i] / (1.0 - 0.999f64.powi(t)),
                );
                *p = *p * (1.0 - lr * decay) - lr * m / (v.sqrt() + 1e-8);
            }
            states.insert(format!("Momentum/{name}"), m);
            states.insert(format!("Variance/{name}"), v);
        }
    }
    let running = net.stem.norm.running();
    states.insert("running/mean".into(), running.mean);
    states.insert("running/variance".into(), running.variance);
    (states, norms)
}

/// The name under which the values of a tied parameter stand.
fn owner(path: &[String]) -> String {
    let name = path.join(".");
    match name.as_str() {
        "again.tied" => "mix.weight".into(),
        _ => name,
    }
}

/// Makes every parameter a leaf with the values of the states.
struct Leaves<'a> {
    states: &'a Named,
    path: Vec<String>,
}

impl ModuleMapper for Leaves<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let values = &self.states[&format!("Parameter/{}", owner(&self.path))];
        let data = TensorData::new(values.clone(), param.lazy_shape());
        let device = Device::flex().autodiff();
        let leaf = Tensor::from_data(data, (&device, DType::F64)).require_grad();
        Param::initialized(param.id, leaf)
    }
}

/// Adds up gradients by name.
struct Collect<'a> {
    from: &'a mut Gradients,
    into: &'a mut Named,
    path: Vec<String>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = param.val().grad(self.from) else {
            return;
        };
        if self.path[0] == "frozen" {
            return;
        }
        let gradient: Vec<f64> = gradient.into_data().iter::<f64>().collect();
        let sum = self.into.entry(owner(&self.path));
        let sum = sum.or_insert_with(|| vec![0.0; gradient.len()]);
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
    }
}
