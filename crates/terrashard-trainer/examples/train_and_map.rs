//! Trains a small model on two ranks at stage 2 for some steps and measures it, from Rust.

use std::path::Path;

use terrashard_trainer::Result;
use terrashard_trainer::config::{Config, Device};
use terrashard_trainer::evaluation::{self, TestOptions};
use terrashard_trainer::record::Display;
use terrashard_trainer::run_directory::RunDirectory;
use terrashard_trainer::training::{FitOptions, Fitted, Partial, StopRequest, fit};

fn main() -> Result<()> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let overrides = ["zero.ranks=2", "zero.stage=2", "train.steps=60"].map(String::from);
    let config = Config::load(&examples.join("water.toml"), &overrides)?;

    let run =
        RunDirectory::new(std::env::temp_dir().join(format!("terrashard-{}", std::process::id())));
    let options = FitOptions {
        name: "water".into(),
        run: run.clone(),
        stop_after: None,
        stop: StopRequest::default(),
        partial: Partial::Refused,
        device: Device::Cpu,
        display: Display::Auto,
    };
    let Fitted::Trained(session) = fit(&config, &options)? else {
        unreachable!("the folder is new")
    };
    println!(
        "{} parameters in {:.0} s on {} ranks",
        session.parameters, session.seconds, session.ranks
    );
    for (stage, bytes) in session.predicted.iter().enumerate() {
        println!(
            "stage {stage} takes {} KiB of model states on each rank",
            bytes.states() >> 10
        );
    }

    let test = evaluation::test(
        &config,
        run.root(),
        &TestOptions {
            device: Device::Cpu,
            ranks: 2,
            memory: None,
            display: Display::Auto,
        },
    )?;
    println!(
        "IoU {:.3}, near the shore {:.3}",
        test.scores.iou.unwrap_or(0.0),
        test.scores.shore_iou.unwrap_or(0.0)
    );
    std::fs::remove_dir_all(run.root()).expect("the run was just written there");
    Ok(())
}
