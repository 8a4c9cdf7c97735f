//! The parameters of a burn module: their names, in the order in which the module declares them, and modules whose
//! parameters are replaced.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Tensor, TensorData};

use terrashard_layout::ElementType;

/// One float parameter of a module, read without initialising it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Path of field names, joined by dots: `stages.0.embed.weight`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    pub(crate) id: ParamId,
}

/// The float parameters of `module` in declared order. Nothing is initialised or allocated.
pub fn declared<M: Module>(module: &M) -> Vec<Declared> {
    struct Names {
        path: Vec<String>,
        found: Vec<Declared>,
    }
    impl ModuleVisitor for Names {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_string());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.found.push(Declared {
                name: self.path.join("."),
                shape: param.lazy_shape().to_vec(),
                id: param.id,
            });
        }
    }
    let mut names = Names {
        path: Vec::new(),
        found: Vec::new(),
    };
    module.visit(&mut names);
    names.found
}

/// The identities of the float parameters of `module` in declared order: [`declared`] without names, for every use of a block.
pub(crate) fn identities<M: Module>(module: &M) -> Vec<ParamId> {
    struct Identities(Vec<ParamId>);
    impl ModuleVisitor for Identities {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.id);
        }
    }
    let mut identities = Identities(Vec::new());
    module.visit(&mut identities);
    identities.0
}

/// The values of the parameters of `module`, initialised by burn where they are not yet.
pub(crate) fn values<M: Module>(module: &M) -> Vec<TensorData> {
    struct Values(Vec<TensorData>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let value = if value.device().is_autodiff() {
                value.inner()
            } else {
                value
            };
            self.0.push(value.into_data());
        }
    }
    let mut values = Values(Vec::new());
    module.visit(&mut values);
    values.0
}

/// Gives what takes a parameter's place.
pub(crate) trait Replace {
    /// The parameter instead of `id` of shape `shape`, or `None` to keep the module's own.
    fn parameter<const D: usize>(
        &mut self,
        id: ParamId,
        shape: &[usize],
    ) -> Option<Param<Tensor<D>>>;
}

/// `module` with its float parameters replaced. The module's own values are not touched.
pub(crate) fn replaced<M: Module, R: Replace>(module: &M, replace: &mut R) -> M {
    struct Mapper<'a, R>(&'a mut R);
    impl<R: Replace> ModuleMapper for Mapper<'_, R> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let replaced = self.0.parameter(param.id, &param.lazy_shape().to_vec());
            replaced.unwrap_or(param)
        }
    }
    module.clone().map(&mut Mapper(replace))
}

/// burn's name of an element type.
pub(crate) fn dtype(element: ElementType) -> DType {
    match element {
        ElementType::F32 => DType::F32,
        ElementType::F64 => DType::F64,
        ElementType::Bf16 => DType::BF16,
        ElementType::F16 => DType::F16,
    }
}

/// The layout's name of an element type of states: those of master weights.
pub(crate) fn element(dtype: DType) -> ElementType {
    match dtype {
        DType::F64 => ElementType::F64,
        DType::BF16 => ElementType::Bf16,
        DType::F16 => ElementType::F16,
        _ => ElementType::F32,
    }
}
