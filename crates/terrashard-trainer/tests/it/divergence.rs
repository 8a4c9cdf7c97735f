//! Numbers that are not finite, with batch statistics over all ranks: the rank and the chips where they began are told.

use terrashard_layout::{BatchShape, SampleOrder};
use terrashard_raster::Samples;

use crate::scenario::{HEIGHT, Scenario, TRANSFORM, WIDTH};

const CHIP: usize = 32;
const STEPS: u64 = 8;
const SEED: u64 = 7;

#[test]
fn what_is_not_finite_is_blamed_on_the_rank_whose_input_it_was() {
    // The third of the six chips, by rows, holds numbers that are none in half precision.
    let bad = 2;
    let scenario = Scenario::new();
    let is_bad = |x: usize, y: usize| x / CHIP == 2 && y / CHIP == 0;
    let pixels = |band: usize| {
        (0..WIDTH * HEIGHT).map(move |at| {
            let (x, y) = (at % WIDTH, at / WIDTH);
            match is_bad(x, y) {
                true => 1e9,
                false => (800 + 300 * band + (x * 37 + y * 91) % 200) as f32,
            }
        })
    };
    let samples = Samples::F32((0..2).flat_map(pixels).collect());
    scenario.write("image.tif", (WIDTH, HEIGHT), 2, samples, TRANSFORM);
    let output = scenario.terrashard(&[
        "fit",
        "run.toml",
        "--run",
        "run",
        "--ranks",
        "2",
        "--set",
        "train.precision=fp16",
        "--set",
        "train.global_batch=4",
        "--set",
        &format!("train.steps={STEPS}"),
        "--set",
        "data.stride=32",
        "--set",
        "data.train={ pixels = [0, 0, 96, 64] }",
        "--set",
        "data.test={ pixels = [96, 0, 32, 64] }",
    ]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    let order = SampleOrder::new(6, SEED).unwrap();
    let shape = BatchShape {
        ranks: 2,
        micro_batch: 2,
        accumulate: 1,
    };
    let mut blamed = [0; 2];
    for step in 1..=STEPS {
        let window = shape.window((step - 1) * 4, None);
        let has_it = |rank: &usize| window.micro_batch(*rank, 0).any(|at| order.at(at) == bad);
        let Some(rank) = (0..2).find(has_it) else {
            continue;
        };
        blamed[rank] += 1;
        let begins = format!("step {step} was skipped: a gradient is not finite; rank {rank}, ");
        let line = told.lines().find(|line| line.starts_with(&begins));
        let line = line.unwrap_or_else(|| panic!("no `{begins}` in {told}"));
        assert!(line.contains("image.tif [64, 0, 32, 32]"), "{line}");
    }
    assert!(blamed[0] > 0 && blamed[1] > 0, "{blamed:?}");
}
