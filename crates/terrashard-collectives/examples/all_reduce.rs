//! Estimates pi on several threads: each samples its own part of the unit square, an all-reduce adds the counts.
//!
//! `cargo run -p terrashard-collectives --example all_reduce -- 4`

use burn::tensor::{DType, Device, Tensor};
use terrashard_collectives::{Communicator, Error, local};

const ROWS: usize = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ranks = std::env::args()
        .nth(1)
        .map_or(Ok(3), |argument| argument.parse())?;
    let results = local::run(ranks, |rank| {
        // Rows of a grid are dealt out in turn.
        let mut inside = 0.0;
        let mut seen = 0.0;
        for row in (rank.rank()..ROWS).step_by(rank.ranks()) {
            for column in 0..ROWS {
                let [x, y] = [column, row].map(|cell| (cell as f64 + 0.5) / ROWS as f64);
                inside += f64::from(u8::from(x * x + y * y < 1.0));
                seen += 1.0;
            }
        }
        let mine = Tensor::<1>::from_data([inside, seen], (&Device::flex(), DType::F64));
        let pending = rank.all_reduce(mine)?;
        // Here a rank could do other work while the sum is on its way.
        let total = pending.wait()?;
        let total: Vec<f64> = total.into_data().iter().collect();
        Ok::<_, Error>((4.0 * total[0] / total[1], rank.traffic()))
    })?;
    for (rank, (pi, traffic)) in results.iter().enumerate() {
        println!(
            "rank {rank}: pi is about {pi:.5}; sent {} bytes",
            traffic.bytes()
        );
    }
    Ok(())
}
