//! Which chips are trained on, and how often.

use serde::{Deserialize, Serialize};

use crate::chips::Chip;
use crate::{Error, Result};

/// Which chips are kept, and how often each is drawn in an epoch.
///
/// All rules look at the mask alone and in the order of the chips, so every rank keeps and draws the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Selection {
    /// A chip is dropped where less than this fraction of its mask pixels is valid. Default: 0, which keeps all that have
    /// any valid pixel.
    pub min_valid: f64,
    /// What is done about chips with little foreground. Default: nothing.
    pub balance: Balance,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            min_valid: 0.0,
            balance: Balance::Natural,
        }
    }
}

/// What is done about chips with little foreground (valid mask pixels of any class but 0).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Balance {
    /// Every chip once an epoch.
    Natural,
    /// Chips with fewer foreground pixels than this are dropped.
    Only {
        /// Mask pixels.
        min_foreground: u64,
    },
    /// Chips with at least this much foreground are repeated until they make up this share of the samples.
    Share {
        /// Mask pixels.
        min_foreground: u64,
        /// Share of the samples of an epoch, above 0 and below 1.
        share: f64,
    },
}

impl Selection {
    pub(crate) fn validate(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.min_valid) {
            return Err(Error::Setting {
                key: "min_valid",
                what: format!("{}; choose 0 to 1", self.min_valid),
            });
        }
        match self.balance {
            Balance::Share { share, .. } if !(share > 0.0 && share < 1.0) => Err(Error::Setting {
                key: "share",
                what: format!("{share}; choose above 0 and below 1"),
            }),
            _ => Ok(()),
        }
    }
}

/// What was cut, dropped and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChipReport {
    /// Chips cut from the regions.
    pub cut: usize,
    /// Dropped: no valid pixel, or fewer than `min_valid` asks for.
    pub few_valid: usize,
    /// Dropped: less foreground than [`Balance::Only`] asks for.
    pub few_foreground: usize,
    /// Samples of an epoch: chips that were kept, as often as each is drawn.
    pub samples: usize,
}

impl ChipReport {
    /// Counts a chip with these valid pixels of each class among `pixels` mask pixels, and says whether it is kept.
    pub(crate) fn keeps(&mut self, selection: &Selection, counts: &[u64], pixels: u64) -> bool {
        self.cut += 1;
        let valid: u64 = counts.iter().sum();
        if valid == 0 || (valid as f64) < selection.min_valid * pixels as f64 {
            self.few_valid += 1;
            return false;
        }
        match selection.balance {
            Balance::Only { min_foreground } if foreground(counts) < min_foreground => {
                self.few_foreground += 1;
                false
            }
            _ => true,
        }
    }
}

fn foreground(counts: &[u64]) -> u64 {
    counts.iter().skip(1).sum()
}

/// The chips of an epoch: each kept one, then, for [`Balance::Share`], those with foreground again and again in their order.
pub(crate) fn draws(selection: &Selection, chips: &[Chip]) -> Vec<usize> {
    let mut draws: Vec<usize> = (0..chips.len()).collect();
    if let Balance::Share {
        min_foreground,
        share,
    } = selection.balance
    {
        let rich: Vec<usize> = draws
            .iter()
            .copied()
            .filter(|&c| foreground(&chips[c].counts) >= min_foreground)
            .collect();
        let poor = (chips.len() - rich.len()) as f64;
        // Of rich / (rich + poor) = share; nothing is repeated where the share is reached already or cannot be.
        let wanted = (poor * share / (1.0 - share)).ceil() as usize;
        draws.extend(rich.iter().cycle().take(wanted.saturating_sub(rich.len())));
    }
    draws
}

#[cfg(test)]
mod tests {
    use terrashard_raster::Window;

    use super::*;

    fn chips(foreground: &[u64]) -> Vec<Chip> {
        let chip = |&f: &u64| Chip {
            scene: 0,
            window: Window::new(0, 0, 8, 8),
            counts: vec![64 - f, f],
            target_pixels: 0,
        };
        foreground.iter().map(chip).collect()
    }

    #[test]
    fn repeats_chips_with_foreground_up_to_the_share() {
        let check = |foreground: &[u64], share: f64, expected: &[usize]| {
            let selection = Selection {
                balance: Balance::Share {
                    min_foreground: 10,
                    share,
                },
                ..Selection::default()
            };
            assert_eq!(
                draws(&selection, &chips(foreground)),
                expected,
                "{foreground:?}, {share}"
            );
        };
        check(&[0, 12, 0, 10, 9, 0], 0.5, &[0, 1, 2, 3, 4, 5, 1, 3]);
        check(&[0, 12, 0, 0], 0.75, &[0, 1, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1]);
        check(&[12, 12, 12, 0], 0.5, &[0, 1, 2, 3]);
        check(&[0, 0], 0.5, &[0, 1]);
    }

    #[test]
    fn keeps_by_valid_pixels_and_foreground() {
        let check =
            |min_valid: f64, balance: Balance, counts: [u64; 2], expected: (bool, usize, usize)| {
                let mut report = ChipReport::default();
                let kept = report.keeps(&Selection { min_valid, balance }, &counts, 100);
                assert_eq!((kept, report.few_valid, report.few_foreground), expected);
            };
        check(0.0, Balance::Natural, [0, 0], (false, 1, 0));
        check(0.0, Balance::Natural, [1, 0], (true, 0, 0));
        check(0.5, Balance::Natural, [49, 0], (false, 1, 0));
        check(0.5, Balance::Natural, [25, 25], (true, 0, 0));
        check(
            0.5,
            Balance::Only { min_foreground: 26 },
            [25, 25],
            (false, 0, 1),
        );
        assert!(
            Selection {
                min_valid: 1.5,
                ..Selection::default()
            }
            .validate()
            .is_err()
        );
        let share = Balance::Share {
            min_foreground: 1,
            share: 1.0,
        };
        assert!(
            Selection {
                min_valid: 0.0,
                balance: share
            }
            .validate()
            .is_err()
        );
    }

    #[test]
    fn reads_like_the_configuration() {
        let selection: Selection = serde_json::from_str(
            r#"{"min_valid": 0.2, "balance": {"share": {"min_foreground": 500, "share": 0.7}}}"#,
        )
        .expect("a selection");
        assert_eq!(
            selection.balance,
            Balance::Share {
                min_foreground: 500,
                share: 0.7
            }
        );
    }
}
