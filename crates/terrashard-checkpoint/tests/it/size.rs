//! What a checkpoint takes on the disk.

use std::fs;

use terrashard_checkpoint::{ElementType, Kind, Saver, Slot, State, TensorSpec};

/// Names and shapes of the parameters of MiT-B0, the smallest of its family and so that with the most names for its values.
fn b0() -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    let mut linear = |name: String, out: usize, of: &[usize]| {
        all.push((format!("{name}.weight"), [&[out], of].concat()));
        all.push((format!("{name}.bias"), vec![out]));
    };
    let dims = [6, 32, 64, 160, 256];
    for (stage, (kernel, ratio)) in [(7, 8), (3, 4), (3, 2), (3, 1)].into_iter().enumerate() {
        let (bands, dim) = (dims[stage], dims[stage + 1]);
        linear(
            format!("stages.{stage}.embed"),
            dim,
            &[bands, kernel, kernel],
        );
        linear(format!("stages.{stage}.embed_norm"), dim, &[]);
        for block in 0..2 {
            let name = |part: &str| format!("stages.{stage}.blocks.{block}.{part}");
            linear(name("norm1"), dim, &[]);
            linear(name("attn.q"), dim, &[dim]);
            linear(name("attn.kv"), 2 * dim, &[dim]);
            linear(name("attn.proj"), dim, &[dim]);
            if ratio > 1 {
                linear(name("attn.sr"), dim, &[dim, ratio, ratio]);
                linear(name("attn.norm"), dim, &[]);
            }
            linear(name("norm2"), dim, &[]);
            linear(name("ffn.fc1"), 4 * dim, &[dim]);
            linear(name("ffn.dw"), 4 * dim, &[1, 3, 3]);
            linear(name("ffn.fc2"), dim, &[4 * dim]);
        }
        linear(format!("stages.{stage}.norm"), dim, &[]);
    }
    all
}

/// Saves parameters and both moments at a rank count; bytes of all files and of the states.
fn saved(ranks: usize) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let savers = (0..ranks).map(|rank| Saver::create(folder.path(), 1, rank, ranks).unwrap());
    let savers: Vec<Saver> = savers.collect();
    savers[0].prepare().unwrap();
    for (rank, saver) in savers.iter().enumerate() {
        let mut slots = Vec::new();
        for (name, shape) in b0() {
            for kind in [Kind::Parameter, Kind::M, Kind::V] {
                let tensor = TensorSpec::new(name.as_str(), kind, shape.clone(), ElementType::F32);
                let numel = tensor.numel();
                let own = numel.div_ceil(ranks);
                let interval = numel.min(rank * own)..numel.min((rank + 1) * own);
                slots.push(Slot { tensor, interval });
            }
        }
        let zeros = |slot: &Slot| Ok::<_, std::io::Error>(vec![0; 4 * slot.interval.len()].into());
        saver.write_with(&slots, zeros).unwrap();
    }
    let step = savers[0]
        .publish(&State {
            step: 1,
            ..State::default()
        })
        .unwrap();
    let files = fs::read_dir(step).unwrap();
    let disk = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    let states = b0()
        .iter()
        .map(|(_, shape)| 12 * shape.iter().product::<usize>() as u64)
        .sum();
    (disk, states)
}

#[test]
fn at_most_two_percent_more_than_the_states_at_any_rank_count() {
    for ranks in 1..=4 {
        let (disk, states) = saved(ranks);
        let more = disk as f64 / states as f64 - 1.0;
        assert!(disk > states && states > 39_000_000, "{disk} {states}");
        assert!(
            more <= 0.02,
            "{ranks} ranks: {disk} bytes for {states}, {:.2} % more",
            100.0 * more
        );
    }
}
