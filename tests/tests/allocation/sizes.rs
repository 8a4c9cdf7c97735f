//! Batches whose size changes from step to step.

use burn::tensor::{Device, Distribution, Tensor};
use terrashard_layout::Stage;

use crate::{BLOCK, KEEP, RANKS, WIDTH, config, ranks, turn};

#[test]
fn m8_steps_of_changing_sizes_leave_nothing_behind() {
    const STEPS: usize = 200;
    let _turn = turn();
    let lives = ranks(&config(Stage::Three), |mut rank| {
        let mut lives = Vec::new();
        for step in 0..STEPS {
            let rows = 1 + (step * 7) % 23;
            let device = Device::flex().autodiff();
            let x = Tensor::random([rows, WIDTH], Distribution::Default, &device);
            let y = rank.output(x, KEEP, |_| ());
            rank.optimizer.backward(y.mean())?;
            rank.optimizer.step(0.01, &[])?;
            lives.push(rank.settled());
        }
        Ok(lives)
    });
    let most = |steps: std::ops::Range<usize>| {
        let live = lives[0][steps].iter().copied();
        live.max().expect("steps")
    };
    // All sizes have been there within the first fifty.
    let (early, late) = (most(0..50), most(STEPS - 50..STEPS));
    assert!(
        late < early + RANKS * BLOCK / 4,
        "{early} bytes at first, {late} at last"
    );
}
