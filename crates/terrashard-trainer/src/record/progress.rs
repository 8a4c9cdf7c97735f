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

/// What is shown of a step of a training.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Figures {
    /// The loss, which is shown as a mean over recent steps.
    pub loss: f64,
    /// The learning rate.
    pub lr: f64,
    /// IoU of the last validation, if there was one.
    pub iou: Option<f64>,
    /// Bytes: the most that tensors held on rank 0's GPU, or what the program holds now.
    pub memory: Option<u64>,
    /// What the GPUs take for an epoch, in joules, where they tell.
    pub epoch_joules: Option<f64>,
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
                let style =
                    ProgressStyle::with_template("{bar:16.cyan/dim} {pos}/{len} {wide_msg}")
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

    /// `position` units are done; the last one had these figures (if it was a step) and took in this many images, or windows.
    pub fn advance(&mut self, position: u64, figures: Option<Figures>, taken: usize) {
        let now = Instant::now();
        self.recent
            .push_back((figures.map_or(0.0, |it| it.loss), now - self.last, taken));
        self.last = now;
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        if let Form::Quiet = self.form {
            return;
        }
        let text = self.text(position, figures);
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

    fn text(&self, position: u64, figures: Option<Figures>) -> String {
        let count = self.recent.len() as f64;
        let seconds: f64 = self
            .recent
            .iter()
            .map(|(_, time, _)| time.as_secs_f64())
            .sum();
        let taken: usize = self.recent.iter().map(|(_, _, taken)| taken).sum();
        let left = self.length.saturating_sub(position) as f64 * seconds / count;
        // What a narrow terminal cuts off comes last.
        let mut parts = Vec::new();
        if figures.is_some() {
            let loss = self.recent.iter().map(|(loss, _, _)| loss).sum::<f64>() / count;
            parts.push(format!("loss {loss:.5} (mean of {count})"));
        }
        parts.push(format!("{:.1} {}/s", taken as f64 / seconds, self.taken));
        parts.push(format!("ETA {}", clock(left)));
        if let Some(figures) = figures {
            let gibibytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            let memory = figures.memory.map(gibibytes);
            let energy = figures.epoch_joules.map(energy);
            parts.extend(figures.iou.map(|iou| format!("iou {iou:.4}")));
            parts.push(format!("lr {:.1e}", figures.lr));
            parts.extend(memory.map(|memory| format!("{memory:.2} GiB")));
            parts.extend(energy.map(|energy| format!("{energy} an epoch")));
        }
        parts.join("  ")
    }
}

/// What an epoch of so many samples takes, in joules, where so many samples took so much; none where nobody told.
pub(crate) fn joules_of_epoch(joules: f64, samples: u64, epoch: usize) -> Option<f64> {
    (joules > 0.0 && samples > 0).then(|| joules / samples as f64 * epoch as f64)
}

/// Joules as `950 J`, `12.3 Wh` or `4.56 kWh`.
pub(crate) fn energy(joules: f64) -> String {
    match joules / 3600.0 {
        hours if hours >= 1000.0 => format!("{:.2} kWh", hours / 1000.0),
        hours if hours >= 1.0 => format!("{hours:.1} Wh"),
        _ => format!("{joules:.0} J"),
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
            progress.text(1, None)
        };
        assert!(text("window").contains(" windows/s  ETA"));
        assert!(text("step").contains(" images/s  ETA"));
    }

    #[test]
    fn a_step_is_shown_with_all_that_is_known_of_it() {
        let mut progress = Progress::new(Display::Quiet, "step", 0, 100, Duration::from_secs(1));
        let figures = |loss| Figures {
            loss,
            lr: 1.5e-4,
            ..Figures::default()
        };
        for step in 1..=30 {
            progress.advance(step, Some(figures(step as f64)), 4);
        }
        // Steps 11 to 30.
        let text = progress.text(30, Some(figures(30.0)));
        assert!(text.starts_with("loss 20.50000 (mean of 20)  "), "{text}");
        assert!(
            text.ends_with("  lr 1.5e-4"),
            "what is not known is not shown: {text}"
        );
        let all = Figures {
            iou: Some(0.5),
            memory: Some(3 << 29),
            epoch_joules: Some(7200.0),
            ..figures(30.0)
        };
        let text = progress.text(30, Some(all));
        assert!(
            text.ends_with("  iou 0.5000  lr 1.5e-4  1.50 GiB  2.0 Wh an epoch"),
            "{text}"
        );
    }

    #[test]
    fn energy_is_that_of_an_epoch_where_somebody_tells() {
        assert_eq!(joules_of_epoch(50.0, 10, 400), Some(2000.0));
        assert_eq!(joules_of_epoch(0.0, 10, 400), None);
        assert_eq!(joules_of_epoch(50.0, 0, 400), None);
        let shown = [950.0, 44_280.0, 16_416_000.0].map(energy);
        assert_eq!(shown, ["950 J", "12.3 Wh", "4.56 kWh"]);
    }
}
