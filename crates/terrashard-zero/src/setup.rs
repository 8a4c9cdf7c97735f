//! What happens once, at the start: the rows of the table, the comparison between ranks, the first values.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_collectives::Communicator;
use terrashard_layout::{ParameterSpec, ShardTable};

use crate::config::ZeroConfig;
use crate::error::{Error, Result};
use crate::parameters::{Declared, values};
use crate::zero_optimizer::read_f64;

/// Where parameters get their first values.
pub enum Initial<'a> {
    /// From the module, which burn initialises; rank 0's values are broadcast.
    Module,
    /// From a function of name and shape that gives the same values on every rank, in row-major order.
    Keyed(&'a dyn Fn(&str, &[usize]) -> Vec<f32>),
}

/// The rows of the table: tied parameters are those that share one burn parameter.
pub(crate) fn specs(parameters: &[Declared], config: &ZeroConfig) -> Vec<ParameterSpec> {
    let mut first: HashMap<ParamId, &str> = HashMap::new();
    let spec = |parameter: &'_ Declared, tied_to: Option<String>| {
        let group = config.group_of(
            tied_to.as_deref().unwrap_or(&parameter.name),
            &parameter.shape,
        );
        ParameterSpec {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            dtype: config.dtype,
            group,
            trainable: !config.group(group).frozen,
            tied_to,
        }
    };
    let mut specs = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let tied_to = first.get(&parameter.id).map(ToString::to_string);
        first.entry(parameter.id).or_insert(&parameter.name);
        specs.push(spec(parameter, tied_to));
    }
    specs
}

/// Compares the table's hash with rank 0's.
pub(crate) fn compare_tables(
    table: &ShardTable,
    communicator: &dyn Communicator,
    device: &Device,
) -> Result<()> {
    // Sixteen bits at a time are exact in any float type that is reduced.
    let hash = table.hash();
    let parts: Vec<f64> = (0..4)
        .map(|part| ((hash >> (16 * part)) & 0xffff) as f64)
        .collect();
    let tensor = Tensor::<1>::from_data(TensorData::from(parts.as_slice()), (device, DType::F64));
    let all = read_f64(communicator.all_gather(tensor)?.wait()?)?;
    match all.chunks(4).position(|parts| parts != &all[..4]) {
        Some(rank) => Err(Error::TableMismatch { rank }),
        None => Ok(()),
    }
}

/// The first values of all parameters, flat, in declared order.
pub(crate) fn initial_values<M: Module>(
    module: &M,
    parameters: &[Declared],
    initial: &Initial<'_>,
    element: DType,
    device: &Device,
) -> Result<Vec<Tensor<1>>> {
    let flat = |name: &str, shape: &[usize], data: TensorData| {
        let expected: usize = shape.iter().product();
        let got = data.num_elements();
        if got != expected {
            return Err(Error::InitialLength {
                name: name.into(),
                expected,
                got,
            });
        }
        let (bytes, _, dtype) = data.into_parts();
        Ok(Tensor::from_data(
            TensorData::from_bytes(bytes, [got], dtype),
            (device, element),
        ))
    };
    match initial {
        Initial::Keyed(function) => {
            let data = parameters.iter().map(|parameter| {
                let values = function(&parameter.name, &parameter.shape);
                flat(
                    &parameter.name,
                    &parameter.shape,
                    TensorData::from(values.as_slice()),
                )
            });
            data.collect()
        }
        Initial::Module => {
            let values = values(module);
            let pairs = parameters.iter().zip(values);
            pairs
                .map(|(parameter, data)| flat(&parameter.name, &parameter.shape, data))
                .collect()
        }
    }
}
