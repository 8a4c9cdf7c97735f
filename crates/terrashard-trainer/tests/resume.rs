//! A run that ends and starts again goes on as if it had not ended.

mod job;

use std::path::Path;

use job::{configuration, label, scene, succeed, text};
use terrashard_checkpoint::{Checkpoint, ElementType, Kind};

/// Trains to `last` on `ranks` ranks.
fn fit(config: &Path, run: &Path, ranks: usize, stage: u8, last: u64) {
    let (ranks, stage, last) = (ranks.to_string(), stage.to_string(), last.to_string());
    let place = [
        "fit",
        text(config),
        "--run",
        text(run),
        "--resume",
        "auto",
        "--quiet",
    ];
    let how = ["--ranks", &ranks, "--stage", &stage, "--stop-after", &last];
    succeed(&[&place[..], &how[..]].concat());
}

/// All tensors of the newest checkpoint.
fn states(run: &Path) -> Vec<(String, Kind, Vec<f64>)> {
    let checkpoint = Checkpoint::open(run).expect("the run is saved");
    let read = |spec: &terrashard_checkpoint::TensorSpec| {
        let bytes = checkpoint
            .read_whole(&spec.name, spec.kind)
            .expect("readable");
        let values = match spec.dtype {
            ElementType::F32 => bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b).into())
                .collect(),
            ElementType::F64 => bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
            other => panic!("{} has the type {other:?}", spec.name),
        };
        (spec.name.clone(), spec.kind, values)
    };
    checkpoint.tensors().map(read).collect()
}

#[test]
fn at_the_same_rank_count_bitwise() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path(), &scene(), &label());
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    fit(&config, &whole, 2, 2, 10);
    fit(&config, &cut, 2, 2, 5);
    fit(&config, &cut, 2, 2, 10);
    let (whole, cut) = (states(&whole), states(&cut));
    assert!(
        whole.len() > 3 * 100,
        "parameters and both moments: {}",
        whole.len()
    );
    for (whole, cut) in whole.iter().zip(&cut) {
        assert!(whole == cut, "{} ({}) differs", whole.0, whole.1);
    }
    assert_eq!(whole.len(), cut.len());
}

#[test]
fn on_four_then_two_then_three_ranks_within_rounding() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path(), &scene(), &label());
    let (whole, changing) = (dir.path().join("whole"), dir.path().join("changing"));
    fit(&config, &whole, 4, 2, 10);
    fit(&config, &changing, 4, 2, 4);
    fit(&config, &changing, 2, 1, 7);
    fit(&config, &changing, 3, 0, 10);
    let (whole, changing) = (states(&whole), states(&changing));
    assert_eq!(whole.len(), changing.len());
    for ((name, kind, whole), (_, _, changing)) in whole.iter().zip(&changing) {
        // Gradients that are zero in mathematics: K's half of the attention biases, biases in front of batch-norm.
        // AdamW turns their rounding noise into steps of at most the learning rate.
        let first = match name.as_str() {
            name if name.ends_with("attn.kv.bias") => whole.len() / 2,
            name if name.starts_with("tail.head.linear.") && name.ends_with("bias") => whole.len(),
            "stages.3.norm.bias" => whole.len(),
            _ => 0,
        };
        let (noise, noise_changing) = (&whole[..first], &changing[..first]);
        for (a, b) in noise.iter().zip(noise_changing) {
            assert!(
                (a - b).abs() <= 2.0 * 1e-3 * 10.0,
                "{name} ({kind}): {a} and {b}"
            );
        }
        let square =
            |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let pairs = || whole[first..].iter().zip(&changing[first..]);
        let difference = square(&mut pairs().map(|(a, b)| a - b));
        let norm = square(&mut pairs().map(|(a, _)| *a));
        // Moments hold the gradient itself, whose rounding does not average out.
        let bound = if *kind == Kind::Parameter { 1e-5 } else { 1e-3 };
        assert!(
            difference <= bound * norm,
            "{name} ({kind}): {difference:e} of {norm:e}"
        );
    }
}
