//! What is done with scenes before a training: `align`, `check`, `chip`, `stats`.

use terrashard_data::{DropReason, Level, PERCENTILES, Part};

use super::document;
use crate::alignment::{self, AlignRequest, Made};
use crate::arguments::{AlignArguments, CheckArguments, ChipArguments, SplitFlag, StatsArguments};
use crate::chipping::{self, ChipRequest, Chipped, SplitBy};
use crate::config::Config;
use crate::console::{print, tell};
use crate::error::{Error, Result};
use crate::inspection::{self, Inspected};
use crate::output_file;
use crate::record::counted;
use crate::statistics::{self, Surveyed};

pub(super) fn align(arguments: AlignArguments) -> Result<()> {
    let AlignArguments {
        onto,
        highres,
        mask,
        output,
        scale,
        resampling,
        nodata,
        json,
    } = arguments;
    let made = alignment::run(&AlignRequest {
        onto,
        images: highres,
        labels: mask,
        output,
        scale,
        resampling: resampling.map(Into::into),
        nodata,
    })?;
    for warning in &made.warnings {
        tell(&format!("warning: {warning}"));
    }
    print(&match json {
        true => document(&made),
        false => align_page(&made),
    })
}

fn align_page(made: &Made) -> String {
    let line = |file: &alignment::MadeFile| {
        let aligned = &file.aligned;
        let shift = file.shift.map_or_else(String::new, |shift| {
            format!(
                ", shifted by {:.2} right and {:.2} down in pixels of the image",
                shift.right, shift.down
            )
        });
        format!(
            "{}: from EPSG:{} to EPSG:{}, {:.1} % with data{shift}\n",
            aligned.file.display(),
            aligned.from_epsg,
            aligned.to_epsg,
            100.0 * aligned.valid
        )
    };
    let lines: String = made.files.iter().map(line).collect();
    format!("{lines}{}\n", made.index.display())
}

pub(super) fn check(arguments: &CheckArguments) -> Result<()> {
    let config = Config::load(&arguments.config, &arguments.set)?;
    let inspected = inspection::check(&config);
    print(&match arguments.json {
        true => document(&inspected),
        false => check_page(&inspected),
    })?;
    let fails = match arguments.allow_suspicious {
        true => inspected.wrong > 0,
        false => !inspected.ok,
    };
    match fails {
        true => Err(Error::Findings {
            path: arguments.config.clone(),
            wrong: inspected.wrong,
            suspicious: inspected.suspicious,
        }),
        false => Ok(()),
    }
}

/// Leaves out the scenes that cannot be read, and tells which.
pub(super) fn leave_out(config: &mut Config) -> Result<()> {
    let scenes = config.data.scenes.len();
    let left_out = inspection::leave_out_unreadable(config)?;
    for finding in &left_out {
        let (file, message) = (finding.file.display(), &finding.message);
        tell(&format!("warning: left out, {file}: {message}"));
    }
    if !left_out.is_empty() {
        let left_out = left_out.len();
        tell(&format!(
            "warning: {left_out} of {scenes} scenes are left out"
        ));
    }
    Ok(())
}

fn check_page(inspected: &Inspected) -> String {
    let scenes = counted(inspected.scenes, "scene");
    if inspected.findings.is_empty() {
        return format!("{scenes}: nothing is wrong\n");
    }
    let line = |finding: &terrashard_data::Finding| {
        let level = match finding.level {
            Level::Wrong => "wrong",
            Level::Suspicious => "suspicious",
        };
        format!(
            "{level:<12}{}: {}\n",
            finding.file.display(),
            finding.message
        )
    };
    inspected.findings.iter().map(line).collect()
}

/// Chips along a side of a square of ground, where nothing else is asked for.
const CHIPS_OF_A_BLOCK: usize = 4;

pub(super) fn chip(arguments: &ChipArguments) -> Result<()> {
    let mut config = Config::load(&arguments.config, &arguments.set)?;
    if arguments.skip_missing {
        leave_out(&mut config)?;
    }
    let chip = config.data.chip;
    let block = arguments.block.unwrap_or(CHIPS_OF_A_BLOCK * chip);
    if arguments.block.is_some() && arguments.split != SplitFlag::Blocks {
        let expected = "`--split blocks` beside it";
        return Err(Error::invalid("--block", block, expected));
    }
    if block < chip {
        let expected = format!("at least `data.chip` = {chip}");
        return Err(Error::invalid("--block", block, expected));
    }
    let &[train, validation, test] = arguments.shares.as_slice() else {
        let expected = "three numbers, for train, validation and test";
        return Err(Error::invalid(
            "--shares",
            format!("{:?}", arguments.shares),
            expected,
        ));
    };
    output_file::check("--output", &arguments.output, [arguments.config.as_path()])?;
    let chipped = chipping::chip(
        &config,
        &ChipRequest {
            output: arguments.output.clone(),
            files: arguments.files.clone(),
            split: match arguments.split {
                SplitFlag::Regions => SplitBy::Regions,
                SplitFlag::Scenes => SplitBy::Scenes,
                SplitFlag::Blocks => SplitBy::Blocks(block),
            },
            shares: [train, validation, test],
            stride: arguments.stride,
        },
    )?;
    print(&match arguments.json {
        true => document(&chipped),
        false => chip_page(&chipped),
    })
}

fn chip_page(chipped: &Chipped) -> String {
    let report = &chipped.report;
    let mut lines = vec![format!(
        "{}: {} of {} windows of {} are kept",
        chipped.file.display(),
        report.kept.values().sum::<usize>(),
        report.cut,
        counted(chipped.scenes, "scene")
    )];
    for (part, count) in &report.kept {
        let part = match part {
            Part::Train => "train",
            Part::Validation => "validation",
            Part::Test => "test",
        };
        lines.push(format!("{part:<12}{count}"));
    }
    for (reason, count) in &report.dropped {
        let reason = match reason {
            DropReason::FewValid => "have too few valid pixels of the label",
            DropReason::FewForeground => "have too little foreground",
            DropReason::SharedGround => "lie over chips of another part",
        };
        lines.push(format!("dropped     {count} {reason}"));
    }
    lines.join("\n") + "\n"
}

pub(super) fn stats(arguments: &StatsArguments) -> Result<()> {
    let surveyed = match arguments.inputs.as_slice() {
        [config] if config.extension().is_some_and(|ending| ending == "toml") => {
            if let Some(nodata) = arguments.nodata {
                let expected = "raster files beside it; a configuration has `data.nodata`";
                return Err(Error::invalid("--nodata", nodata, expected));
            }
            let mut config = Config::load(config, &arguments.set)?;
            if arguments.skip_missing {
                leave_out(&mut config)?;
            }
            statistics::of_config(&config)?
        }
        files => {
            if let Some(set) = arguments.set.first() {
                let expected = "one configuration (.toml) beside it";
                return Err(Error::invalid("--set", set, expected));
            }
            if arguments.skip_missing {
                let expected = "one configuration (.toml) beside it";
                return Err(Error::invalid("--skip-missing", "raster files", expected));
            }
            statistics::of_files(files, arguments.nodata)?
        }
    };
    print(&match arguments.json {
        true => document(&surveyed),
        false => stats_page(&surveyed),
    })
}

fn stats_page(surveyed: &Surveyed) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "n/a".into(), shown);
    let mut lines = Vec::new();
    let shares = PERCENTILES.map(|share| format!("{:>10}", format!("p{share}")));
    for part in &surveyed.parts {
        lines.push(format!(
            "{}: {} of {} pixels with data in every band, in {}",
            part.part, part.valid, part.pixels, surveyed.unit
        ));
        let heads = ["mean", "std", "min", "max"].map(|head| format!("{head:>10}"));
        lines.push(format!(
            "{:<10}{}{}",
            "band",
            heads.concat(),
            shares.concat()
        ));
        for band in &part.bands {
            let percentiles = match band.percentiles {
                Some(values) => values.map(Some),
                None => [None; PERCENTILES.len()],
            };
            let values = [band.mean, band.std, band.min, band.max]
                .into_iter()
                .chain(percentiles);
            let values: String = values
                .map(|value| format!("{:>10}", number(value)))
                .collect();
            lines.push(format!("{:<10}{values}", band.band));
        }
    }
    if let Some(scaling) = &surveyed.scaling {
        lines.push(format!(
            "to normalise by the training part, under [data]:\n{scaling}"
        ));
    }
    lines.join("\n") + "\n"
}

/// Five digits, more where the number has them before the point.
fn shown(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.1}"),
        large if large >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.5}"),
    }
}
