//! Prints who owns what of a small encoder on three ranks, and what each stage of ZeRO would cost a rank.
//!
//! `cargo run -p terrashard-layout --example plan`

use terrashard_layout::{ElementType, LayoutConfig, ParameterSpec, ShardTable, Stage};

fn main() -> Result<(), terrashard_layout::Error> {
    let shapes: [(&str, &[usize]); 3] = [
        ("norm.gamma", &[64]),
        ("mlp.weight", &[64, 256]),
        ("bias", &[35]),
    ];
    let parameters: Vec<ParameterSpec> = (0..4)
        .flat_map(|block| shapes.map(|(name, shape)| (format!("block.{block}.{name}"), shape)))
        .map(|(name, shape)| ParameterSpec::new(name, shape, ElementType::Bf16))
        .collect();
    let ranks = 3;
    println!(
        "{:<28}{:>9}  elements of each rank",
        "parameter", "elements"
    );
    let config = LayoutConfig {
        ranks,
        stage: Stage::Two,
        ..LayoutConfig::default()
    };
    let table = ShardTable::new(parameters.clone(), &config)?;
    for row in table.rows().iter().take(3) {
        let intervals: Vec<String> = (0..ranks)
            .map(|rank| format!("{:?}", row.interval(rank, ranks)))
            .collect();
        println!(
            "{:<28}{:>9}  {}",
            row.parameter.name,
            row.numel(),
            intervals.join("  ")
        );
    }

    println!("\nbuckets, as backward completes them:");
    for bucket in table.buckets() {
        let names: Vec<&str> = bucket
            .pieces
            .iter()
            .map(|piece| table.rows()[piece.row].parameter.name.as_str())
            .collect();
        println!("{:>8} bytes: {}", bucket.bytes(ranks), names.join(", "));
    }
    println!("\nbytes on each of {ranks} ranks:");
    for stage in Stage::ALL {
        let config = LayoutConfig { stage, ..config };
        let bytes = ShardTable::new(parameters.clone(), &config)?.memory();
        println!(
            "stage {stage}: {} of model states: {bytes:?}",
            bytes.states()
        );
    }
    Ok(())
}
