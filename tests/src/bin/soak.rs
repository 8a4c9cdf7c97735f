//! Trains, saves, goes on, tests, predicts and checks in a loop, in one process, and judges what the process holds: resident memory,
//! descriptors, threads and files have to stay flat.
//!
//! `soak FOLDER MINUTES`, which `cargo xtask soak` calls.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use terrashard_trainer::arguments::Arguments;
use terrashard_trainer::commands;
use terrashard_trainer::config::{Config, Device};
use terrashard_trainer::record::Display;
use terrashard_trainer::run_directory::RunDirectory;
use terrashard_trainer::training::{self, FitOptions, Fitted, Partial, StopRequest};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A part of the shipped scene with water and land.
const SCENE: &str = "chips/test/S2A_T33UUU_20170216_L1C_6band_0_1152";

const CONFIG: &str = r#"
[model]
dims = [8, 8, 8, 8]
depths = [1, 1, 1, 1]
heads = [1, 1, 1, 1]
head_channels = 8
superres = false
bands = 2

[data]
scenes = [{ image = "SCENE_image.tif", mask = "SCENE_mask.tif" }]
bands = [1, 2]
train = "north"
test = "south"
chip = 32
stride = 16
overlap = 8

[train]
steps = 8
global_batch = 6
lr = 1e-3
clip_norm = 1.0

[checkpoint]
every = 2
keep_last = 2
"#;

/// The part of the time after which all that is kept for good is there, and from which growth is measured.
const WARM: f64 = 0.3;

/// The part at the end that is compared with the one after the warm-up.
const WINDOW: f64 = 0.2;

/// Resident memory may be so much larger at the end, by its median: what an allocator's pages differ by.
const GROWTH: f64 = 0.03;
const GROWTH_BYTES: f64 = 4e6;

/// What the process holds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    resident: u64,
    descriptors: usize,
    threads: usize,
    files: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, minutes] = arguments.as_slice() else {
        return Err("expected a folder and minutes".into());
    };
    let (folder, minutes) = (
        PathBuf::from(folder).canonicalize()?,
        minutes.parse::<f64>()?,
    );
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/water.toml");
    // Once, before anything is measured.
    let (index, chips) = (folder.join("chips.geojson"), folder.join("chips"));
    command(&[
        "chip",
        text(&example)?,
        "--set",
        "data.chip=128",
        "--set",
        "data.selection={}",
        "--output",
        text(&index)?,
        "--files",
        text(&chips)?,
    ])?;
    let config = folder.join("soak.toml");
    fs::write(&config, CONFIG.replace("SCENE", SCENE))?;

    let began = Instant::now();
    let whole = Duration::from_secs_f64(minutes * 60.0);
    let mut samples = Vec::new();
    let mut told = Duration::ZERO;
    for round in 0u64.. {
        turn(&folder, &config, round)?;
        let sample = Sample::take(began.elapsed(), &folder)?;
        if round == 0 || sample.at >= told {
            eprintln!("round {round}: {sample}");
            told = sample.at + whole / 30;
        }
        samples.push(sample);
        if sample.at >= whole {
            break;
        }
    }
    eprintln!(
        "{} rounds in {:.1} min",
        samples.len(),
        began.elapsed().as_secs_f64() / 60.0
    );
    let findings = judge(&samples);
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    Ok(findings.is_empty())
}

/// Training to the middle, from there to the end, test, map, check of all checkpoints; nothing of it is left.
fn turn(folder: &Path, config: &Path, round: u64) -> Result<()> {
    let run = folder.join("run");
    let settings = [
        format!("zero.ranks={}", 1 + round % 3),
        format!("zero.stage={}", round % 4),
        format!("train.seed={round}"),
    ];
    for stop_after in [Some(5), None] {
        let options = FitOptions {
            name: "soak".into(),
            run: RunDirectory::new(&run),
            stop_after,
            stop: StopRequest::default(),
            partial: Partial::Refused,
            device: Device::Cpu,
            display: Display::Quiet,
        };
        match training::fit(&Config::load(config, &settings)?, &options)? {
            Fitted::Trained(_) => {}
            other => return Err(format!("{other:?} instead of a training").into()),
        }
    }
    let (run, map) = (text(&run)?, folder.join("map.tif"));
    let image = folder.join(format!("{SCENE}_image.tif"));
    command(&["test", text(config)?, "--checkpoint", run, "--quiet"])?;
    command(&[
        "predict",
        text(&image)?,
        "--output",
        text(&map)?,
        "--checkpoint",
        run,
        "--quiet",
    ])?;
    command(&["ckpt", "verify", run])?;
    fs::remove_file(map)?;
    fs::remove_dir_all(run)?;
    Ok(())
}

/// A command of the program, in this process.
fn command(arguments: &[&str]) -> Result<()> {
    let words = ["terrashard"].iter().chain(arguments);
    Ok(commands::run(Arguments::try_parse_from(words)?)?)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| "a path that is no text".into())
}

impl Sample {
    fn take(at: Duration, folder: &Path) -> Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let number = |key: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|line| line.split_whitespace().next());
            Ok(word.ok_or("no such line in /proc/self/status")?.parse()?)
        };
        Ok(Self {
            at,
            resident: number("VmRSS:")? * 1024,
            // Without the one that lists them.
            descriptors: fs::read_dir("/proc/self/fd")?.count() - 1,
            threads: number("Threads:")? as usize,
            files: files(folder)? + files(&env::temp_dir())?,
        })
    }
}

/// Files and folders below a folder.
fn files(folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        count += 1;
        if entry.file_type()?.is_dir() {
            count += files(&entry.path())?;
        }
    }
    Ok(count)
}

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.1} min, {:.1} MB resident, {} descriptors, {} threads, {} files",
            self.at.as_secs_f64() / 60.0,
            self.resident as f64 / 1e6,
            self.descriptors,
            self.threads,
            self.files
        )
    }
}

/// What is not flat, each in one line.
fn judge(samples: &[Sample]) -> Vec<String> {
    let count = samples.len() as f64;
    let part = |from: f64, to: f64| &samples[(count * from) as usize..(count * to).ceil() as usize];
    let (early, late) = (part(WARM, WARM + WINDOW), part(1.0 - WINDOW, 1.0));
    let median = |samples: &[Sample], value: fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let mut findings = Vec::new();
    let mut compare = |name: &str, value: fn(&Sample) -> f64, allowed: f64| {
        let (before, after) = (median(early, value), median(late, value));
        eprintln!("{name}: {before:.0} at first, {after:.0} at the end");
        if after > before + allowed {
            findings.push(format!("{name} grew from {before:.0} to {after:.0}"));
        }
    };
    let resident = median(early, |sample| sample.resident as f64);
    let allowed = resident * GROWTH + GROWTH_BYTES;
    compare("resident bytes", |sample| sample.resident as f64, allowed);
    compare("descriptors", |sample| sample.descriptors as f64, 0.0);
    compare("threads", |sample| sample.threads as f64, 0.0);
    compare("files", |sample| sample.files as f64, 0.0);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(resident: impl Fn(u64) -> u64, threads: impl Fn(u64) -> usize) -> Vec<Sample> {
        let sample = |round| Sample {
            at: Duration::from_secs(round),
            resident: resident(round),
            descriptors: 5,
            threads: threads(round),
            files: 3,
        };
        (0..200).map(sample).collect()
    }

    #[test]
    fn what_grows_is_found() {
        // Noise, and what is kept for good after the first rounds.
        let flat = |round| 100_000_000 + (round * 7919) % 3_000_000;
        assert_eq!(
            judge(&samples(flat, |round| 3 + (round < 40) as usize)),
            [""; 0]
        );
        let leak = judge(&samples(|round| flat(round) + round * 100_000, |_| 3));
        assert!(
            leak.len() == 1 && leak[0].starts_with("resident bytes grew"),
            "{leak:?}"
        );
        let threads = judge(&samples(flat, |round| 3 + round as usize / 50));
        assert!(
            threads.len() == 1 && threads[0].starts_with("threads grew"),
            "{threads:?}"
        );
    }
}
