//! One progress display for all ranks, on standard error.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::console::tell;

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Display {
    /// A bar on a terminal, else lines.
    Auto,
    /// Not at all.
    Quiet,
}

/// Steps over which the loss and the speed that are shown are averaged.
const RECENT: usize = 20;

/// Shows how far a run is.
#[derive(Debug)]
pub struct Progress {
    form: Form,
    /// What is counted: `step`, `window`.
    unit: &'static str,
    /// What the speed is told in: `images`, `windows`.
    taken: &'static str,
    length: u64,
    recent: VecDeque<(f64, Duration, usize)>,
    last: Instant,
}

#[derive(Debug)]
enum Form {
    Bar(ProgressBar),
    Lines { every: Duration, printed: Instant },
    Quiet,
}

impl Progress {
    /// A display of `length` units, of which `position` are done. Off a terminal a line comes every `every`.
    pub fn new(
        display: Display,
        unit: &'static str,
        position: u64,
        length: u64,
        every: Duration,
    ) -> Self {
        let now = Instant::now();
        let form = match display {
            Display::Quiet => Form::Quiet,
            Display::Auto if std::io::stderr().is_terminal() => {
                let target = ProgressDrawTarget::stderr_with_hz(8);
                let style = ProgressStyle::with_template("{bar:28.cyan/dim} {pos:>5}/{len} {msg}")
                    .expect("the template is valid")
                    .progress_chars("━╸─");
                Form::Bar(
                    ProgressBar::with_draw_target(Some(length), target)
                        .with_style(style)
                        .with_position(position),
                )
            }
            Display::Auto => Form::Lines {
                every,
                printed: now,
            },
        };
        Self {
            form,
            unit,
            taken: match unit {
                "window" => "windows",
                _ => "images",
            },
            length,
            recent: VecDeque::new(),
            last: now,
        }
    }

    /// `position` units are done; the last one had this loss (if that is what is shown) and took in this many images, or
    /// windows.
    pub fn advance(&mut self, position: u64, loss: Option<f64>, taken: usize) {
        let now = Instant::now();
        self.recent
            .push_back((loss.unwrap_or(0.0), now - self.last, taken));
        self.last = now;
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        if let Form::Quiet = self.form {
            return;
        }
        let text = self.text(position, loss.is_some());
        match &mut self.form {
            Form::Bar(bar) => {
                bar.set_message(text);
                bar.set_position(position);
            }
            Form::Lines { every, printed }
                if now - *printed >= *every || position == self.length =>
            {
                *printed = now;
                tell(&format!("{} {position}/{}  {text}", self.unit, self.length));
            }
            _ => {}
        }
    }

    /// There are `length` units.
    pub fn set_length(&mut self, length: u64) {
        self.length = length;
        if let Form::Bar(bar) = &self.form {
            bar.set_length(length);
        }
    }

    /// Says something without breaking the display.
    pub fn say(&self, text: &str) {
        match &self.form {
            Form::Bar(bar) => bar.suspend(|| tell(text)),
            Form::Lines { .. } => tell(text),
            Form::Quiet => {}
        }
    }

    /// Leaves the display as it stands.
    pub fn finish(&self) {
        if let Form::Bar(bar) = &self.form {
            bar.abandon();
        }
    }

    fn text(&self, position: u64, with_loss: bool) -> String {
        let count = self.recent.len() as f64;
        let seconds: f64 = self
            .recent
            .iter()
            .map(|(_, time, _)| time.as_secs_f64())
            .sum();
        let taken: usize = self.recent.iter().map(|(_, _, taken)| taken).sum();
        let left = self.length.saturating_sub(position) as f64 * seconds / count;
        let speed = format!(
            "{:.1} {}/s  ETA {}",
            taken as f64 / seconds,
            self.taken,
            clock(left)
        );
        match with_loss {
            true => {
                let loss = self.recent.iter().map(|(loss, _, _)| loss).sum::<f64>() / count;
                format!("loss {loss:.5}  {speed}")
            }
            false => speed,
        }
    }
}

/// Seconds as `1:05` or `2:03:09`.
pub(crate) fn clock(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks() {
        assert_eq!(clock(65.2), "1:05");
        assert_eq!(clock(7389.0), "2:03:09");
    }

    #[test]
    fn the_speed_is_told_in_what_is_taken() {
        let text = |unit| {
            let mut progress = Progress::new(Display::Quiet, unit, 0, 9, Duration::from_secs(1));
            progress.advance(1, None, 1);
            progress.text(1, false)
        };
        assert!(text("window").contains(" windows/s  ETA"));
        assert!(text("step").contains(" images/s  ETA"));
    }

    #[test]
    fn the_loss_shown_is_the_mean_of_recent_steps() {
        let mut progress = Progress::new(Display::Quiet, "step", 0, 100, Duration::from_secs(1));
        for step in 1..=30 {
            progress.advance(step, Some(step as f64), 4);
        }
        // Steps 11 to 30.
        assert!(
            progress.text(30, true).starts_with("loss 20.50000"),
            "{}",
            progress.text(30, true)
        );
    }
}
