//! What each command does with its arguments, and what it prints.

mod ckpt;
mod exchange;
mod launch;
mod scenes;
mod shell;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use serde::Serialize;
use signal_hook::consts::SIGXFSZ;
use terrashard_layout::Stage;

use crate::arguments::{
    Arguments, Command, ConfigFlags, FitArguments, InfoArguments, PlanArguments, PredictArguments,
    ReportArguments, TestArguments, VerifyArguments,
};
use crate::config::{Config, Device, Ranks, Resume};
use crate::console::{print, tell};
use crate::error::{Error, Result};
use crate::evaluation::TestOptions;
use crate::planning::{Breadth, PlanOptions};
use crate::prediction::{Histogram, PredictOptions, Prediction};
use crate::record::{Display, Scores, TestRecord, counted};
use crate::run_directory::{RunDirectory, replace};
use crate::sharding::Placement;
use crate::training::{FitOptions, Fitted, Partial, StopRequest, verification};
use crate::{doctor, evaluation, info, planning, prediction, report, statistics, training};

/// Runs a command.
///
/// # Errors
/// Whatever went wrong, with its exit code ([`Error::exit_code`]).
pub fn run(arguments: Arguments) -> Result<()> {
    // A file that may not become as large is an error where it is written, which says so, and not the end of the process.
    let too_large = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGXFSZ, too_large).map_err(|source| Error::Signals { source })?;
    match arguments.command {
        Command::Fit(arguments) => fit(arguments),
        Command::Launch(arguments) => launch::launch(arguments),
        Command::Test(arguments) => test(arguments),
        Command::Predict(arguments) => predict(arguments),
        Command::Plan(arguments) => plan(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Verify(arguments) => verify(&arguments),
        Command::Export(arguments) => exchange::export(&arguments),
        Command::Ckpt(arguments) => ckpt::run(arguments.command),
        Command::Import(arguments) => exchange::import(arguments),
        Command::Align(arguments) => scenes::align(arguments),
        Command::Check(arguments) => scenes::check(&arguments),
        Command::Chip(arguments) => scenes::chip(&arguments),
        Command::Stats(arguments) => scenes::stats(&arguments),
        Command::Info(arguments) => info(&arguments),
        Command::Report(arguments) => report(arguments),
        Command::Explain(arguments) => shell::explain(&arguments),
        Command::Completions(arguments) => shell::completions(&arguments),
        Command::Man(arguments) => shell::man(&arguments),
    }
}

fn fit(arguments: FitArguments) -> Result<()> {
    let FitArguments {
        config: path,
        run,
        resume,
        allow_partial,
        skip_missing,
        stop_after,
        flags,
        quiet,
    } = arguments;
    // From the start: a signal while scenes are read ends the run after its first step.
    let stop = StopRequest::on_signals()?;
    let device = flags.device.device()?;
    let mut config = load(&path, &flags)?;
    if let Some(resume) = resume {
        config.checkpoint.resume = Resume::from(resume);
    }
    if skip_missing {
        scenes::leave_out(&mut config)?;
    }
    if config.data.medians.is_none() {
        config.data.medians = match statistics::training_medians(&config) {
            Err(error) if training::goes_on(config.data.on_unreadable, &error) => {
                tell(&format!(
                    "warning: `data.medians` is not known, so `predict` will not notice scenes of another size: {error}"
                ));
                None
            }
            medians => medians?,
        };
    }
    let run = run.map_or_else(|| RunDirectory::for_config(&path), RunDirectory::new);
    let display = display(quiet);
    let options = FitOptions {
        name: training::run_name(&path),
        run: run.clone(),
        stop_after,
        stop,
        partial: match allow_partial {
            true => Partial::Allowed,
            false => Partial::Refused,
        },
        device,
        display,
    };
    let ended = match training::fit(&config, &options)? {
        Fitted::Elsewhere => return Ok(()),
        Fitted::NothingToDo { step } => {
            format!(
                "nothing to do: the checkpoint is at step {step} already; nothing was written; go on with more `train.steps`, or \
                 train anew in another `--run`"
            )
        }
        Fitted::Trained(session) => {
            if session.last_step == session.steps {
                report::write(&run, run.root(), None)?;
            }
            let first = session.resumed_from_step.unwrap_or(0) + 1;
            format!(
                "steps {first} to {} of {} on {} at stage {} in {:.0} s{}{}; saved in {}{}",
                session.last_step,
                session.steps,
                counted(session.ranks, "rank"),
                session.stage,
                session.seconds,
                skipped(session.skipped, session.last_step + 1 - first),
                match session.left_out {
                    0 => String::new(),
                    left_out => format!(
                        ", {} left out that could not be read",
                        counted(left_out as usize, "drawn sample")
                    ),
                },
                run.root().display(),
                session
                    .stopped_by
                    .map_or_else(String::new, |signal| format!(
                        "; stopped by {signal}, the same command goes on from there"
                    ))
            )
        }
    };
    if display == Display::Auto {
        tell(&ended);
    }
    Ok(())
}

/// How many of `steps` steps were skipped, if any, and what to do where most were.
fn skipped(skipped: u64, steps: u64) -> String {
    match skipped {
        0 => String::new(),
        _ if 2 * skipped > steps => format!(
            ", {skipped} of {steps} skipped, so the model has learned little: lower `train.lr`, set `train.clip_norm` or look \
             at the samples that were named"
        ),
        _ => format!(", {skipped} of {steps} skipped"),
    }
}

fn test(arguments: TestArguments) -> Result<()> {
    let TestArguments {
        config: path,
        checkpoint,
        memory,
        skip_missing,
        flags,
        json,
        quiet,
    } = arguments;
    let device = flags.device.device()?;
    let mut config = load(&path, &flags)?;
    if skip_missing {
        scenes::leave_out(&mut config)?;
    }
    let checkpoint = checkpoint.unwrap_or_else(|| RunDirectory::for_config(&path).root().into());
    let record = evaluation::test(
        &config,
        &checkpoint,
        &TestOptions {
            device,
            ranks: threads(config.zero.ranks, device),
            memory,
            display: display(quiet),
        },
    )?;
    let run = RunDirectory::new(&checkpoint);
    if run.config().is_file() {
        replace(&run.test(), document(&record).as_bytes())?;
    }
    print(&match json {
        true => document(&record),
        false => test_table(&record),
    })
}

fn test_table(record: &TestRecord) -> String {
    let line = |name: &str, value: fn(&Scores) -> Option<f64>| {
        let number =
            |scores: &Scores| value(scores).map_or("n/a".into(), |value| format!("{value:.4}"));
        let baseline = record.baseline.as_ref().map_or(String::new(), number);
        format!("{name:<12}{:>10}{baseline:>16}", number(&record.scores))
    };
    let heading = record.baseline.as_ref().map_or("", |_| "NDWI baseline");
    let lines = [
        format!("{:<12}{:>10}{heading:>16}", "", "model"),
        line("IoU", |scores| scores.iou),
        line("shore IoU", |scores| scores.shore_iou),
        line("F1", |scores| scores.f1),
        line("precision", |scores| scores.precision),
        line("recall", |scores| scores.recall),
    ];
    let mut lines = lines.to_vec();
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("n/a".into(), |value| format!("{value:.digits$}"))
    };
    if !record.per_class.is_empty() {
        lines.push("means over classes, of which:".into());
        lines.push(format!(
            "{:<12}{:>10}{:>10}{:>10}{:>10}",
            "class", "IoU", "precision", "recall", "share"
        ));
    }
    lines.extend(record.per_class.iter().map(|each| {
        format!(
            "{:<12}{:>10}{:>10}{:>10}{:>10}",
            each.class,
            number(each.iou, 4),
            number(each.precision, 4),
            number(each.recall, 4),
            number(each.prevalence, 4)
        )
    }));
    if let Some(image) = &record.image {
        lines.push(format!("{:<12}{:>10}{:>16}", "", "branch", "bicubic"));
        for (name, ours, theirs, digits) in [
            ("PSNR, dB", image.psnr, image.bicubic_psnr, 2),
            ("SSIM", image.ssim, image.bicubic_ssim, 4),
        ] {
            let (ours, theirs) = (number(ours, digits), number(theirs, digits));
            lines.push(format!("{name:<12}{ours:>10}{theirs:>16}"));
        }
    }
    let rule = match record.threshold {
        Some(threshold) => format!("probability above {threshold}"),
        None => "the most probable class".into(),
    };
    lines.push(format!(
        "{} valid pixels of {}, {rule}",
        record.valid_pixels, record.region
    ));
    lines.join("\n") + "\n"
}

fn predict(arguments: PredictArguments) -> Result<()> {
    let PredictArguments {
        inputs,
        output,
        probability,
        probability_type,
        image,
        polygons,
        mosaic,
        stac,
        checkpoint,
        memory,
        tile,
        overlap,
        nodata,
        offset,
        bands,
        ranks,
        stage,
        offload,
        device,
        json,
        quiet,
    } = arguments;
    let device = device.device()?;
    let stage = Stage::try_from(stage).map_err(|_| Error::invalid("--stage", stage, "0 to 3"))?;
    if offload && stage != Stage::Three {
        return Err(Error::invalid("--offload", true, "`--stage 3` beside it"));
    }
    for (flag, value) in [("--ranks", ranks), ("--tile", tile)] {
        if value == Some(0) {
            return Err(Error::invalid(flag, 0, "at least 1"));
        }
    }
    let parse = |text: &String| {
        text.parse()
            .map_err(|message| Error::invalid("--bands", message, "NAME=FILE[:BAND]"))
    };
    let options = PredictOptions {
        inputs,
        bands: bands.iter().map(parse).collect::<Result<_>>()?,
        output,
        probability,
        probability_type,
        image,
        polygons,
        mosaic,
        stac,
        checkpoint,
        memory,
        overlap,
        tile,
        nodata,
        offset,
        device,
        ranks: threads(ranks.map_or(Ranks::Auto, Ranks::Count), device),
        placement: Placement {
            stage,
            offload,
            prefetch: 1,
            persist_bytes: 0,
        },
        display: display(quiet),
    };
    let predicted = prediction::predict(&options)?;
    for warning in &predicted.warnings {
        tell(&format!("warning: {warning}"));
    }
    if options.display == Display::Auto {
        tell(&closing_line(&predicted));
    }
    print(&match json {
        true => document(&predicted),
        false => prediction_table(&predicted),
    })
}

/// How fast it went, and how much of the time went into files.
fn closing_line(predicted: &Prediction) -> String {
    let peak = predicted.peak_rss_bytes.map_or_else(String::new, |bytes| {
        format!(", {} MiB of memory", bytes >> 20)
    });
    format!(
        "{:.1} s, {:.2} megapixels a second, {:.1} % of the time for reading and writing{peak}",
        predicted.seconds,
        predicted.megapixels_per_second,
        100.0 * predicted.input_output_share
    )
}

/// The files, and what the classes' shares are for each scene.
fn prediction_table(predicted: &Prediction) -> String {
    let Prediction {
        files,
        probabilities,
        images,
        classes,
        ..
    } = predicted;
    let line = |file: &PathBuf| format!("{}\n", file.display());
    let scene = |(index, histogram): (usize, &Histogram)| {
        let of_scene = [files, probabilities, images].map(|files| files.get(index));
        let lines: String = of_scene.into_iter().flatten().map(line).collect();
        format!("{lines}  {}\n", histogram.line())
    };
    classes.iter().enumerate().map(scene).collect()
}

fn plan(arguments: &PlanArguments) -> Result<()> {
    let config = Config::load(&arguments.config, &arguments.set)?;
    let options = PlanOptions {
        ranks: arguments.gpus,
        memory: arguments.memory,
        device: arguments.device(),
        breadth: Breadth::Choices,
        ahead: planning::batches_ahead(arguments.device()),
        ..PlanOptions::default()
    };
    let record = planning::plan(&config, options)?;
    print(&match arguments.json {
        true => document(&record),
        false => planning::page(&record) + arguments.note(),
    })
}

fn verify(arguments: &VerifyArguments) -> Result<()> {
    let device = arguments.flags.device.device()?;
    let mut flags = arguments.flags.clone();
    if arguments.offload {
        // The stage decides what can be offloaded; settings of offloading mean something only after that.
        let mut without = flags.clone();
        without.set.retain(|set| !set.starts_with("zero.offload"));
        let what = match load(&arguments.config, &without)?.zero.stage {
            Stage::Three => "parameters",
            Stage::Zero | Stage::One | Stage::Two => "optimizer",
        };
        flags.set.push(format!("zero.offload={what}"));
    }
    let config = load(&arguments.config, &flags)?;
    let found = verification::verify(&config, device, arguments.steps)?;
    let (difference, bound) = (found.max_rel, found.bound);
    let head = format!(
        "to {}, over {} in {}",
        found.reference,
        counted(found.steps as usize, "step"),
        found.precision
    );
    let text = match (&found.parameter, found.step, found.equal) {
        (Some(parameter), Some(step), true) => {
            format!(
                "equal {head}: the largest difference is {difference:.1e}, in {parameter} at step {step}\n"
            )
        }
        (Some(parameter), Some(step), false) => format!(
            "NOT equal {head}: {parameter} differs by {difference:.1e} of its norm, allowed are {bound:.0e}; first at step {step}\n"
        ),
        _ => format!("bitwise equal {head}\n"),
    };
    print(&match arguments.json {
        true => document(&found),
        false => text,
    })?;
    if found.equal {
        return Ok(());
    }
    Err(Error::NotEqual {
        rel: difference,
        bound,
    })
}

fn info(arguments: &InfoArguments) -> Result<()> {
    let summary = info::info(&arguments.file)?;
    print(&match arguments.json {
        true => document(&summary),
        false => info::table(&summary),
    })
}

fn report(arguments: ReportArguments) -> Result<()> {
    let ReportArguments {
        run,
        out,
        prediction,
    } = arguments;
    let run = RunDirectory::new(run);
    let out = out.unwrap_or_else(|| run.root().into());
    let beside: PathBuf = out.join("prediction.tif");
    match prediction {
        Some(prediction) => report::write(&run, &out, Some(&prediction))?,
        // One that was not asked for is shown if it fits.
        None => match report::write(&run, &out, beside.is_file().then_some(&beside)) {
            Err(Error::InvalidValue { key, .. }) if key == "--prediction" => {
                report::write(&run, &out, None)?;
            }
            written => written?,
        },
    }
    print(&format!("{}\n", out.join("report.html").display()))
}

fn load(path: &Path, flags: &ConfigFlags) -> Result<Config> {
    Config::load(path, &flags.overrides())
}

fn display(quiet: bool) -> Display {
    if quiet { Display::Quiet } else { Display::Auto }
}

/// Threads for windows, which are independent of each other: as many as asked for, or one for each core. A GPU needs no more
/// than one that tells it what to do, so there is one for each.
fn threads(ranks: Ranks, device: Device) -> usize {
    match (ranks, device) {
        (Ranks::Count(count), _) => count,
        (Ranks::Auto, Device::Cuda) => device.gpus().max(1),
        (Ranks::Auto, _) => thread::available_parallelism().map_or(1, usize::from),
    }
}

fn document(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("a record is plain data") + "\n"
}
