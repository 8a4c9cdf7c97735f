//! `bench raster`: reading windows and writing a Cloud Optimized GeoTIFF, beside rasterio.
//!
//! Both sides take turns; the fastest turn of each counts, and beside it the seconds that all threads computed, which a busy
//! machine does not lengthen.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use terrashard_raster::{
    GeoTiffSink, Overviews, RasterSink, RasterSource, RasterSpec, Window, open,
};

use crate::memory::{cpu_seconds, peak_resident};
use crate::record;
use crate::report::{Output, Report};

/// What rasterio is given: GDAL uses one thread unless told otherwise.
const THREADS: [&str; 2] = ["1", "ALL_CPUS"];
const PEER: &str = include_str!("../rasterio_peer.py");

/// Names of the columns.
const HEAD: [&str; 8] = [
    "who",
    "what",
    "pixels",
    "seconds",
    "cpu seconds",
    "Mpx/s",
    "peak MiB",
    "ratio",
];

/// What to measure.
#[derive(Debug, Args)]
pub struct RasterBench {
    /// A scene in tiles; `cargo xtask scene 10980 OUT` makes one of six bands and the size of a whole Sentinel-2 tile.
    #[arg(long)]
    pub scene: PathBuf,
    /// Height and width of a window in pixels.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..))]
    pub window: u32,
    /// How often each takes its turn.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// A Python that has rasterio.
    #[arg(long)]
    pub python: Option<PathBuf>,
    /// A folder for what is written, which takes a few times the scene [default: that of temporary files].
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// How rows are told.
    #[command(flatten)]
    pub output: Output,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RasterRow {
    /// Which benchmark.
    pub bench: String,
    /// `terrashard`, or the peer with the number of its threads.
    pub who: String,
    /// What was done.
    pub what: String,
    /// Columns and rows of the scene.
    pub size: (usize, usize),
    /// The fastest turn.
    pub seconds: f64,
    /// Seconds that all threads computed in that turn.
    pub cpu_seconds: Option<f64>,
    /// Pixels of the scene in a second, 10^6; a pixel has all bands.
    pub megapixels_per_second: f64,
    /// The largest resident size of the process, bytes.
    pub peak_rss_bytes: Option<u64>,
    /// `seconds` of ours by those of the peer.
    pub ratio: Option<f64>,
    /// Versions of the peer.
    pub peer: Option<String>,
}

impl RasterRow {
    /// The cells of the table.
    fn cells(&self) -> Vec<String> {
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        vec![
            self.who.clone(),
            self.what.clone(),
            format!("{} x {}", self.size.0, self.size.1),
            format!("{:.2}", self.seconds),
            optional(self.cpu_seconds.map(|s| format!("{s:.2}"))),
            format!("{:.1}", self.megapixels_per_second),
            optional(self.peak_rss_bytes.map(|b| (b >> 20).to_string())),
            optional(self.ratio.map(|ratio| format!("{ratio:.2}"))),
        ]
    }
}

/// Why it could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing failed.
    #[error(transparent)]
    Raster(#[from] terrashard_raster::Error),
    /// The record could not be written.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// There is no folder for what is written.
    #[error("failed to make a temporary folder in {path}: {source}")]
    Folder {
        /// Where.
        path: PathBuf,
        /// What the system reports.
        source: io::Error,
    },
    /// The peer failed.
    #[error(
        "failed to time rasterio with {python}: {what}; give a Python that has rasterio with --python, or none"
    )]
    Peer {
        /// The interpreter.
        python: PathBuf,
        /// What it said.
        what: String,
    },
}

/// One turn.
#[derive(Clone, Debug)]
struct Turn {
    seconds: f64,
    cpu: Option<f64>,
    peak: Option<u64>,
    version: Option<String>,
}

/// What both sides do.
#[derive(Clone, Debug)]
enum Task {
    Windows {
        path: PathBuf,
        side: usize,
        step: usize,
    },
    Cog {
        from: PathBuf,
        to: PathBuf,
    },
}

/// Measures, prints each row and writes the record.
///
/// # Errors
/// [`Error`] where the scene cannot be read, the folder not be written to, or the peer fails.
pub fn run(bench: &RasterBench) -> Result<(), Error> {
    let mut report = Report::new(&bench.output, &HEAD);
    measure(bench, |row| report.add(row, RasterRow::cells))?;
    let peer = report.rows.iter().find_map(|row| row.peer.clone());
    report.circumstances.others.extend(peer);
    Ok(report.write("Windows read and a Cloud Optimized GeoTIFF written")?)
}

fn measure(bench: &RasterBench, mut each: impl FnMut(RasterRow)) -> Result<(), Error> {
    let scene = open(&bench.scene)?;
    let size = (scene.metadata().width, scene.metadata().height);
    drop(scene);
    let parent = bench.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(&parent).map_err(|source| Error::Folder {
        path: parent,
        source,
    })?;
    let side = bench.window as usize;
    let windows = |path: &Path, step: usize| Task::Windows {
        path: path.to_owned(),
        side,
        step,
    };
    let mut tasks = vec![
        (
            format!("windows of {side}, tiles"),
            windows(&bench.scene, side),
        ),
        (
            format!("windows of {side} that share an eighth, tiles"),
            windows(&bench.scene, side - side / 8),
        ),
    ];
    if let Some(python) = &bench.python {
        // Our own writer has no strips.
        let strips = folder.path().join("strips.tif");
        peer(python, "ALL_CPUS", "strips", &[&bench.scene, &strips])?;
        tasks.push((
            format!("windows of {side}, strips of a row"),
            windows(&strips, side),
        ));
    }
    tasks.push((
        "COG written".into(),
        Task::Cog {
            from: bench.scene.clone(),
            to: folder.path().join("cog.tif"),
        },
    ));
    for (what, task) in tasks {
        // Ours, and rasterio's on one thread and on all.
        let mut turns = [const { Vec::new() }; 3];
        for _ in 0..bench.rounds {
            turns[0].push(task.ours()?);
            if let Some(python) = &bench.python {
                for (turns, threads) in turns[1..].iter_mut().zip(THREADS) {
                    turns.push(task.theirs(python, threads)?);
                }
            }
        }
        let fastest = turns.each_ref().map(|turns| fastest(turns));
        let ours = fastest[0].map(|turn| turn.seconds);
        for (index, turn) in fastest.into_iter().flatten().enumerate() {
            each(RasterRow {
                bench: "raster".into(),
                who: match index {
                    0 => "terrashard".into(),
                    _ => format!("rasterio, GDAL_NUM_THREADS={}", THREADS[index - 1]),
                },
                what: what.clone(),
                size,
                seconds: turn.seconds,
                cpu_seconds: turn.cpu,
                megapixels_per_second: (size.0 * size.1) as f64 / 1e6 / turn.seconds,
                peak_rss_bytes: turn.peak,
                ratio: ours.filter(|_| index > 0).map(|ours| ours / turn.seconds),
                peer: turn.version.clone(),
            });
        }
    }
    Ok(())
}

fn fastest(turns: &[Turn]) -> Option<&Turn> {
    turns.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

impl Task {
    fn ours(&self) -> Result<Turn, Error> {
        let (began, cpu) = (Instant::now(), cpu_seconds());
        match self {
            Self::Windows { path, side, step } => {
                read_windows(path, *side, *step)?;
            }
            Self::Cog { from, to } => write_cog(from, to)?,
        }
        Ok(Turn {
            seconds: began.elapsed().as_secs_f64(),
            cpu: cpu_seconds().zip(cpu).map(|(after, before)| after - before),
            peak: peak_resident(),
            version: None,
        })
    }

    fn theirs(&self, python: &Path, threads: &str) -> Result<Turn, Error> {
        match self {
            Self::Windows { path, side, step } => {
                let [side, step] = [side, step].map(|n| PathBuf::from(n.to_string()));
                peer(python, threads, "windows", &[path, &side, &step])
            }
            Self::Cog { from, to } => peer(python, threads, "cog", &[from, to]),
        }
    }
}

/// Reads all bands of every window, row by row.
fn read_windows(path: &Path, side: usize, step: usize) -> Result<f64, Error> {
    let scene = open(path)?;
    let (width, height) = (scene.metadata().width, scene.metadata().height);
    let mut sum = 0.0;
    for row in (0..height).step_by(step) {
        for col in (0..width).step_by(step) {
            let window = Window::new(col, row, side.min(width - col), side.min(height - row));
            sum += scene.read_window(window)?.at(0, 0, 0);
        }
    }
    Ok(std::hint::black_box(sum))
}

/// Copies a scene into a Cloud Optimized GeoTIFF, a row of tiles at a time.
fn write_cog(from: &Path, to: &Path) -> Result<(), Error> {
    let scene = open(from)?;
    let metadata = scene.metadata();
    let spec = RasterSpec::new(
        metadata.width,
        metadata.height,
        metadata.bands,
        metadata.data_type,
    )
    .georeference(metadata.georeference)
    .overviews(Overviews::Average);
    let rows = spec.tile;
    let mut sink = Box::new(GeoTiffSink::create(to, spec)?);
    for row in (0..metadata.height).step_by(rows) {
        let window = Window::new(0, row, metadata.width, rows.min(metadata.height - row));
        sink.write(&scene.read_window(window)?)?;
    }
    Ok(sink.finish()?)
}

fn peer(python: &Path, threads: &str, action: &str, arguments: &[&Path]) -> Result<Turn, Error> {
    let fail = |what: String| Error::Peer {
        python: python.to_owned(),
        what,
    };
    let output = Command::new(python)
        .args(["-c", PEER, threads, action])
        .args(arguments)
        .output()
        .map_err(|source| fail(source.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(fail(text.lines().last().unwrap_or_default().to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = || -> Option<Turn> {
        let mut fields = text.trim().split('\t');
        Some(Turn {
            seconds: fields.next()?.parse().ok()?,
            cpu: fields.next()?.parse().ok(),
            peak: fields.next()?.parse().ok(),
            version: fields.next().map(str::to_owned),
        })
    };
    answer().ok_or_else(|| fail(format!("it answered `{}`", text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrashard_raster::{DataType, Raster, Samples};

    #[test]
    fn every_task_has_its_turn() {
        let folder = tempfile::tempdir().unwrap();
        let scene = folder.path().join("scene.tif");
        let spec = RasterSpec::new(70, 50, 2, DataType::U16).tile(16);
        let window = spec.window();
        let samples: Vec<u16> = (0..2 * window.pixels()).map(|i| i as u16).collect();
        let mut sink = Box::new(GeoTiffSink::create(&scene, spec).unwrap());
        sink.write(&Raster::new(window, 2, Samples::U16(samples.clone())).unwrap())
            .unwrap();
        sink.finish().unwrap();
        // Column 0 of band 0 at each row of windows, and so on: by hand from the samples.
        let expected = [(0, 0), (0, 32), (0, 64), (32, 0), (32, 32), (32, 64)]
            .map(|(row, column)| f64::from(samples[row * 70 + column]));
        let sum = read_windows(&scene, 32, 32).unwrap();
        assert_eq!(sum, expected.iter().sum::<f64>());

        let mut rows = Vec::new();
        let bench = RasterBench {
            scene,
            window: 32,
            rounds: 2,
            python: None,
            folder: Some(folder.path().to_owned()),
            output: Output {
                json: true,
                out: None,
            },
        };
        measure(&bench, |row| rows.push(row)).unwrap();
        assert_eq!(rows.len(), 3);
        assert!(
            rows.iter()
                .all(|row| row.seconds > 0.0 && row.size == (70, 50))
        );
        assert_eq!(rows[0].cells().len(), HEAD.len());
        let cog = folder.path().join("cog.tif");
        write_cog(&bench.scene, &cog).unwrap();
        assert!(open(&cog).unwrap().read_window(window).is_ok());
        let missing = RasterBench {
            python: Some("/absent/python".into()),
            ..bench
        };
        let message = measure(&missing, |_| ()).unwrap_err().to_string();
        assert!(message.contains("/absent/python"), "{message}");
    }
}
