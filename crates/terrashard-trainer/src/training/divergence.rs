//! Where a gradient that is not finite came from, down to the chips.

use terrashard_layout::Window;
use terrashard_zero::Origin;

use super::Plan;
use crate::error::{Error, Result};

/// The error of a step, with the chips where it is a gradient that is not finite.
pub(super) fn diverged(
    plan: &Plan<'_>,
    step: u64,
    window: &Window,
    error: terrashard_zero::Error,
) -> Error {
    let terrashard_zero::Error::NonFinite {
        origin, skipped, ..
    } = &error
    else {
        return error.into();
    };
    match chips(plan, window, origin) {
        Err(error) => error,
        Ok(chips) => Error::NonFiniteGradient {
            step,
            origin: format!("{origin}{chips}"),
            skipped: *skipped,
        },
    }
}

/// The chips that a non-finite gradient came from: those of its micro-batch, with their files and windows (column, row, width,
/// height).
pub(super) fn chips(plan: &Plan<'_>, window: &Window, origin: &Origin) -> Result<String> {
    let Some(rank) = origin.rank else {
        return Ok(String::new());
    };
    const TOLD: usize = 4;
    let mut text = String::new();
    let cursors = window.micro_batch(rank, origin.micro_batch);
    let more = (cursors.end - cursors.start).saturating_sub(TOLD as u64);
    for cursor in cursors.take(TOLD) {
        let chip = plan.chips.chip(plan.order.at(cursor))?;
        let scene = &plan.config.data.scenes[chip.scene].image;
        let terrashard_raster::Window {
            col,
            row,
            width,
            height,
        } = chip.window;
        let before = if text.is_empty() { "; chip of" } else { "," };
        text += &format!(
            "{before} {} [{col}, {row}, {width}, {height}]",
            scene.display()
        );
    }
    if more > 0 {
        text += &format!(" and {more} more");
    }
    Ok(text)
}
