//! Forward, losses and gradients against the reference sets in `tests/fixtures`, in `f64` and in `f32`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../tests/src/hash.rs"]
#[expect(unreachable_pub, reason = "the module is public where it belongs")]
mod hash;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use terrashard_models::{
    Labels, Loss, Maps, ModelConfig, Normalizers, Plain, S2s2Net, Targets, assign,
};
use terrashard_ops::similarity;

type Values = BTreeMap<String, Vec<f64>>;

struct Set {
    description: Value,
    initial: Values,
    expected: Values,
}

impl Set {
    fn open(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures")
            .join(name);
        let text = std::fs::read_to_string(folder.join("parity.json")).unwrap();
        let description: Value = serde_json::from_str(&text).unwrap();
        let read = |role: &str| {
            read(&std::fs::read(folder.join(description["files"][role].as_str().unwrap())).unwrap())
        };
        Self {
            initial: read("common"),
            expected: read("expected"),
            description,
        }
    }

    fn config(&self) -> ModelConfig {
        let keys = [
            "dims",
            "depths",
            "heads",
            "sr_ratios",
            "patch",
            "stride",
            "mlp_ratio",
            "bands",
            "layer_norm_eps",
            "head_channels",
            "head_norm",
            "activation",
        ];
        let table: serde_json::Map<_, _> = keys
            .iter()
            .map(|key| ((*key).into(), self.description[key].clone()))
            .collect();
        serde_json::from_value(Value::Object(table)).unwrap()
    }

    fn model(&self, dtype: DType, device: &Device) -> S2s2Net {
        assign(self.config().init(device).unwrap(), &mut |name, shape| {
            let values = &self.initial[&format!("init/{name}")];
            let hashed: Vec<f64> = hash::initial(name, shape)
                .into_iter()
                .map(f64::from)
                .collect();
            assert_eq!(*values, hashed, "{name} follows from its name");
            TensorData::new(values.clone(), shape.to_vec()).convert_dtype(dtype)
        })
    }
}

fn read(bytes: &[u8]) -> Values {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    let values = |name: &str| -> Vec<f64> {
        let tensor = tensors.tensor(name).unwrap();
        let data = tensor.data();
        match tensor.dtype() {
            safetensors::Dtype::F32 => data
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()).into())
                .collect(),
            safetensors::Dtype::F64 => data
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            safetensors::Dtype::U8 => data.iter().map(|b| f64::from(*b)).collect(),
            other => panic!("{name} has the unexpected type {other:?}"),
        }
    };
    tensors
        .names()
        .into_iter()
        .map(|name| (name.to_string(), values(name)))
        .collect()
}

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The gradients of all parameters by name.
struct Collect<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: Values,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        let gradient = parameter
            .val()
            .grad(self.gradients)
            .unwrap_or_else(|| panic!("{name} has a gradient"));
        assert_eq!(gradient.shape(), parameter.lazy_shape(), "{name}");
        self.found.insert(format!("grad/{name}"), host(gradient));
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}

/// Everything that the set has a value for and that one pass gives.
fn run(set: &Set, dtype: DType) -> Values {
    let device = Device::flex().autodiff();
    let model = set.model(dtype, &device);
    let size = set.description["size"].as_u64().unwrap() as usize;
    let batch = hash::batch(size, 0..2);
    let float = |values: Vec<f32>, shape: [usize; 4]| {
        Tensor::<4>::from_data(TensorData::new(values, shape), (&device, dtype))
    };
    let targets = Targets {
        labels: Labels::new(batch.mask, [2, 5 * size, 5 * size], &device),
        superres: Some(float(batch.hres, [2, 4, 5 * size, 5 * size]).into()),
    };
    let scope = Plain::training();
    let maps = model.forward(float(batch.image, [2, 6, size, size]), &scope);
    let losses = Loss::Focal.of(&maps, &targets, &Normalizers::of(&targets), &scope);
    let mut found = outputs(&maps);
    let terms = [
        &losses.total,
        losses.affinity.as_ref().unwrap(),
        &losses.segmentation,
        losses.l1.as_ref().unwrap(),
    ];
    found.insert(
        "loss".into(),
        terms
            .iter()
            .flat_map(|term| host((*term).clone()))
            .collect(),
    );
    let gradients = losses.total.backward();
    let mut collect = Collect {
        gradients: &gradients,
        path: Vec::new(),
        found,
    };
    model.visit(&mut collect);
    let mut found = collect.found;
    found.extend(
        model
            .buffers()
            .into_iter()
            .map(|(name, values)| (format!("step1/{name}"), values)),
    );
    found
}

fn outputs(maps: &Maps) -> Values {
    let every = |map: &Tensor<4>, step: isize| {
        host(
            map.clone()
                .slice(burn::tensor::s![.., .., ..;step, ..;step]),
        )
    };
    let sr_low = maps.sr_low.clone().unwrap();
    let [seg, sr] =
        [Some(&maps.segmentation), maps.superres.as_ref()].map(|map| map.unwrap().clone().pixels());
    let mut found = Values::new();
    for (i, feature) in maps.features.iter().enumerate() {
        found.insert(format!("out/feat{i}"), host(feature.clone()));
    }
    for (name, map) in [
        ("head", &maps.head),
        ("seg_low", &maps.seg_low),
        ("sr_low", &sr_low),
    ] {
        found.insert(format!("out/{name}"), host(map.clone()));
    }
    for (name, map) in [("seg", &seg), ("sr", &sr)] {
        found.insert(format!("out/{name}"), host(map.clone()));
        for step in [3, 11] {
            found.insert(format!("out/{name}_every{step}"), every(map, step));
        }
        let wide = map.clone().cast(DType::F64);
        found.insert(
            format!("out/{name}_sum"),
            host(wide.clone().sum_dims(&[2, 3])),
        );
        found.insert(
            format!("out/{name}_sumsq"),
            host(wide.powi_scalar(2).sum_dims(&[2, 3])),
        );
    }
    found.insert(
        "out/seg_sim".into(),
        host(similarity(maps.seg_low.clone(), 8)),
    );
    found.insert("out/sr_sim".into(), host(similarity(sr_low, 8)));
    found
}

/// What an element or a tensor may differ by.
struct Allowed<'a> {
    set: &'a Value,
    exact: Option<f64>,
}

impl Allowed<'_> {
    fn relative(&self, group: &str, name: &str) -> f64 {
        let group = &self.set["tolerance"]["groups"][group];
        let own = group["tensors"][name]
            .as_f64()
            .or_else(|| group["each"].as_f64());
        self.exact.unwrap_or_else(|| own.unwrap())
    }

    fn zero(&self, group: &str) -> f64 {
        self.exact.map_or_else(
            || {
                self.set["zero_gradient"]["allowance"][group]
                    .as_f64()
                    .unwrap()
            },
            |_| 1e-15,
        )
    }
}

fn check(set: &str, dtype: DType, exact: Option<f64>) {
    let set = Set::open(set);
    let found = run(&set, dtype);
    let allowed = Allowed {
        set: &set.description,
        exact,
    };
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (key, expected) in &set.expected {
        let (group, name) = match key.split_once('/') {
            Some(("out", _)) | None => (key.as_str(), ""),
            Some((group, name)) => (group, name),
        };
        let running = name.contains("running_");
        if !(group.starts_with("out/")
            || group == "loss"
            || group == "grad"
            || group == "step1" && running)
        {
            continue;
        }
        let group = if running { "step1:running" } else { group };
        let Some(got) = found.get(key) else {
            panic!("nothing to compare with {key}")
        };
        // The loss of later steps follows from the optimiser.
        let expected = if group == "loss" {
            &expected[..got.len()]
        } else {
            expected
        };
        assert_eq!(got.len(), expected.len(), "{key}");
        let zero = set.description["zero_gradient"]["elements"][name]
            .as_array()
            .filter(|_| group == "grad");
        let zero = zero.map_or(0..0, |range| {
            range[0].as_u64().unwrap() as usize..range[1].as_u64().unwrap() as usize
        });
        let (mut difference, mut norm) = (0f64, 0f64);
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            if zero.contains(&i) {
                if (got - expected).abs() > allowed.zero(group) {
                    wrong.push(format!("{key}[{i}] should be 0 and is {got:e}"));
                }
            } else {
                difference += (got - expected).powi(2);
                norm += expected.powi(2);
            }
        }
        compared += 1;
        let relative = (difference / norm.max(f64::MIN_POSITIVE)).sqrt();
        let within = relative <= allowed.relative(group, name);
        if norm > 0.0 && !within {
            wrong.push(format!(
                "{key}: {relative:.2e} instead of at most {:.2e}",
                allowed.relative(group, name)
            ));
        }
    }
    assert!(compared > 100, "only {compared} tensors compared");
    assert!(
        wrong.is_empty(),
        "{} of {compared} tensors:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn both_branches_with_batch_norm_in_f64() {
    check("dual", DType::F64, Some(1e-9));
}

#[test]
fn both_branches_with_batch_norm_in_f32() {
    check("dual", DType::F32, None);
}

#[test]
fn both_branches_without_batch_norm_in_f64() {
    check("dual_nobn", DType::F64, Some(1e-9));
}

#[test]
fn both_branches_without_batch_norm_in_f32() {
    check("dual_nobn", DType::F32, None);
}
