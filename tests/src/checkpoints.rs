//! Checkpoints of other projects: imported as a set has them, and what the net then gives.

use burn::tensor::{Tensor, TensorData};
use terrashard_checkpoint::ForeignFile;
use terrashard_models::{
    HuggingFaceConfig, Import, ModelConfig, Origin, Plain, S2s2Net, Told, assign,
};

use crate::fixture::{Error, Fixture, Result, Tensors, read};
use crate::maps::values;
use crate::training::Run;

/// Roles of files with whose names they have, and the answer that an import as it is gives.
pub const ROLES: [(&str, Origin, &str); 3] = [
    ("hf", Origin::HuggingFace, "hf"),
    ("nvlabs", Origin::Nvlabs, "nvlabs"),
    ("nvlabs_backbone", Origin::Nvlabs, "nvlabs"),
];

/// What the set's net gives with the weights of the file of this role, for every answer of the set: features under
/// `VARIANT/feat0` to `3`, and `VARIANT/logits` if the file has a head. The answer of the file's own project is that of the import as
/// it is; for others the epsilons are set.
///
/// # Errors
/// [`Error::Import`], [`Error::Model`], [`Error::Json`], [`Error::Tensors`].
pub fn observe_import(
    fixture: &Fixture,
    run: Run,
    (role, origin, own): (&str, Origin, &str),
) -> Result<Tensors> {
    let file = ForeignFile::open(fixture.file(role)?)?;
    let told = match origin {
        Origin::HuggingFace => {
            let path = fixture.file("hf_config")?;
            let config: Result<HuggingFaceConfig> = serde_json::from_slice(&read(&path)?)
                .map_err(|source| Error::Json { path, source });
            config?.told()?
        }
        _ => Told::default(),
    };
    let tensors: Vec<(String, Vec<usize>)> = file
        .tensors()
        .map(|(name, shape)| (name.into(), shape.to_vec()))
        .collect();
    let import = Import::new(origin, &tensors, told, None)?;
    let has_head = !import
        .missing
        .iter()
        .any(|name| name.starts_with("tail.head."));
    let input = fixture.stored("in")?;
    let [n, bands, h, w] = input.shape[..] else {
        return Err(Error::Tensors {
            path: fixture.dir.clone(),
            reason: "in is no image".into(),
        });
    };
    let mut seen = Tensors::new();
    for (variant, epsilons) in &fixture.parity.variants {
        let mut config = import.config.clone();
        if variant != own {
            config.layer_norm_eps = epsilons.layer_norm_eps;
            config.embed_norm_eps = epsilons.embed_norm_eps;
            config.attn_norm_eps = epsilons.attn_norm_eps;
        }
        let model = with_weights(&config, &import, &file, run)?;
        let device = run.backend.device();
        let data = TensorData::new(input.values.clone(), [n, bands, h, w]);
        let image = Tensor::<4>::from_data(data, (&device, run.dtype()));
        let maps = model.forward(image, &Plain::inference());
        let prefix = fixture
            .parity
            .prefix
            .get(variant)
            .cloned()
            .unwrap_or_default();
        for (stage, feature) in maps.features.iter().enumerate() {
            seen.insert(format!("{prefix}feat{stage}"), values(feature));
        }
        if has_head {
            seen.insert(format!("{prefix}logits"), values(&maps.head));
        }
    }
    Ok(seen)
}

/// The model with what the import has of it; the rest as it is drawn.
fn with_weights(
    config: &ModelConfig,
    import: &Import,
    file: &ForeignFile,
    run: Run,
) -> Result<S2s2Net> {
    let mut weights = Tensors::new();
    for tensor in &import.tensors {
        let values = tensor.values(|name| file.read(name))?;
        let values = crate::fixture::Values {
            shape: tensor.shape.clone(),
            values: values.into_iter().map(f64::from).collect(),
        };
        weights.insert(tensor.name.clone(), values);
    }
    let model = config.init(&run.backend.device())?.initialize(0);
    let model = assign(model, &mut |name, shape| {
        let values = weights.get(name).map(|values| values.values.clone());
        let values = values.unwrap_or_else(|| vec![0.0; shape.iter().product()]);
        TensorData::new(values, shape.to_vec()).convert_dtype(run.dtype())
    });
    let mut buffers = model.buffers();
    for (name, values) in &mut buffers {
        if let Some(imported) = weights.get(name) {
            values.clone_from(&imported.values);
        }
    }
    model.load_buffers(&buffers)?;
    Ok(model)
}
