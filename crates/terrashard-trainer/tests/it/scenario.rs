//! A small scene with its label, and a configuration that trains on it in a second.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use terrashard_raster::{
    DataType, GeoTiffSink, Georeference, Raster, RasterSink, RasterSpec, Samples, Transform, Window,
};
use terrashard_trainer::config::{Config, Device};
use terrashard_trainer::record::{Display, SessionRecord};
use terrashard_trainer::run_directory::RunDirectory;
use terrashard_trainer::training::{self, FitOptions, Fitted, Partial, StopRequest};

pub(crate) const WIDTH: usize = 128;
pub(crate) const HEIGHT: usize = 64;
pub(crate) const SCALE: usize = 5;
pub(crate) const TRANSFORM: Transform = Transform::north_up(330_000.0, 5_822_040.0, 10.0);

const CONFIG: &str = r#"
[model]
dims = [8, 8, 8, 8]
depths = [1, 1, 1, 1]
heads = [1, 1, 1, 1]
head_channels = 8
superres = false
bands = 2

[data]
scenes = [{ image = "image.tif", mask = "mask.tif" }]
bands = [1, 2]
chip = 32
stride = 8
overlap = 8

[train]
steps = 6
global_batch = 12
lr = 1e-3
clip_norm = 1.0
seed = 7

[checkpoint]
every = 2
keep_last = 9
"#;

pub(crate) struct Scenario {
    folder: TempDir,
}

impl Scenario {
    pub(crate) fn new() -> Self {
        let scenario = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        scenario.write_image("image.tif", 2);
        scenario.write_mask("mask.tif", WIDTH * SCALE, |x, y| {
            u8::from(is_foreground(x / SCALE, y / SCALE))
        });
        std::fs::write(scenario.path("run.toml"), CONFIG).unwrap();
        scenario
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Bright where the foreground is, with a pattern on top.
    pub(crate) fn write_image(&self, name: &str, bands: usize) {
        let value = |band: usize, x: usize, y: usize| {
            let base = if is_foreground(x, y) { 4000 } else { 800 };
            (base + 300 * band + (x * 37 + y * 91 + band * 13) % 200) as u16
        };
        let pixels = |band| (0..WIDTH * HEIGHT).map(move |at| value(band, at % WIDTH, at / WIDTH));
        let samples = Samples::U16((0..bands).flat_map(pixels).collect());
        self.write(name, (WIDTH, HEIGHT), bands, samples, TRANSFORM);
    }

    /// Four bands on the fine grid: the image's pattern with detail that no image pixel shows, 0 where `gap` says.
    pub(crate) fn write_highres(&self, name: &str, gap: impl Fn(usize, usize) -> bool) {
        let (width, height) = (WIDTH * SCALE, HEIGHT * SCALE);
        let value = |band: usize, x: usize, y: usize| {
            let base = if is_foreground(x / SCALE, y / SCALE) {
                4000
            } else {
                800
            };
            match gap(x, y) {
                true => 0,
                false => (base + 300 * band + (x * 53 + y * 29) % 700) as u16,
            }
        };
        let pixels = |band| (0..width * height).map(move |at| (band, at % width, at / width));
        let samples = (0..4)
            .flat_map(pixels)
            .map(|(band, x, y)| value(band, x, y));
        self.write(
            name,
            (width, height),
            4,
            Samples::U16(samples.collect()),
            TRANSFORM.scaled(SCALE as f64),
        );
    }

    pub(crate) fn write_mask(&self, name: &str, width: usize, class: impl Fn(usize, usize) -> u8) {
        let height = HEIGHT * SCALE;
        let samples = (0..width * height)
            .map(|at| class(at % width, at / width))
            .collect();
        self.write(
            name,
            (width, height),
            1,
            Samples::U8(samples),
            TRANSFORM.scaled(SCALE as f64),
        );
    }

    /// Classes over the ground of the image, on a grid of pixels that are `side` times as long as the image's.
    pub(crate) fn write_classes(
        &self,
        name: &str,
        side: usize,
        class: impl Fn(usize, usize) -> u8,
    ) {
        let (width, height) = (WIDTH / side, HEIGHT / side);
        let classes = (0..width * height).map(|at| class(at % width, at / width));
        let samples = Samples::U8(classes.collect());
        let ground = TRANSFORM.scaled(1.0 / side as f64);
        self.write(name, (width, height), 1, samples, ground);
    }

    /// A map of one class.
    pub(crate) fn write_map(&self, name: &str, size: (usize, usize), transform: Transform) {
        self.write(
            name,
            size,
            1,
            Samples::U8(vec![1; size.0 * size.1]),
            transform,
        );
    }

    pub(crate) fn write(
        &self,
        name: &str,
        (width, height): (usize, usize),
        bands: usize,
        samples: Samples,
        transform: Transform,
    ) {
        let georeference = Georeference {
            epsg: Some(32633),
            transform: Some(transform),
        };
        let spec = RasterSpec::new(width, height, bands, samples.data_type())
            .georeference(georeference)
            .tile(64);
        let mut sink: Box<dyn RasterSink> =
            Box::new(GeoTiffSink::create(self.path(name), spec).unwrap());
        sink.write(&Raster::new(Window::new(0, 0, width, height), bands, samples).unwrap())
            .unwrap();
        sink.finish().unwrap();
    }

    /// Trains into the run directory `run`.
    pub(crate) fn fit(
        &self,
        run: &str,
        stop_after: Option<u64>,
        overrides: &[&str],
    ) -> SessionRecord {
        let overrides: Vec<String> = overrides.iter().map(|each| each.to_string()).collect();
        let config = Config::load(&self.path("run.toml"), &overrides).unwrap();
        let options = FitOptions {
            name: "test".into(),
            run: self.run(run),
            stop_after,
            stop: StopRequest::default(),
            partial: Partial::Refused,
            device: Device::Cpu,
            display: Display::Quiet,
        };
        match training::fit(&config, &options).unwrap() {
            Fitted::Trained(session) => *session,
            nothing => panic!("{nothing:?}"),
        }
    }

    pub(crate) fn run(&self, name: &str) -> RunDirectory {
        RunDirectory::new(self.path(name))
    }

    /// Runs the program in the scenario's folder.
    pub(crate) fn terrashard(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs the program under a limit of the shell's `ulimit`: `-f` in blocks of 512 bytes, `-v` in kibibytes. The exit code, and what it
    /// said on stderr.
    pub(crate) fn limited(&self, limit: &str, arguments: &[&str]) -> (Option<i32>, String) {
        // A file that grows too long is to be an error, as a full disk is, and no signal.
        let script = format!("trap '' XFSZ; ulimit {limit} && exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_terrashard")])
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// The program in the scenario's folder, to be run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_terrashard")));
        command.args(arguments).current_dir(self.folder.path());
        command
    }
}

/// A disc in either half of the image.
fn is_foreground(x: usize, y: usize) -> bool {
    let distance = |x0: i64, y0: i64| (x as i64 - x0).pow(2) + (y as i64 - y0).pow(2);
    distance(30, 28) < 260 || distance(94, 35) < 300
}

pub(crate) const U8: DataType = DataType::U8;
