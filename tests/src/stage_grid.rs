//! The stage grid on one device: every training of the small net equals that of one rank, and the stages each other.

use std::sync::Arc;

use burn::tensor::Device;
use terrashard_collectives::Communicator;
use terrashard_layout::Stage;
use terrashard_zero::{NonFinite, Offload, Recompute, Result, StepOutcome};

use crate::gpu_ranks::Checks;
use crate::nasty::{Case, Named, TARGETS, Trained, Trainer, difference, train};

/// Relative difference of any parameter to training on one rank, in f32 after 20 steps, at most.
pub const BOUND: f64 = 1e-5;

/// That of moments, which are sums of gradients that nearly cancel, so that rounding weighs more in them.
pub const BOUND_OF_MOMENTS: f64 = 1e-3;

/// One cell of the grid, with its name.
#[derive(Debug, Clone)]
pub struct Cell {
    /// What is special about it.
    pub name: String,
    /// Its settings.
    pub case: Case,
}

/// Every stage, with recomputation, offload, accumulation, without overlap, and in groups where there are ranks for them.
pub fn cells(ranks: usize, steps: u64, device: &Device) -> Vec<Cell> {
    let mut cells = Vec::new();
    for stage in Stage::ALL {
        let mut add = |name: &str, change: &dyn Fn(&mut Case)| {
            let mut case = Case::new(ranks);
            case.steps = steps;
            case.device = device.clone();
            case.config.stage = stage;
            change(&mut case);
            let name = format!("stage {stage}, {name}");
            cells.push(Cell { name, case });
        };
        add("plain", &|_| {});
        add("no overlap", &|case| {
            case.config.overlap = false;
            case.config.prefetch = 0;
        });
        add("recompute", &|case| case.recompute = Recompute::Recompute);
        add("accumulate 3", &|case| case.config.accumulate = 3);
        let offload = match stage {
            Stage::Zero => None,
            Stage::One | Stage::Two => Some(Offload::Optimizer),
            Stage::Three => Some(Offload::Parameters),
        };
        if let Some(offload) = offload {
            add("offload", &|case| case.config.offload = offload);
        }
        if stage == Stage::Three {
            add("prefetch 2", &|case| case.config.prefetch = 2);
        }
        if ranks.is_multiple_of(2) && ranks > 2 {
            add("groups of 2", &|case| case.config.shard_group = Some(2));
        }
    }
    cells
}

/// Trains every cell on `communicator` and compares it with one rank, on `alone`, and with the first stage's plain cell of as
/// many micro-batches. All ranks call it alike.
pub fn run(
    checks: &mut Checks,
    communicator: &Arc<dyn Communicator>,
    alone: &Arc<dyn Communicator>,
    cells: &[Cell],
) {
    let mut references: Vec<(usize, Trained)> = Vec::new();
    let mut plain: Vec<(usize, Trained)> = Vec::new();
    for Cell { name, case } in cells {
        checks.check(name, || -> Result<String> {
            let accumulate = case.config.accumulate;
            if !references.iter().any(|(of, _)| *of == accumulate) {
                let reference = train(&on_one(case), alone.clone())?;
                references.push((accumulate, reference));
            }
            let expected = references.iter().find(|(of, _)| *of == accumulate);
            let expected = &expected.expect("made above").1;
            let got = train(case, communicator.clone())?;
            let mut worst = [0.0; 2];
            for (is_parameter, bound) in [(true, BOUND), (false, BOUND_OF_MOMENTS)] {
                let of = |states: &Named| -> Named {
                    let kept = |(name, _): &(&String, &Vec<f64>)| name.starts_with("Parameter/") == is_parameter;
                    let states = states.iter().filter(kept);
                    states.map(|(name, values)| (name.clone(), values.clone())).collect()
                };
                let (apart, name) = difference(&of(&got.states), &of(&expected.states));
                assert!(
                    apart <= bound,
                    "{name} differs by {apart:.1e} from training on one rank, allowed are {bound:.0e}"
                );
                worst[usize::from(!is_parameter)] = apart;
            }
            let [parameters, moments] = worst;
            let bits = match plain.iter().find(|(of, _)| *of == accumulate) {
                Some((_, first)) if *first == got => "bitwise as stage 0".to_owned(),
                Some((_, first)) => {
                    let (apart, _) = difference(&got.states, &first.states);
                    format!("{apart:.1e} from stage 0, NOT bitwise")
                }
                None => {
                    plain.push((accumulate, got));
                    "the first of its kind".to_owned()
                }
            };
            Ok(format!(
                "{parameters:.1e} from one rank, moments {moments:.1e}; {bits}"
            ))
        });
    }
}

/// A gradient of the last rank that is not finite changes nothing on any, and the step after it is taken. All ranks call it alike.
pub fn run_spoilt(checks: &mut Checks, communicator: &Arc<dyn Communicator>, device: &Device) {
    let ranks = communicator.ranks();
    for stage in Stage::ALL {
        let mut case = Case::new(ranks);
        case.device = device.clone();
        case.config.stage = stage;
        case.config.nonfinite = NonFinite::Skip;
        checks.check(
            &format!("stage {stage}, not finite"),
            || -> Result<String> {
                let rank = communicator.rank();
                let mut trainer = Trainer::new(&case, communicator.clone())?;
                trainer.step(0)?;
                let before = trainer.optimizer.own_states()?;
                let count = (case.window() * TARGETS as u64) as f64;
                let loss = trainer.loss(&case.samples(1, rank, ranks, 0), 1, count);
                let spoil = if rank + 1 == ranks { f64::NAN } else { 1.0 };
                trainer.optimizer.backward(loss.mul_scalar(spoil))?;
                let outcome = trainer.optimizer.step(case.lr, &[1.0])?;
                let StepOutcome::Skipped { origin, .. } = outcome else {
                    panic!("the step was applied")
                };
                assert_eq!(origin.rank, Some(ranks - 1));
                assert!(before == trainer.optimizer.own_states()?, "a state changed");
                assert!(matches!(trainer.step(1)?, StepOutcome::Applied { .. }));
                assert!(before != trainer.optimizer.own_states()?, "nothing changed");
                Ok("skipped by all".into())
            },
        );
    }
}

/// The same samples on one rank, with nothing sharded.
fn on_one(case: &Case) -> Case {
    let mut one = case.clone();
    one.config.stage = Stage::Zero;
    one.config.offload = Offload::None;
    one.config.shard_group = None;
    one.recompute = Recompute::Keep;
    one
}
