//! `bench stages --largest`: the largest micro-batch of a model, or the largest model with one sample, within a GPU's memory that is
//! limited.
//!
//! Every trial is a run of its own, so that what one leaves behind is no matter of the next. The search begins where `terrashard plan`
//! says that the end is, and each trial is compared with what the plan foretold of it.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use terrashard_trainer::planning;

use super::job::{Error, Job, Precision, Sharding};
use super::processes::{self, Program};
use super::{Losses, Measured, StagesBench, foretold, jobs};

/// Blocks of the third stage of the largest model that is tried.
const MOST_BLOCKS: usize = 1000;

/// Samples of the largest micro-batch that is tried.
const MOST_SAMPLES: usize = 4096;

/// Steps of a trial: the first makes optimizer states, the second has all that training takes, and by the last graphs of kernels are made.
const STEPS: usize = 5;

/// The last result within this part of a size is near enough.
const NEAR: usize = 64;

/// What is made larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sought {
    /// The micro-batch of a model.
    Batch,
    /// The third stage of `xl`, with one sample.
    Model,
}

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Which benchmark.
    pub bench: String,
    /// What was made larger.
    pub sought: Sought,
    /// The model's name.
    pub model: String,
    /// Input height and width in pixels.
    pub px: usize,
    /// Element type of the computation.
    pub precision: Precision,
    /// What is sharded, offloaded and recomputed.
    pub sharding: String,
    /// Ranks.
    pub ranks: usize,
    /// Samples of one rank's batch.
    pub batch_per_rank: usize,
    /// What a rank may take of its GPU, GiB.
    #[serde(rename = "limit_GiB")]
    pub limit_gib: f64,
    /// What the plan foretold, GiB.
    #[serde(rename = "foretold_GiB")]
    pub foretold_gib: f64,
    /// Whether that is within the limit.
    pub foretold: bool,
    /// Whether it ran.
    pub fits: bool,
    /// What was measured, where it ran.
    #[serde(flatten)]
    pub measured: Option<Measured>,
    /// Why it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The commit of this program.
    pub commit: String,
}

impl Trial {
    /// The columns of [`cells`](Self::cells).
    pub const HEAD: [&'static str; 11] = [
        "model",
        "px",
        "precision",
        "ranks",
        "stage",
        "batch",
        "limit GiB",
        "foretold GiB",
        "alloc GiB",
        "runs",
        "as foretold",
    ];

    /// The row for a table.
    pub fn cells(&self) -> Vec<String> {
        let yes = |it: bool| if it { "yes" } else { "no" }.to_string();
        let allocated = self.measured.as_ref().and_then(|it| it.alloc_gib);
        vec![
            self.model.clone(),
            self.px.to_string(),
            self.precision.to_string(),
            self.ranks.to_string(),
            self.sharding.clone(),
            self.batch_per_rank.to_string(),
            format!("{:.2}", self.limit_gib),
            format!("{:.2}", self.foretold_gib),
            allocated.map_or("-".into(), |gib| format!("{gib:.2}")),
            self.error.clone().unwrap_or_else(|| yes(self.fits)),
            yes(self.fits == self.foretold),
        ]
    }
}

/// Searches for every model, precision, number of ranks and sharding, and hands each trial to `each` as it is made.
///
/// # Errors
/// [`Error`] for a job that there is not.
pub fn run(
    bench: &StagesBench,
    sought: Sought,
    limit: u64,
    mut each: impl FnMut(Trial),
) -> Result<(), Error> {
    let began = Instant::now();
    for job in jobs(bench)? {
        let at = |size: usize| {
            let mut job = Job {
                memory: Some(limit),
                profile: false,
                steps: STEPS,
                warm_up: 0,
                ..job.clone()
            };
            match sought {
                Sought::Batch => job.batch = size,
                Sought::Model => {
                    job.model = format!("xl-{size}");
                    job.batch = 1;
                }
            }
            job
        };
        let most = match sought {
            Sought::Batch => MOST_SAMPLES,
            Sought::Model => MOST_BLOCKS,
        };
        let foretell = |size: usize| {
            let plan = foretold::foretold(&at(size), Losses::default());
            plan.map_or(u64::MAX, |plan| plan.total)
        };
        search(
            most,
            |size| planning::fits(foretell(size), limit),
            |size| {
                if began.elapsed() > bench.total {
                    return Outcome::Over;
                }
                let trial = trial(&at(size), sought, foretell(size), limit, bench);
                let outcome = match (&trial.error, trial.fits) {
                    (_, true) => Outcome::Fits,
                    (Some(error), _) if !is_memory(error) => Outcome::Over,
                    _ => Outcome::DoesNot,
                };
                each(trial);
                outcome
            },
        );
    }
    Ok(())
}

fn trial(job: &Job, sought: Sought, foretold: u64, limit: u64, bench: &StagesBench) -> Trial {
    let outcome = processes::run(&Program::own(job), &job.processes(super::OURS), bench.limit);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (measured, error) = match outcome {
        Ok(measured) => (Some(measured), None),
        Err(error) => (None, Some(one_line(error))),
    };
    Trial {
        bench: "largest".into(),
        sought,
        model: job.model.clone(),
        px: job.px,
        precision: job.precision,
        sharding: job.sharding.to_string(),
        ranks: job.ranks,
        batch_per_rank: job.batch,
        limit_gib: gib(limit),
        foretold_gib: gib(foretold),
        foretold: planning::fits(foretold, limit),
        fits: measured.is_some(),
        measured,
        error,
        commit: bench.commit.clone(),
    }
}

/// What is said in more words where memory is used up.
fn one_line(error: String) -> String {
    let told = terrashard_trainer::device_memory::used_up(&error);
    told.map_or(error, |told| format!("{USED_UP}: {told}"))
}

/// What stands before the sizes where memory is used up.
const USED_UP: &str = "out of memory";

fn is_memory(error: &str) -> bool {
    error.starts_with(USED_UP)
}

/// What became of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Fits,
    DoesNot,
    /// The time is over, or it failed for another reason.
    Over,
}

/// Tries sizes from 1 to `most` until the largest that fits is known to within a part of it, and returns it. `foretold` says of a size
/// whether it is expected to fit: the search begins there.
fn search(
    most: usize,
    foretold: impl Fn(usize) -> bool,
    mut fits: impl FnMut(usize) -> Outcome,
) -> Option<usize> {
    let (mut good, mut bad) = (0, most + 1);
    let mut next = expected(most, foretold).max(1);
    loop {
        match fits(next) {
            Outcome::Fits => good = next,
            Outcome::DoesNot => bad = next,
            Outcome::Over => break,
        }
        let near = (good / NEAR).max(1);
        if bad - good <= near {
            break;
        }
        next = if bad > most && good < most {
            // Nothing has failed yet: what is foretold is nearly right.
            (good + near).min(most)
        } else if good == 0 {
            // Nothing has fitted yet.
            (bad - (bad / NEAR).max(1)).max(1)
        } else {
            good + (bad - good) / 2
        };
        if next == good || next == bad {
            break;
        }
    }
    (good > 0).then_some(good)
}

/// The largest size that is expected to fit; 0 for none.
fn expected(most: usize, foretold: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut bad) = (0, most + 1);
    while bad - good > 1 {
        let next = match bad > most {
            true => (2 * good).clamp(1, most),
            false => good + (bad - good) / 2,
        };
        match foretold(next) {
            true if next == most => return most,
            true => good = next,
            false => bad = next,
        }
    }
    good
}

impl Sharding {
    /// Every stage with what it can offload, kept and recomputed: what `--largest` tries unless told otherwise.
    pub fn all() -> Vec<Self> {
        let sharding = |stage, offload, recompute| Self {
            stage,
            offload,
            recompute,
            group: None,
        };
        let stages = (0..=3).flat_map(|stage| {
            let offloads = if stage == 0 {
                &[false][..]
            } else {
                &[false, true]
            };
            offloads.iter().map(move |offload| (stage, *offload))
        });
        let stages: Vec<_> = stages.collect();
        let with = |recompute| {
            stages
                .iter()
                .map(move |&(stage, offload)| sharding(stage, offload, recompute))
        };
        with(false).chain(with(true)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result, and what was tried.
    fn searched(most: usize, foretold: usize, real: usize) -> (Option<usize>, Vec<usize>) {
        let mut tried = Vec::new();
        let found = search(
            most,
            |size| size <= foretold,
            |size| {
                tried.push(size);
                match size <= real {
                    true => Outcome::Fits,
                    false => Outcome::DoesNot,
                }
            },
        );
        (found, tried)
    }

    #[test]
    fn a_plan_that_is_right_takes_two_trials() {
        assert_eq!(searched(4096, 29, 29), (Some(29), vec![29, 30]));
        let (found, tried) = searched(4096, 640, 640);
        assert_eq!((found, tried.len()), (Some(640), 2));
        assert_eq!(searched(100, 100, 100), (Some(100), vec![100]));
    }

    #[test]
    fn a_plan_that_is_wrong_is_put_right() {
        for (foretold, real) in [
            (29, 20),
            (29, 35),
            (5, 1),
            (1, 6),
            (0, 3),
            (700, 650),
            (650, 700),
        ] {
            let (found, tried) = searched(4096, foretold, real);
            let found = found.expect("one sample fits");
            let near = (real / NEAR).max(1);
            assert!(
                found <= real && real - found < near.max(2),
                "{found} for {real} after {tried:?}"
            );
            assert!(tried.len() <= 25, "{tried:?}");
        }
        assert_eq!(searched(4096, 3, 0).0, None);
        assert_eq!(searched(4096, 0, 0), (None, vec![1]));
    }

    #[test]
    fn the_search_ends_with_the_time() {
        let mut trials = 0;
        let found = search(
            4096,
            |size| size <= 10,
            |_| {
                trials += 1;
                match trials {
                    1 => Outcome::Fits,
                    _ => Outcome::Over,
                }
            },
        );
        assert_eq!((found, trials), (Some(10), 2));
    }

    #[test]
    fn every_sharding_is_written_as_it_is_read() {
        let all = Sharding::all();
        assert_eq!(all.len(), 14);
        for sharding in all {
            assert_eq!(sharding.to_string().parse::<Sharding>().unwrap(), sharding);
        }
    }
}
