//! Saves a tensor at 4 ranks and reads it at 3: `cargo run -p terrashard-checkpoint --example reshard`.

use std::error::Error;
use std::ops::Range;

use terrashard_checkpoint::{Checkpoint, FOLDER, Kind, Piece, Saver, State, TensorSpec};
use terrashard_layout::{ElementType, ParameterSpec, Row};

/// Element `i` has the value `i`.
fn values(interval: Range<usize>) -> Vec<u8> {
    interval.flat_map(|i| (i as f32).to_le_bytes()).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let run = std::env::temp_dir().join(format!("reshard-{}", std::process::id()));
    let row = Row {
        parameter: ParameterSpec::new("stem.weight", [8, 6, 7, 7], ElementType::F32),
        order: 0,
        replicated: false,
    };
    // Here one thread plays all ranks in turn; where they are threads or processes, a barrier ends each loop.
    let savers = (0..4)
        .map(|rank| Saver::create(run.join(FOLDER), 100, rank, 4))
        .collect::<Result<Vec<_>, _>>()?;
    for saver in &savers {
        saver.prepare()?;
    }
    for (rank, saver) in savers.iter().enumerate() {
        let tensor = TensorSpec::of(&row.parameter, Kind::Parameter);
        let start = row.interval(rank, 4).start;
        let bytes = values(row.interval(rank, 4)).into();
        saver.write(&[Piece {
            tensor,
            start,
            bytes,
        }])?;
    }
    let state = State {
        step: 100,
        ..State::default()
    };
    for saver in &savers {
        saver.publish(&state)?;
    }

    let checkpoint = Checkpoint::open(&run)?;
    println!("{} bytes are sound", checkpoint.verify()?);
    for rank in 0..3 {
        let interval = row.interval(rank, 3);
        let bytes = checkpoint.read("stem.weight", Kind::Parameter, interval.clone())?;
        assert_eq!(bytes, values(interval.clone()));
        println!("rank {rank} of 3 has read elements {interval:?}");
    }
    Ok(std::fs::remove_dir_all(run)?)
}
