//! `import`: a checkpoint of another project as a model file.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, json};
use terrashard_checkpoint::{
    ElementType, ForeignFile, Kind, ModelDescription, ModelFile, Source, TensorSpec,
};
use terrashard_models::{HuggingFaceConfig, Import, ModelConfig, Origin, Told};

use crate::config::{self, Band, DataSection};
use crate::error::{Error, Result};
use crate::output_file;
use crate::record::counted;
use crate::trained_model::THRESHOLD;
use crate::training::TOOL;

/// What `import` needs.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// By whose names its tensors are called.
    pub origin: Origin,
    /// The checkpoint: a file, or a folder as transformers saves it.
    pub source: PathBuf,
    /// The model file.
    pub output: PathBuf,
    /// Bands of the model, if others than the source's.
    pub bands: Option<usize>,
    /// Whether a part of an encoder will do.
    pub allow_partial: bool,
}

/// What was imported: what `import --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Imported {
    /// The model file.
    pub file: PathBuf,
    /// By whose names it was read.
    pub origin: Origin,
    /// The model that the source makes, as `[model]`.
    pub model: ModelConfig,
    /// How the first layer was brought to another number of bands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bands: Option<String>,
    /// Tensors of the model that the file has.
    pub matched: Vec<String>,
    /// Tensors of the model that the source lacks.
    pub missing: Vec<String>,
    /// Tensors of the source that the model has no place for.
    pub unexpected: Vec<String>,
    /// What was imported and is hardly meant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Writes what a checkpoint of another project has of a model as a model file, which `train.init` takes, and `test` and `predict`
/// too if nothing is missing.
///
/// # Errors
/// [`Error::Checkpoint`] and [`Error::Read`] for the source, [`Error::Import`] if its tensors are not of this origin or make no model,
/// [`Error::PartialEncoder`], [`Error::InvalidValue`] if the output is what is read, [`Error::Save`].
pub fn import(options: &ImportOptions) -> Result<Imported> {
    let ImportOptions {
        origin,
        source,
        output,
        bands,
        allow_partial,
    } = options;
    let (weights, told) = match origin {
        Origin::HuggingFace => hugging_face(source)?,
        _ => (source.clone(), Told::default()),
    };
    output_file::check("--output", output, [weights.as_path()])?;
    if *bands == Some(0) {
        return Err(Error::invalid("--bands", 0, "at least 1"));
    }
    let file = ForeignFile::open(&weights)?;
    let tensors: Vec<(String, Vec<usize>)> = file
        .tensors()
        .map(|(name, shape)| (name.to_owned(), shape.to_vec()))
        .collect();
    let described = match origin {
        Origin::Safetensors => describe(&weights)?,
        _ => None,
    };
    let import = match &described {
        Some(described) => Import::described(described.model.clone(), &tensors, *bands),
        None => Import::new(*origin, &tensors, told, *bands),
    };
    let import = import.map_err(|source| Error::Import {
        path: weights.clone(),
        source,
    })?;
    let lacking: Vec<&str> = import.missing_of_encoder().collect();
    if let (Some(first), false) = (lacking.first(), allow_partial) {
        return Err(Error::PartialEncoder {
            path: weights,
            missing: (*first).into(),
            others: lacking.len() - 1,
        });
    }
    let not_finite = write(&import, &file, described.as_ref(), output)?;
    let warnings = not_finite.into_iter().map(|(name, count)| {
        let are = if count == 1 { "is" } else { "are" };
        let values = counted(count, "value");
        format!("tensor `{name}` of the source has {values} that {are} NaN or infinite")
    });
    Ok(Imported {
        warnings: warnings.collect(),
        file: output.clone(),
        origin: *origin,
        bands: import.widened().map(|(from, to)| {
            format!("{from} to {to}: each has the mean of the source's kernels, times {from}/{to}")
        }),
        matched: import
            .tensors
            .iter()
            .map(|tensor| tensor.name.clone())
            .collect(),
        model: import.config,
        missing: import.missing,
        unexpected: import.unexpected,
    })
}

/// The weights of what transformers saved, and what its configuration tells of the model.
fn hugging_face(source: &Path) -> Result<(PathBuf, Told)> {
    // Before anything in it is looked for: what was given is named, not what would lie there.
    let kind = std::fs::metadata(source).map_err(Error::read(source))?;
    let (folder, weights) = match kind.is_dir() {
        true => {
            let names = ["model.safetensors", "pytorch_model.bin"].map(|name| source.join(name));
            let [first, second] = names;
            let weights = match first.is_file() || !second.is_file() {
                true => first,
                false => second,
            };
            (source.to_path_buf(), weights)
        }
        false => {
            let folder = source.parent().unwrap_or(Path::new("")).to_path_buf();
            (folder, source.to_path_buf())
        }
    };
    let path = folder.join("config.json");
    let text = config::file::text(&path)?;
    let config: HuggingFaceConfig = serde_json::from_str(&text).map_err(|error| Error::Syntax {
        path,
        message: error.to_string(),
    })?;
    Ok((weights, config.told()?))
}

/// A file that says which model it holds, as `export` writes it.
struct Described {
    source: Source,
    description: ModelDescription,
    model: ModelConfig,
}

/// What a file says of its model; none for one that says nothing.
fn describe(path: &Path) -> Result<Option<Described>> {
    let file = match ModelFile::open(path) {
        Ok(file) => file,
        Err(
            terrashard_checkpoint::Error::NotAModel {
                key: ModelFile::MARK,
                ..
            }
            | terrashard_checkpoint::Error::Header { .. },
        ) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Its values are read below as those of any file, which have no hashes.
    file.verify()?;
    let description = file.description().clone();
    let model = serde_json::from_value(description.architecture.clone());
    let model = model.map_err(|error| Error::Syntax {
        path: path.into(),
        message: error.to_string(),
    })?;
    Ok(Some(Described {
        source: Source::Model(file),
        description,
        model,
    }))
}

/// Writes the model file. Tells by name which tensors of the source have values that are no finite `f32`, and how many.
fn write(
    import: &Import,
    file: &ForeignFile,
    described: Option<&Described>,
    output: &Path,
) -> Result<BTreeMap<String, usize>> {
    let specs: Vec<TensorSpec> = import
        .tensors
        .iter()
        .map(|tensor| {
            let (kind, dtype) = match tensor.is_parameter {
                true => (Kind::Parameter, ElementType::F32),
                false => (Kind::Buffer, ElementType::F64),
            };
            TensorSpec::new(tensor.name.clone(), kind, tensor.shape.clone(), dtype)
        })
        .collect();
    let tensors: BTreeMap<&str, _> = import
        .tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let not_finite = RefCell::new(BTreeMap::new());
    let inspect = |name: &str, count: usize| {
        if count > 0 {
            not_finite.borrow_mut().insert(name.to_owned(), count);
        }
    };
    let read = |name: &str| {
        let values = file.read(name)?;
        let unusual = values.iter().filter(|value| !value.is_finite());
        inspect(name, unusual.count());
        Ok(values)
    };
    let fetch = |spec: &TensorSpec| -> Result<Cow<'static, [u8]>, terrashard_checkpoint::Error> {
        let tensor = tensors[spec.name.as_str()];
        let bytes: Vec<u8> = match (spec.dtype, described) {
            // As they are, where the file's own type is known.
            (ElementType::F64, Some(described)) => {
                let source = &described.source;
                let values = source.read_f64(&spec.name, spec.kind, 0..spec.numel())?;
                let unusual = values.iter().filter(|value| !value.is_finite());
                inspect(&spec.name, unusual.count());
                values.into_iter().flat_map(f64::to_le_bytes).collect()
            }
            (ElementType::F64, None) => {
                let values = tensor.values(read)?.into_iter();
                values
                    .flat_map(|value| f64::from(value).to_le_bytes())
                    .collect()
            }
            _ => {
                let values = tensor.values(read)?;
                values.into_iter().flat_map(f32::to_le_bytes).collect()
            }
        };
        Ok(bytes.into())
    };
    let description = match described {
        // Its bands are those of the model, unless others are wanted.
        Some(described) if import.widened().is_none() => described.description.clone(),
        _ => description(&import.config),
    };
    ModelFile::write(output, &description, &specs, fetch).map_err(Error::save)?;
    Ok(not_finite.into_inner())
}

/// What the file says of the model. The source says nothing of its input: bands are taken in the order of the image, and all else is what
/// a configuration has by default.
fn description(model: &ModelConfig) -> ModelDescription {
    let data = DataSection::default();
    let bands: Vec<Band> = (1..=model.bands).map(Band::Number).collect();
    let values = [
        ("bands", json!(bands)),
        ("nodata", json!(data.nodata)),
        ("tile", json!(data.tile())),
        ("overlap", json!(data.overlap)),
        ("step", json!(null)),
    ];
    ModelDescription {
        architecture: json!(model),
        bands: bands.iter().map(Band::to_string).collect(),
        scaling: json!(data.scaling),
        threshold: Some(THRESHOLD),
        tool: TOOL.into(),
        values: values
            .map(|(key, value)| (key.to_string(), value))
            .into_iter()
            .collect::<Map<_, _>>(),
    }
}
