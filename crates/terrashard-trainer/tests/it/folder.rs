//! A folder with a model that is made here, and scenes for it.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burn::tensor::Device;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use terrashard_checkpoint::{ElementType, Kind, ModelDescription, ModelFile, TensorSpec};
use terrashard_models::{HeadNorm, ModelConfig, initial_value, parameters};
use terrashard_raster::{
    GeoTiffSink, Georeference, Raster, RasterSink, RasterSource, RasterSpec, Samples, Transform,
    Window,
};

pub(crate) const SCALE: usize = 5;
pub(crate) const GROUND: Transform = Transform {
    a: 10.0,
    b: 0.0,
    c: 399_960.1,
    d: 0.0,
    e: -10.0,
    f: 5_800_020.3,
};

/// A model that is small enough for whole scenes in a test.
pub(crate) fn small(bands: usize) -> ModelConfig {
    ModelConfig {
        dims: [4; 4],
        depths: [1; 4],
        heads: [1; 4],
        mlp_ratio: 2,
        head_channels: 4,
        head_outputs: 4,
        head_norm: HeadNorm::None,
        superres: false,
        bands,
        ..ModelConfig::b0()
    }
}

/// A folder with a model and scenes.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a model whose initial values `change` may change, to be used with windows of `tile` and `overlap` pixels.
    pub(crate) fn model(
        &self,
        config: &ModelConfig,
        (tile, overlap): (usize, usize),
        change: impl Fn(&str, &mut [f32]),
    ) {
        let network = config.init(&Device::flex()).unwrap();
        let buffers = network.buffers();
        let parameter = |(name, shape): (String, Vec<usize>)| {
            TensorSpec::new(name, Kind::Parameter, shape, ElementType::F32)
        };
        let buffer = |(name, values): &(String, Vec<f64>)| {
            TensorSpec::new(
                name.clone(),
                Kind::Buffer,
                vec![values.len()],
                ElementType::F64,
            )
        };
        let specs: Vec<TensorSpec> = parameters(&network)
            .into_iter()
            .map(parameter)
            .chain(buffers.iter().map(buffer))
            .collect();
        let fetch =
            |spec: &TensorSpec| -> Result<Cow<'static, [u8]>, terrashard_checkpoint::Error> {
                if let Some((_, values)) = buffers.iter().find(|(name, _)| *name == spec.name) {
                    return Ok(values
                        .iter()
                        .flat_map(|v| v.to_le_bytes())
                        .collect::<Vec<_>>()
                        .into());
                }
                let mut values = initial_value(&spec.name, &spec.shape, 3);
                change(&spec.name, &mut values);
                Ok(values
                    .iter()
                    .flat_map(|v| v.to_le_bytes())
                    .collect::<Vec<_>>()
                    .into())
            };
        let values = [
            ("bands", json!((1..=config.bands).collect::<Vec<_>>())),
            ("nodata", Value::Null),
            ("tile", json!(tile)),
            ("overlap", json!(overlap)),
            ("step", Value::Null),
            ("highres", json!({ "bands": ["B04", "B03", "B02", "B08"] })),
        ];
        let description = ModelDescription {
            architecture: json!(config),
            bands: (1..=config.bands).map(|band| band.to_string()).collect(),
            scaling: json!({ "offset": 0.0, "scale": 1e-4 }),
            threshold: Some(0.5),
            tool: "test".into(),
            values: values
                .map(|(key, value)| (key.to_string(), value))
                .into_iter()
                .collect::<Map<_, _>>(),
        };
        ModelFile::write(self.path("model.safetensors"), &description, &specs, fetch).unwrap();
    }

    /// Writes an image of two bands whose corner lies at a pixel of the others.
    pub(crate) fn image_at(
        &self,
        name: &str,
        (column, row): (usize, usize),
        size: (usize, usize),
        value: impl Fn(usize, usize, usize) -> u16,
    ) {
        self.write(name, GROUND.offset(column, row), size, 2, None, value);
    }

    /// Writes an image whose digital numbers are `value(band, column, row)`.
    pub(crate) fn image(
        &self,
        name: &str,
        size: (usize, usize),
        bands: usize,
        nodata: Option<f64>,
        value: impl Fn(usize, usize, usize) -> u16,
    ) {
        self.write(name, GROUND, size, bands, nodata, value);
    }

    fn write(
        &self,
        name: &str,
        ground: Transform,
        (width, height): (usize, usize),
        bands: usize,
        nodata: Option<f64>,
        value: impl Fn(usize, usize, usize) -> u16,
    ) {
        let pixels = |band| (0..width * height).map(move |at| (band, at % width, at / width));
        let samples = (0..bands).flat_map(pixels).map(|(b, x, y)| value(b, x, y));
        let spec = RasterSpec {
            nodata,
            ..RasterSpec::new(width, height, bands, terrashard_raster::DataType::U16)
                .georeference(Georeference {
                    epsg: Some(32633),
                    transform: Some(ground),
                })
                .tile(128)
        };
        let mut sink: Box<dyn RasterSink> =
            Box::new(GeoTiffSink::create(self.path(name), spec).unwrap());
        let samples = Samples::U16(samples.collect());
        let window = Window::new(0, 0, width, height);
        sink.write(&Raster::new(window, bands, samples).unwrap())
            .unwrap();
        sink.finish().unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_terrashard")));
        let predict = [
            "predict",
            "--checkpoint",
            "model.safetensors",
            "--quiet",
            "--json",
        ];
        command
            .args(predict)
            .args(arguments)
            .current_dir(self.0.path());
        command
    }

    /// Predicts, and gives what is printed and what is told.
    #[track_caller]
    pub(crate) fn predict(&self, arguments: &[&str]) -> (Value, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(arguments).output().unwrap();
        let told = String::from_utf8(stderr).unwrap();
        assert!(status.success(), "{told}");
        (serde_json::from_slice(&stdout).unwrap(), told)
    }

    pub(crate) fn whole(&self, name: &str) -> Raster {
        let source = terrashard_raster::open(self.path(name)).unwrap();
        source.read_window(source.metadata().window()).unwrap()
    }
}

/// Digital numbers that differ from pixel to pixel and have shapes of some size.
pub(crate) fn pattern(band: usize, x: usize, y: usize) -> u16 {
    let wave = |v: usize, length: f64| (v as f64 / length).sin();
    let shapes = wave(x + 9 * band, 13.0) * wave(y, 17.0) + wave(x + y, 5.0);
    (2500.0 + 900.0 * shapes) as u16 + (x * 37 + y * 91 + band * 13) as u16 % 200
}
