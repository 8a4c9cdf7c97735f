//! What more ranks are worth: images a second of each rank beside those of one rank alone.

use std::path::PathBuf;

use super::{OURS, Sharding, StagesRow};

/// One job on several ranks beside a rank that trains alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling<'a> {
    /// The job on several ranks.
    pub row: &'a StagesRow,
    /// Images a second of a rank over those of one rank alone with as many samples at stage 0: the efficiency of weak scaling. None where
    /// either was not measured.
    pub efficiency: Option<f64>,
}

impl Scaling<'_> {
    /// The columns of [`cells`](Self::cells).
    pub const HEAD: [&'static str; 9] = [
        "model",
        "ranks",
        "stage",
        "samples of a rank",
        "ms",
        "images/s",
        "efficiency",
        "alloc GiB",
        "foretold GiB",
    ];

    /// The row for a table.
    pub fn cells(&self) -> Vec<String> {
        let row = self.row;
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".into(), |value| format!("{value:.digits$}"))
        };
        let measured = row.measured.as_ref();
        vec![
            row.model.clone(),
            row.ranks.to_string(),
            row.sharding().to_string(),
            row.batch_per_rank.to_string(),
            number(measured.map(|it| it.step_ms), 2),
            number(measured.map(|it| it.images_s), 1),
            number(self.efficiency, 3),
            number(measured.and_then(|it| it.alloc_gib), 2),
            number(row.foretold_gib, 2),
        ]
    }
}

/// The rows of several record folders.
///
/// # Errors
/// In words, with the file that cannot be read or holds no rows of stages.
pub fn rows(records: &[PathBuf]) -> Result<Vec<StagesRow>, String> {
    let mut rows = Vec::new();
    for record in records {
        let path = record.join("results.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("failed to read {}: {error}", path.display()))?;
        let read = || -> Result<Vec<StagesRow>, serde_json::Error> {
            let values: Vec<serde_json::Value> = serde_json::from_str(&text)?;
            values.iter().map(StagesRow::read).collect()
        };
        let read = read()
            .map_err(|error| format!("{} holds no rows of stages: {error}", path.display()))?;
        rows.extend(read);
    }
    Ok(rows)
}

/// Ours of `rows`, in their order.
pub fn scaling(rows: &[StagesRow]) -> Vec<Scaling<'_>> {
    let each = |row: &StagesRow| {
        let measured = row.measured.as_ref()?;
        Some(measured.images_s / row.ranks as f64)
    };
    let alone = |row: &StagesRow| {
        let same = |other: &&StagesRow| {
            other.who == OURS
                && other.ranks == 1
                && other.sharding() == Sharding::default()
                && (
                    &other.model,
                    other.px,
                    other.batch_per_rank,
                    other.precision,
                ) == (&row.model, row.px, row.batch_per_rank, row.precision)
        };
        // Where it was measured several times, the fastest: ours are not flattered by a slow one.
        let all = rows.iter().filter(same).filter_map(each);
        all.max_by(f64::total_cmp)
    };
    let ours = rows.iter().filter(|row| row.who == OURS);
    let beside = |row| Scaling {
        row,
        efficiency: each(row).zip(alone(row)).map(|(own, alone)| own / alone),
    };
    ours.map(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::Measured;

    fn row(who: &str, ranks: usize, stage: u8, images_s: Option<f64>) -> StagesRow {
        let row = serde_json::json!({
            "who": who, "bench": "stages", "device": "cuda", "model": "b0", "px": 512, "stage": stage, "offload": false,
            "recompute": false, "ranks": ranks, "precision": "bf16", "batch_per_rank": 8, "commit": "0",
        });
        let mut row: StagesRow = serde_json::from_value(row).unwrap();
        row.measured = images_s.map(|images_s| Measured {
            images_s,
            ..Measured::default()
        });
        row
    }

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let mut row = row(OURS, 2, 3, Some(5.0));
        if let Some(measured) = &mut row.measured {
            measured.loss = [(1, 0.5), (28, 0.25)].into();
        }
        let value = serde_json::to_value(&row).unwrap();
        assert_eq!(StagesRow::read(&value).unwrap(), row);
        row.measured = None;
        row.error = Some("no memory".into());
        let value = serde_json::to_value(&row).unwrap();
        assert_eq!(StagesRow::read(&value).unwrap(), row);
    }

    #[test]
    fn a_rank_is_compared_with_one_that_is_alone() {
        let rows = [
            row(OURS, 1, 0, Some(90.0)),
            row(OURS, 1, 0, Some(100.0)),
            row("ddp", 1, 0, Some(900.0)),
            row(OURS, 4, 2, Some(380.0)),
            row(OURS, 8, 2, None),
        ];
        let all = scaling(&rows);
        let efficiencies: Vec<_> = all.iter().map(|it| it.efficiency).collect();
        assert_eq!(efficiencies, [Some(0.9), Some(1.0), Some(0.95), None]);
        assert_eq!(all[2].cells()[6], "0.950");
        // Nothing to be compared with.
        assert_eq!(scaling(&rows[3..])[0].efficiency, None);
    }
}
