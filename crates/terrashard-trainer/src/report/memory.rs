//! The section on memory: what each stage takes on a rank, and what the ranks of the run really held.

use terrashard_layout::RankBytes;

use super::charts::{self, Bar};
use crate::record::{HeldBytes, MeasuredPeak, SessionRecord};

/// What a line stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A stage that the run did not use, by prediction.
    Other,
    /// The run's stage, by prediction.
    Used,
    /// The run's stage, counted.
    Counted,
}

impl Kind {
    fn of(stage: usize, used: usize) -> Self {
        match stage {
            _ if stage == used => Kind::Used,
            _ => Kind::Other,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Kind::Other => "other",
            Kind::Used => "used",
            Kind::Counted => "counted",
        }
    }
}

/// One line of chart and table.
struct Entry {
    label: String,
    states: HeldBytes,
    kind: Kind,
}

impl Entry {
    fn predicted(stage: usize, bytes: &RankBytes, kind: Kind) -> Self {
        let states = HeldBytes {
            parameters: bytes.parameters,
            gradients: bytes.gradients,
            optimizer: bytes.optimizer(),
            host: bytes.host,
            gathered: bytes.gathered,
            buckets: bytes.buckets,
        };
        Self {
            label: format!("Stage {stage}"),
            states,
            kind,
        }
    }

    fn bar(&self) -> Bar {
        let HeldBytes {
            parameters,
            gradients,
            optimizer,
            host,
            ..
        } = self.states;
        Bar {
            label: self.label.clone(),
            parts: vec![
                ("parameters", parameters as f64),
                ("gradients", gradients as f64),
                ("optimizer", optimizer as f64),
                ("host", host as f64),
            ],
            text: mebibytes(self.states.total()),
            class: self.kind.class(),
        }
    }

    fn row(&self, whole: u64) -> String {
        let HeldBytes {
            parameters,
            gradients,
            optimizer,
            host,
            gathered,
            buckets,
        } = self.states;
        let class = self.kind.class();
        let share = 100.0 * self.states.total() as f64 / whole as f64;
        let cells = [
            mebibytes(parameters),
            mebibytes(gradients),
            mebibytes(optimizer),
            mebibytes(host),
            mebibytes(self.states.total()),
            format!("{share:.0}\u{a0}%"),
            mebibytes(buckets),
            mebibytes(gathered),
        ];
        let cells: String = cells
            .iter()
            .map(|text| format!("<td>{text}</td>"))
            .collect();
        format!(
            "<tr class=\"{class}\"><th scope=\"row\">{}</th>{cells}</tr>",
            self.label
        )
    }
}

/// The section of a call of `fit`.
pub(super) fn section(session: &SessionRecord) -> String {
    let used = usize::from(u8::from(session.stage));
    let predicted = session.predicted.iter().enumerate();
    let mut entries: Vec<Entry> = predicted
        .map(|(stage, bytes)| Entry::predicted(stage, bytes, Kind::of(stage, used)))
        .collect();
    let Some(whole) = entries.first().map(|entry| entry.states.total()) else {
        return String::new();
    };
    let counted = Entry {
        label: format!("Stage {used}, counted"),
        states: session.counted,
        kind: Kind::Counted,
    };
    entries.insert((used + 1).min(entries.len()), counted);
    let bars: Vec<Bar> = entries.iter().map(Entry::bar).collect();
    let rows: String = entries.iter().map(|entry| entry.row(whole)).collect();
    let columns = [
        "Parameters",
        "Gradients",
        "Optimizer",
        "Host memory",
        "Together",
        "of stage 0",
        "Buckets in flight",
        "Gathered",
    ];
    let columns: String = columns
        .iter()
        .map(|name| format!("<th scope=\"col\">{name}</th>"))
        .collect();
    let ranks = match session.ranks {
        1 => "the one rank; with one there is nothing to shard".into(),
        ranks => format!("each of {ranks} ranks"),
    };
    format!(
        "<section><h2>Memory per rank</h2><figure><div class=\"scroll\">{}</div><figcaption class=\"key\"><i class=\"parameters\"></i> parameters \
         <i class=\"gradients\"></i> gradients <i class=\"optimizer\"></i> optimizer states \
         <i class=\"host\"></i> in host memory</figcaption></figure>\
         <div class=\"scroll\"><table class=\"numbers\"><thead><tr><th></th>{columns}</tr></thead><tbody>{rows}</tbody></table></div>\
         <p class=\"prose\">Model states on {ranks}. The stages are predicted from the shard table; “Counted” is what \
         the tensors of this run, at stage {used}, really took on the fullest rank. Buckets, gathered parameters and activations come \
         on top. At stage 1 gradients are whole only while micro-batches add up; with one micro-batch a \
         step they are reduced as they arrive.{}{}</p></section>\n",
        charts::bars(&bars),
        the_rest(session),
        foretold(session).map_or_else(String::new, |text| format!(" {text}")),
    )
}

/// What `plan` foretold beside what was measured: of a rank's GPU, or of the whole program on the processor.
fn foretold(session: &SessionRecord) -> Option<String> {
    let (foretold, measured) = (session.foretold?, session.measured_peak?);
    let (what, foretold, measured) = match measured {
        MeasuredPeak::Device { bytes } => ("a rank\u{2019}s GPU", foretold.peak, bytes),
        // Its ranks are threads; their loaders hold batches in the same memory.
        MeasuredPeak::Program { bytes } => (
            "all ranks, with their loaders, above what the program held before",
            session.ranks as u64 * (foretold.peak + session.prepared as u64 * foretold.batch),
            bytes,
        ),
    };
    let difference = 100.0 * (foretold as f64 / measured.max(1) as f64 - 1.0);
    Some(format!(
        "\u{201c}plan\u{201d} foretells {} at most for {what}; measured were {} ({difference:+.0}\u{a0}%).",
        mebibytes(foretold),
        mebibytes(measured),
    ))
}

/// What the program held besides model states, which on the CPU is measured for all ranks together.
fn the_rest(session: &SessionRecord) -> String {
    let Some(peak) = session.peak_rss_bytes else {
        return String::new();
    };
    let counted = session.counted;
    let ranks = session.ranks as u64;
    let travelling = counted.buckets + counted.gathered;
    let rest = peak.saturating_sub(ranks * (counted.total() + travelling));
    format!(
        " The whole program held {} at most: {} of states, {} of buckets and gathered parameters, and {} of everything \
         else, which is activations for the most part, batches, and the program itself.",
        mebibytes(peak),
        mebibytes(ranks * counted.total()),
        mebibytes(ranks * travelling),
        mebibytes(rest),
    )
}

fn mebibytes(bytes: u64) -> String {
    let value = bytes as f64 / f64::from(1 << 20);
    match value >= 1024.0 {
        true => format!("{:.2}\u{a0}GiB", value / 1024.0),
        false => format!("{value:.1}\u{a0}MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        assert_eq!(mebibytes(3 << 19), "1.5\u{a0}MiB");
        assert_eq!(mebibytes(3 << 29), "1.50\u{a0}GiB");
    }
}
