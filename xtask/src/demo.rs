//! `cargo xtask demo`: the main job on the shipped scene, through the `terrashard` binary as a user calls it.
//!
//! Train to the middle and end there, start again from the checkpoint, test on the half of the scene that was not
//! trained on, export one file, predict the whole scene, report. Every command is printed before it runs.

mod plan;
mod proof;
mod scores;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf, absolute};
use std::time::Instant;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::step::Step;
use crate::workspace::{self, Profile, build_binary};

use plan::Plan;
use scores::Test;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where everything goes. A run that is already there is replaced.
    #[arg(long, default_value = "target/demo")]
    out: PathBuf,
    /// Ranks; each is a thread.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// ZeRO stage.
    #[arg(long, default_value_t = 2)]
    stage: u8,
    /// Train this many steps instead of the configuration's, for a quick look: results are then not judged.
    #[arg(long)]
    steps: Option<u64>,
    /// The configuration, relative to the root folder.
    #[arg(long, default_value = "examples/water.toml")]
    config: PathBuf,
    /// Use this `terrashard` binary instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Build nothing, so that no cargo is needed; `--bin` says what to use.
    #[arg(long, requires = "bin")]
    no_build: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let demo = Demo::new(args)?;
    let started = Instant::now();
    let resumed_from_step = demo.train()?;
    let test = demo.test()?;
    demo.export()?;
    demo.predict()?;
    demo.report()?;
    let seconds = started.elapsed().as_secs_f64();
    let summary = demo.summary(&test, resumed_from_step, seconds)?;
    println!("{summary}");
    if args.steps.is_some() {
        Ok(())
    } else {
        test.verdict()
    }
}

/// Everything that stays the same over the steps.
struct Demo<'a> {
    args: &'a Args,
    bin: PathBuf,
    /// Folder of the results, relative to the root where it lies below it.
    out: PathBuf,
    plan: Plan,
}

impl<'a> Demo<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let root = workspace::root();
        let plan = Plan::read(&root.join(&args.config), args.steps)?;
        // The default belongs to the workspace; a folder that the user names is relative to where the user stands.
        let out = if args.out == Path::new("target/demo") {
            args.out.clone()
        } else {
            full(&args.out)?
        };
        clear(&root.join(&out))?;
        fs::create_dir_all(root.join(&out)).map_err(|source| Error::file(&out, source))?;
        let bin = match &args.bin {
            Some(bin) => full(bin)?,
            None => build_binary("terrashard", Profile::Release)?,
        };
        Ok(Self {
            args,
            bin,
            out,
            plan,
        })
    }

    /// Trains in two runs of the program. Returns the step that the second one began after.
    fn train(&self) -> Result<u64> {
        let log = self.path("run/metrics.jsonl");
        self.say(&format!(
            "train the first {} of {} steps, save a checkpoint and end there",
            self.plan.half, self.plan.steps
        ));
        self.fit("none")
            .args(["--stop-after", &self.plan.half.to_string()])
            .run()?;
        let first = proof::steps(&self.read(&log)?, &log)?;

        self.say("start again from the checkpoint and finish");
        self.fit("auto").run()?;
        let both = proof::steps(&self.read(&log)?, &log)?;
        proof::resumed(&first, &both, &self.plan)
            .map_err(|message| Error::content(log.display(), message))
    }

    fn test(&self) -> Result<Test> {
        self.say("test on the half of the scene that was not trained on");
        let step = self
            .terrashard("test")
            .arg(&self.args.config)
            .arg("--checkpoint")
            .arg(self.path("run"));
        let step = step.arg("--json");
        Test::parse(&step.run_captured()?).map_err(|message| Error::content(step.line(), message))
    }

    fn export(&self) -> Result<()> {
        self.say("export the weights as one file");
        let model = self.path("model.safetensors");
        self.terrashard("export")
            .arg(self.path("run"))
            .arg("-o")
            .arg(&model)
            .run()?;
        self.exists(&model)
    }

    fn predict(&self) -> Result<()> {
        self.say("predict the whole scene");
        let (scene, prediction) = (&self.plan.scene, self.path("prediction.tif"));
        let step = self
            .terrashard("predict")
            .arg(scene)
            .arg("-o")
            .arg(&prediction);
        step.arg("--checkpoint").arg(self.path("run")).run()?;
        self.say("compare the grids of scene and prediction");
        let info = |file: &Path| -> Result<Value> {
            let step = self.terrashard("info").arg(file).arg("--json");
            let text = step.run_captured()?;
            serde_json::from_str(&text)
                .map_err(|error| Error::content(step.line(), error.to_string()))
        };
        let line = proof::same_ground(&info(scene)?, &info(&prediction)?)
            .map_err(|message| Error::content(prediction.display(), message))?;
        eprintln!("  {line}");
        Ok(())
    }

    fn report(&self) -> Result<()> {
        self.say("write the report");
        self.terrashard("report")
            .arg(self.path("run"))
            .arg("--out")
            .arg(&self.out)
            .run()?;
        self.exists(&self.path("report.html"))
    }

    /// Writes `report.json`, adding to what `terrashard report` has put there, and returns the closing lines.
    fn summary(&self, test: &Test, resumed_from_step: u64, seconds: f64) -> Result<String> {
        let path = self.path("report.json");
        let mut report = match self.read(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| Error::content(path.display(), error.to_string()))?,
            Err(_) => json!({}),
        };
        for (key, value) in [
            ("test", test.document.clone()),
            ("baseline", test.baseline_document.clone()),
            ("resumed_from_step", json!(resumed_from_step)),
            ("seconds", json!(seconds)),
            ("ranks", json!(self.args.ranks)),
            ("stage", json!(self.args.stage)),
            ("steps", json!(self.plan.steps)),
        ] {
            report[key] = value;
        }
        let text = format!("{report:#}\n");
        fs::write(workspace::root().join(&path), text)
            .map_err(|source| Error::file(&path, source))?;
        let Test {
            model, baseline, ..
        } = test;
        let out = self.out.display();
        Ok(format!(
            "demo: {steps} steps on {ranks} ranks at stage {stage}, resumed from step {resumed_from_step}, {seconds:.0} s\n\
             demo: test half: IoU {:.3} (NDWI baseline {:.3}), near the shore {:.3} (baseline {:.3})\n\
             demo: {out}/report.html, {out}/report.json, {out}/prediction.tif, {out}/model.safetensors",
            model.iou,
            baseline.iou,
            model.shore_iou,
            baseline.shore_iou,
            steps = self.plan.steps,
            ranks = self.args.ranks,
            stage = self.args.stage,
        ))
    }

    fn fit(&self, resume: &str) -> Step {
        let Args {
            config,
            ranks,
            stage,
            ..
        } = self.args;
        let step = self
            .terrashard("fit")
            .arg(config)
            .arg("--run")
            .arg(self.path("run"))
            .args(["--resume", resume]);
        let step = step.args(["--ranks", &ranks.to_string(), "--stage", &stage.to_string()]);
        self.plan
            .overrides
            .iter()
            .fold(step, |step, value| step.args(["--set", value]))
    }

    fn terrashard(&self, command: &str) -> Step {
        let root = workspace::root();
        let shown = self
            .bin
            .strip_prefix(&root)
            .unwrap_or(&self.bin)
            .to_string_lossy()
            .into_owned();
        Step::new(&shown, &self.bin).dir(root).arg(command)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    fn read(&self, path: &Path) -> Result<String> {
        fs::read_to_string(workspace::root().join(path)).map_err(|source| Error::file(path, source))
    }

    fn exists(&self, path: &Path) -> Result<()> {
        match fs::metadata(workspace::root().join(path)) {
            Ok(metadata) if metadata.len() > 0 => Ok(()),
            Ok(_) => Err(Error::content(path.display(), "is empty")),
            Err(source) => Err(Error::file(path, source)),
        }
    }

    fn say(&self, what: &str) {
        eprintln!("\n== {what}");
    }
}

fn full(path: &Path) -> Result<PathBuf> {
    absolute(path).map_err(|source| Error::file(path, source))
}

/// Removes what an earlier demo has left in `out`, and nothing that does not look like it.
fn clear(out: &Path) -> Result<()> {
    let run = out.join("run");
    if run.exists() {
        if !run.join("config.toml").is_file() {
            let message = format!(
                "{} exists and is no run directory: choose another --out",
                run.display()
            );
            return Err(Error::Usage { message });
        }
        fs::remove_dir_all(&run).map_err(|source| Error::file(&run, source))?;
    }
    for name in [
        "model.safetensors",
        "prediction.tif",
        "report.html",
        "report.json",
    ] {
        let path = out.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(Error::file(&path, source));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        clear(dir.path()).unwrap();
        fs::create_dir(&run).unwrap();
        fs::write(dir.path().join("report.json"), "{}").unwrap();
        assert!(
            clear(dir.path())
                .unwrap_err()
                .to_string()
                .contains("is no run directory")
        );
        fs::write(run.join("config.toml"), "").unwrap();
        fs::write(dir.path().join("other.json"), "{}").unwrap();
        clear(dir.path()).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["other.json"]);
    }
}
