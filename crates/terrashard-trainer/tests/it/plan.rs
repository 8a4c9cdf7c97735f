//! `terrashard plan`: figures of every stage, against formulas, for models small and large.

use serde_json::Value;

use crate::scenario::Scenario;

fn plan(scenario: &Scenario, arguments: &[&str]) -> Value {
    let command = [&["plan", "run.toml", "--json"], arguments].concat();
    let output = scenario.terrashard(&command);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stage<'a>(plan: &'a Value, stage: u64, offload: &str) -> &'a Value {
    let stages = plan["stages"].as_array().unwrap();
    stages
        .iter()
        .find(|each| each["stage"] == stage && each["offload"] == offload)
        .unwrap()
}

fn number(value: &Value, key: &str) -> u64 {
    let number = value[key].as_u64();
    number.unwrap_or_else(|| panic!("{key} of {value}"))
}

/// `got` is at least `formula`, and above it by no more than `padding` elements of 16 bytes.
#[track_caller]
fn check(got: u64, formula: f64, padding: usize) {
    let most = formula + 16.0 * padding as f64;
    assert!(
        (formula - 0.5..=most).contains(&(got as f64)),
        "{got}, formula {formula}, with padding {most}"
    );
}

/// Rows of the model of the scenario, each of which may be padded to the ranks.
const ROWS: usize = 150;

#[test]
fn states_and_traffic_follow_the_formulas() {
    let scenario = Scenario::new();
    for (precision, reduce, element, ranks) in [
        ("fp32", "fp32", 4.0, 3),
        ("bf16", "compute", 2.0, 3),
        ("fp16", "compute", 2.0, 1),
    ] {
        let n = ranks as f64;
        let gpus = ranks.to_string();
        let plan = plan(
            &scenario,
            &[
                "--gpus",
                &gpus,
                "--set",
                &format!("train.precision={precision}"),
                "--set",
                &format!("zero.reduce_dtype={reduce}"),
            ],
        );
        let p = number(&plan, "parameters") as f64;
        assert_eq!(number(&plan, "parameter_bytes") as f64, element * p);
        assert_eq!(plan["ranks"], ranks);
        assert_eq!(plan["stages"].as_array().unwrap().len(), 8);
        let padding = ROWS * ranks;
        let states = |stage: u64| {
            let plan = self::stage(&plan, stage, "none");
            let together = number(plan, "parameters") + number(plan, "optimizer");
            assert_eq!(number(plan, "states"), together);
            let others = ["gradients", "buckets", "gathered"].map(|key| number(plan, key));
            assert_eq!(number(plan, "total"), together + others.iter().sum::<u64>());
            assert!(plan["activations"].is_null() && plan["fits"].is_null());
            number(plan, "states") + number(plan, "gradients")
        };
        // 16 bytes a parameter in all, of which `element` each are values and gradients.
        let optimizer = 16.0 - 2.0 * element;
        check(states(0), 16.0 * p, padding);
        check(states(1), 2.0 * element * p + optimizer * p / n, padding);
        check(states(2), element * p + (16.0 - element) * p / n, padding);
        check(states(3), 16.0 * p / n, padding);
        for (stage, times) in [(0, 2.0), (1, 2.0), (2, 2.0), (3, 3.0)] {
            let wire = number(self::stage(&plan, stage, "none"), "wire");
            check(wire, times * element * p * (n - 1.0) / n, 3 * padding);
        }
        // Offloaded, master copy and moments are in host memory.
        let offloaded = stage(&plan, 2, "optimizer");
        check(number(offloaded, "host"), 12.0 * p / n, padding);
        assert_eq!(number(offloaded, "optimizer"), 0);
    }
}

/// Ten billion parameters: nothing of them is allocated, or this would need 40 GB.
#[test]
fn ten_billion_parameters_are_planned() {
    let scenario = Scenario::new();
    let large = [
        "--set",
        "model.dims=[4096, 4096, 4096, 4096]",
        "--set",
        "model.depths=[1, 1, 48, 1]",
        "--set",
        "model.sr_ratios=[1, 1, 1, 1]",
        "--set",
        "train.precision=bf16",
        "--set",
        "zero.reduce_dtype=compute",
        "--set",
        "train.global_batch=64",
        "--gpus",
        "64",
        "--memory",
        "16GiB",
    ];
    let plan = plan(&scenario, &large);
    let p = number(&plan, "parameters") as f64;
    assert!(p > 1e10, "{p}");
    let three = stage(&plan, 3, "none");
    let states = number(three, "states") + number(three, "gradients");
    check(states, 16.0 * p / 64.0, 2000 * 64);
    let fits: Vec<bool> = plan["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| each["fits"].as_bool().unwrap())
        .collect();
    assert_eq!(fits, [false, false, false, true, false, false, true, true]);
    let advice = plan["advice"].as_str().unwrap();
    assert!(advice.starts_with("stage 3 is the first that fits into 16.00 GiB"));
    assert!(advice.contains("activations, which are not counted yet"));
}

#[test]
fn people_get_a_table() {
    let scenario = Scenario::new();
    let plan = [
        "plan",
        "run.toml",
        "--gpus",
        "4",
        "--set",
        "zero.stage=3",
        "--set",
        "zero.persist_bytes=256",
        "--set",
        "zero.shard_group=2",
    ];
    let output = scenario.terrashard(&plan);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains("on each of 4 ranks in groups of 2"),
        "{text}"
    );
    assert!(lines[1].starts_with("stage  offload"), "{text}");
    assert!(!lines[1].contains("fits"), "{text}");
    assert!(lines[9].starts_with("3      parameters"), "{text}");
    assert!(lines[10].starts_with("zero.persist_bytes keeps"), "{text}");
    assert_eq!(lines.len(), 12, "{text}");

    let refused = |arguments: &[&str], expected: &str| {
        let output = scenario.terrashard(&[&["plan", "run.toml"], arguments].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(expected), "{message}");
    };
    refused(&["--gpus", "0"], "`--gpus`");
    refused(&["--gpus", "5"], "not a multiple");
    refused(&["--memory", "16GB"], "1GiB");
    let odd = [
        "--gpus",
        "4",
        "--set",
        "zero.stage=1",
        "--set",
        "zero.shard_group=3",
    ];
    refused(&odd, "a divisor of the 4 ranks");
    let nobody = ["--set", "train.groups=[{ match = \"stage.*\" }]"];
    refused(&nobody, "a pattern that matches parameters");
}
