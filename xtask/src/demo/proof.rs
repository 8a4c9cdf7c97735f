//! What the demo proves by looking at the results instead of trusting that the commands did their work.

use std::path::Path;

use serde_json::Value;

use super::plan::Plan;
use crate::error::{Error, Result};

/// Metres (units of the reference system) by which corners may differ.
const CORNER_TOLERANCE: f64 = 1e-9;

/// The `step` of each line of a run's `metrics.jsonl` that has one.
pub(super) fn steps(log: &str, path: &Path) -> Result<Vec<u64>> {
    let mut steps = Vec::new();
    for (index, line) in log.lines().enumerate() {
        let line: Value = serde_json::from_str(line).map_err(|error| {
            Error::content(
                format!("{}:{}", path.display(), index + 1),
                error.to_string(),
            )
        })?;
        steps.extend(line["step"].as_u64());
    }
    Ok(steps)
}

/// The step that the second run began after, from the steps logged after each run: the second has to go on where the
/// first ended, and to come to the end.
pub(super) fn resumed(first: &[u64], both: &[u64], plan: &Plan) -> Result<u64, String> {
    let Some(&stopped) = first.last() else {
        return Err("the first run has logged no step".to_owned());
    };
    let Some(&last) = both.last() else {
        return Err("the second run has logged no step".to_owned());
    };
    let Some(&next) = both.get(first.len()) else {
        return Err(format!(
            "the second run has added nothing to the {} steps of the first",
            first.len()
        ));
    };
    if stopped != plan.half {
        return Err(format!(
            "the first run ended after step {stopped} instead of {}",
            plan.half
        ));
    }
    if next != stopped + 1 {
        return Err(format!(
            "the second run began with step {next} instead of {}",
            stopped + 1
        ));
    }
    if last != plan.steps {
        return Err(format!(
            "the second run ended after step {last} instead of {}",
            plan.steps
        ));
    }
    Ok(stopped)
}

/// Checks two documents of `terrashard info --json`: the prediction is finer by a whole factor, and covers the same
/// ground in the same reference system. Returns what was seen.
pub(super) fn same_ground(scene: &Value, prediction: &Value) -> Result<String, String> {
    let coarse = Grid::parse(scene).map_err(|message| format!("scene: {message}"))?;
    let fine = Grid::parse(prediction)?;
    let factor = fine.width / coarse.width;
    if factor < 2 || (fine.width, fine.height) != (coarse.width * factor, coarse.height * factor) {
        let Grid { width, height, .. } = coarse;
        return Err(format!(
            "is {} x {}, no multiple of the scene's {width} x {height}",
            fine.width, fine.height
        ));
    }
    if scene["epsg"] != prediction["epsg"] || scene["epsg"].is_null() {
        return Err(format!(
            "has EPSG code {}, the scene has {}",
            prediction["epsg"], scene["epsg"]
        ));
    }
    if prediction["nodata"].as_f64() != Some(255.0) {
        return Err(format!(
            "has nodata value {} instead of 255",
            prediction["nodata"]
        ));
    }
    let mut distance = 0.0_f64;
    for (ours, theirs) in fine.corners().iter().zip(coarse.corners()) {
        distance = distance
            .max((ours.0 - theirs.0).abs())
            .max((ours.1 - theirs.1).abs());
    }
    if distance > CORNER_TOLERANCE {
        return Err(format!(
            "its corners are up to {distance} off those of the scene"
        ));
    }
    let Grid { width, height, .. } = fine;
    Ok(format!(
        "prediction: {width} x {height}, {factor} times as fine; its corners are the scene's to {distance:e} m"
    ))
}

struct Grid {
    width: u64,
    height: u64,
    /// `[a, b, c, d, e, f]`: x = a column + b row + c, y = d column + e row + f.
    affine: [f64; 6],
}

impl Grid {
    fn parse(info: &Value) -> Result<Self, String> {
        let size = |key| {
            info[key]
                .as_u64()
                .filter(|&size| size > 0)
                .ok_or_else(|| format!("no `{key}` in its info"))
        };
        let affine: Option<Vec<f64>> = info["affine"]
            .as_array()
            .and_then(|list| list.iter().map(Value::as_f64).collect());
        let affine = affine
            .and_then(|list| list.try_into().ok())
            .ok_or("no `affine` of six numbers in its info")?;
        Ok(Self {
            width: size("width")?,
            height: size("height")?,
            affine,
        })
    }

    fn corners(&self) -> [(f64, f64); 4] {
        let [a, b, c, d, e, f] = self.affine;
        let (width, height) = (self.width as f64, self.height as f64);
        [(0.0, 0.0), (width, 0.0), (0.0, height), (width, height)]
            .map(|(x, y)| (a * x + b * y + c, d * x + e * y + f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan() -> Plan {
        Plan {
            steps: 4,
            half: 2,
            scene: "a.tif".into(),
            overrides: Vec::new(),
        }
    }

    #[test]
    fn steps_are_read() {
        let log = "{\"step\": 1, \"loss\": 0.5}\n{\"note\": \"x\"}\n{\"step\": 2}\n";
        assert_eq!(steps(log, Path::new("m.jsonl")).unwrap(), [1, 2]);
        let message = steps("{\"step\": 1}\n{", Path::new("m.jsonl"))
            .unwrap_err()
            .to_string();
        assert!(message.starts_with("m.jsonl:2: "), "{message}");
    }

    #[test]
    fn resume_is_seen_in_the_log() {
        assert_eq!(resumed(&[1, 2], &[1, 2, 3, 4], &plan()), Ok(2));
        let check = |first: &[u64], both: &[u64], part: &str| {
            let message = resumed(first, both, &plan()).unwrap_err();
            assert!(message.contains(part), "{message}");
        };
        check(
            &[1, 2],
            &[1, 2, 1, 2, 3, 4],
            "began with step 1 instead of 3",
        );
        check(&[1, 2], &[1, 2], "added nothing");
        check(&[1, 2], &[1, 2, 3], "ended after step 3 instead of 4");
        check(
            &[1, 2, 3, 4],
            &[1, 2, 3, 4, 5],
            "ended after step 4 instead of 2",
        );
        check(&[], &[1], "first run has logged no step");
    }

    fn grid(width: u64, height: u64, size: f64, x: f64) -> Value {
        let affine = [size, 0.0, x, 0.0, -size, 5_820_000.0];
        json!({ "width": width, "height": height, "epsg": 32633, "nodata": 255, "affine": affine })
    }

    #[test]
    fn grids_over_the_same_ground() {
        let scene = grid(1536, 768, 10.0, 300_000.0);
        let seen = same_ground(&scene, &grid(7680, 3840, 2.0, 300_000.0)).unwrap();
        assert!(
            seen.starts_with("prediction: 7680 x 3840, 5 times as fine"),
            "{seen}"
        );
        let check = |prediction: Value, part: &str| {
            let message = same_ground(&scene, &prediction).unwrap_err();
            assert!(message.contains(part), "{message}");
        };
        check(grid(7680, 3839, 2.0, 300_000.0), "no multiple");
        check(grid(1536, 768, 10.0, 300_000.0), "no multiple");
        check(grid(7680, 3840, 2.0, 300_001.0), "up to 1 off");
        check(
            grid(7680, 3840, 10.0 / 4.999, 300_000.0),
            "corners are up to",
        );
        let with = |key: &str, value: Value| {
            let mut prediction = grid(7680, 3840, 2.0, 300_000.0);
            prediction[key] = value;
            prediction
        };
        check(with("epsg", json!(4326)), "has EPSG code 4326");
        check(
            with("nodata", Value::Null),
            "has nodata value null instead of 255",
        );
        check(with("affine", json!([1, 2])), "no `affine`");
    }
}
