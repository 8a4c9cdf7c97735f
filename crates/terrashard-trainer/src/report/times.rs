//! The section on time and traffic: where the steps' time went, and what a rank sent beside what the formulas say.

use crate::record::{SentBytes, SessionRecord, StepTimes};

/// The section of a call of `fit`; empty for one that was made before times were measured.
pub(super) fn section(session: &SessionRecord) -> String {
    let total = session.times.total();
    if total == 0.0 {
        return String::new();
    }
    let StepTimes {
        data,
        compute,
        communication,
        optimizer,
        checkpoint,
        validation,
    } = session.times;
    let rows = [
        ("Forward and backward", compute),
        ("Waiting for other ranks", communication),
        ("Update", optimizer),
        ("Waiting for batches", data),
        ("Saving", checkpoint),
        ("Validation and panels", validation),
    ];
    let rows: String = rows
        .iter()
        .map(|(name, seconds)| {
            let share = 100.0 * seconds / total;
            format!(
                "<tr><th scope=\"row\">{name}</th><td>{seconds:.2}\u{a0}s</td><td>{share:.1}\u{a0}%</td></tr>"
            )
        })
        .collect();
    let SentBytes {
        all_reduce,
        reduce_scatter,
        all_gather,
    } = session.sent;
    let kibibytes = |bytes: u64| format!("{:.1}\u{a0}KiB", bytes as f64 / 1024.0);
    format!(
        "<section><h2>Time and traffic</h2><div class=\"scroll\"><table class=\"numbers\"><tbody>{rows}</tbody></table></div>\
         <p class=\"prose\">Of rank 0, over all steps of the last call. In its last step it sent {} ({} in all-reduces, {} in \
         reduce-scatters, {} in all-gathers); the formulas say {} for gradients and parameters. The rest is scalars and \
         batch statistics.</p></section>\n",
        kibibytes(session.sent.total()),
        kibibytes(all_reduce),
        kibibytes(reduce_scatter),
        kibibytes(all_gather),
        kibibytes(session.predicted_sent),
    )
}
