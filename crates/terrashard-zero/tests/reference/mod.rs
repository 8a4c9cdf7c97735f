//! What sharded training is compared with.

use std::collections::BTreeMap;

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};
use terrashard_layout::micro_batch;
use terrashard_zero::declared;

use crate::net::{Net, Own, batch, initial, loss};
use crate::{LR, MICRO, Named};

/// The reference: one process, burn's own autodiff on burn's own parameters, AdamW written out on vectors of doubles.
pub(crate) fn reference(ranks: usize, accumulate: usize, steps: u64) -> (Named, Vec<f64>) {
    let device = Device::flex().autodiff();
    let mut net = Net::new();
    let leaf = |values: &[f64], shape: &[usize]| -> TensorData {
        TensorData::new(values.to_vec(), shape.to_vec())
    };
    let parameters = declared(&net);
    let mut states: Named = BTreeMap::new();
    for parameter in parameters
        .iter()
        .filter(|parameter| parameter.name != "tied")
    {
        let values: Vec<f64> = initial(&parameter.name, &parameter.shape)
            .into_iter()
            .map(f64::from)
            .collect();
        if !["nothing", "frozen"].contains(&parameter.name.as_str()) {
            states.insert(format!("m/{}", parameter.name), vec![0.0; values.len()]);
            states.insert(format!("v/{}", parameter.name), vec![0.0; values.len()]);
        }
        states.insert(parameter.name.clone(), values);
    }
    let window = (ranks * accumulate * MICRO) as u64;
    let mut norms = Vec::new();
    for step in 0..steps {
        let matrix = |states: &Named, name: &str, shape: &[usize]| {
            let tensor = Tensor::<2>::from_data(leaf(&states[name], shape), (&device, DType::F64));
            tensor.require_grad()
        };
        let vector = |states: &Named, name: &str| {
            let values = &states[name];
            Tensor::<1>::from_data(leaf(values, &[values.len()]), (&device, DType::F64))
                .require_grad()
        };
        let put2 =
            |param: &mut Param<Tensor<2>>, tensor| *param = Param::initialized(param.id, tensor);
        let put1 =
            |param: &mut Param<Tensor<1>>, tensor| *param = Param::initialized(param.id, tensor);
        put2(
            &mut net.input.weight,
            matrix(&states, "input.weight", &[5, 7]),
        );
        put1(&mut net.input.bias, vector(&states, "input.bias"));
        put2(
            &mut net.hidden.weight,
            matrix(&states, "hidden.weight", &[7, 7]),
        );
        net.tied = net.hidden.weight.clone();
        put1(&mut net.hidden.bias, vector(&states, "hidden.bias"));
        put1(&mut net.gain, vector(&states, "gain"));
        put2(&mut net.frozen, matrix(&states, "frozen", &[7, 7]));
        put2(
            &mut net.output.weight,
            matrix(&states, "output.weight", &[7, 3]),
        );
        put1(&mut net.output.bias, vector(&states, "output.bias"));
        let mut gradients: Named = states
            .iter()
            .filter(|(name, _)| states.contains_key(&format!("m/{name}")))
            .map(|(name, values)| (name.clone(), vec![0.0; values.len()]))
            .collect();
        for rank in 0..ranks {
            for m in 0..accumulate {
                let samples = micro_batch(step * window, rank, ranks, MICRO, accumulate, m);
                let (x, target) = batch(samples, &device, DType::F64);
                let grads = loss(&net, &Own, x, target, (window * 3) as f64).backward();
                let mut add = |name: &str, grad: TensorData| {
                    let grad = grad.try_to_vec::<f64>().unwrap();
                    let sum = gradients.get_mut(name).unwrap();
                    sum.iter_mut()
                        .zip(grad)
                        .for_each(|(sum, grad)| *sum += grad);
                };
                for (name, param) in [
                    ("input.weight", &net.input.weight),
                    ("hidden.weight", &net.hidden.weight),
                    ("output.weight", &net.output.weight),
                ] {
                    add(name, param.val().grad(&grads).unwrap().into_data());
                }
                for (name, param) in [
                    ("input.bias", &net.input.bias),
                    ("hidden.bias", &net.hidden.bias),
                    ("gain", &net.gain),
                    ("output.bias", &net.output.bias),
                ] {
                    add(name, param.val().grad(&grads).unwrap().into_data());
                }
            }
        }
        let norm = gradients
            .values()
            .flatten()
            .map(|g| g * g)
            .sum::<f64>()
            .sqrt();
        norms.push(norm);
        let clip = (0.05 / (norm + 1e-6)).min(1.0);
        let t = step as i32 + 1;
        for (name, gradient) in gradients {
            let vector = parameters
                .iter()
                .find(|p| p.name == name)
                .unwrap()
                .shape
                .len()
                < 2;
            let (lr, decay) = if vector { (2.0 * LR, 0.0) } else { (LR, 0.01) };
            for (i, g) in gradient.into_iter().enumerate() {
                let g = g * clip;
                let m = &mut states.get_mut(&format!("m/{name}")).unwrap()[i];
                *m = 0.9 * *m + 0.1 * g;
                let m = *m / (1.0 - 0.9f64.powi(t));
                let v = &mut states.get_mut(&format!("v/{name}")).unwrap()[i];
                *v = 0.999 * *v + 0.001 * g * g;
                let v = *v / (1.0 - 0.999f64.powi(t));
                let p = &mut states.get_mut(&name).unwrap()[i];
                *p = *p * (1.0 - lr * decay) - lr * m / (v.sqrt() + 1e-8);
            }
        }
    }
    (states, norms)
}
