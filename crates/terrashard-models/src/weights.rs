//! The parameters of a model by name: their list, their initial values, their replacement.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use terrashard_ops::Initial;

/// Initial values as SegFormer has them: normal with deviation 0.02, cut at two of them, for linear layers; normal with
/// deviation sqrt(2 / fan-out), cut likewise, for convolutions; ones for the weights of norms; zeros for biases.
///
/// They follow from name, shape and seed alone.
pub fn initial_value(name: &str, shape: &[usize], seed: u64) -> Vec<f32> {
    let initial = match shape {
        _ if name.ends_with("bias") => Initial::Zeros,
        [_] => Initial::Ones,
        [outputs, _, height, width] => {
            // The only grouped convolutions are the depthwise ones of the feed-forward parts.
            let outputs = if name.contains(".dw.") { 1 } else { *outputs };
            Initial::Normal {
                deviation: (2.0 / (height * width * outputs) as f64).sqrt(),
            }
        }
        _ => Initial::Normal { deviation: 0.02 },
    };
    initial.values(name, shape.iter().product(), seed)
}

/// Names and shapes of a module's parameters in declared order. Initialises nothing.
pub fn parameters(module: &impl Module) -> Vec<(String, Vec<usize>)> {
    let mut list = List::default();
    module.visit(&mut list);
    list.found
}

/// The module with every parameter replaced by what `value` gives for its name and shape, in the type of the data.
/// Initialises nothing.
pub fn assign<M: Module>(module: M, value: &mut dyn FnMut(&str, &[usize]) -> TensorData) -> M {
    module.map(&mut Assign {
        path: Vec::new(),
        value,
    })
}

#[derive(Default)]
struct List {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for List {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.found
            .push((self.path.join("."), parameter.lazy_shape().to_vec()));
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}

struct Assign<'a> {
    path: Vec<String>,
    value: &'a mut dyn FnMut(&str, &[usize]) -> TensorData,
}

impl ModuleMapper for Assign<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape = parameter.lazy_shape();
        let data = (self.value)(&self.path.join("."), shape.as_slice());
        let device = parameter.lazy_device();
        let dtype = data.dtype();
        let tensor = Tensor::from_data(data, (&device, dtype));
        let tensor = if device.is_autodiff() {
            tensor.require_grad()
        } else {
            tensor
        };
        Param::initialized(parameter.id, tensor)
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}
