//! `terrashard doctor`, on whatever machine the tests run.

use serde_json::Value;

use crate::scenario::Scenario;

#[test]
fn a_machine_is_examined_and_every_finding_is_told() {
    let scenario = Scenario::new();
    let folder = scenario.path("");
    let folder = folder.to_str().expect("a plain path");
    let arguments = ["doctor", "--folder", folder, "--largest", "1MiB", "--json"];
    let output = scenario.terrashard(&arguments);
    let checkup: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = checkup["checks"].as_array().expect("a list");
    for subject in ["processor", "ports", "disk speed", "gpus", "LibTorch"] {
        assert!(
            checks.iter().any(|check| check["subject"] == subject),
            "{subject} of {checkup}"
        );
    }
    for check in checks {
        let good = check["verdict"] == "good";
        assert_eq!(check["remedy"].is_null(), good, "{check}");
    }
    let bandwidth = checkup["bandwidth"].as_array().expect("a table");
    assert_eq!(bandwidth.len(), 3, "{checkup}");
    for row in bandwidth {
        assert_eq!(row["bytes"], 1 << 20);
        assert!(row["GB_s"].as_f64().expect("a number") > 0.0, "{row}");
    }
    // It ends with an error where something will not work, and only then.
    assert_eq!(
        output.status.success(),
        checkup["problems"] == 0,
        "{checkup}"
    );
}

#[test]
fn what_will_not_work_is_a_problem_with_its_remedy() {
    let scenario = Scenario::new();
    let missing = scenario.path("missing");
    let missing = missing.to_str().expect("a plain path");
    let output = scenario.terrashard(&["doctor", "--folder", missing, "--ranks", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines = text.lines();
    let problem = lines.find(|line| line.starts_with("PROBLEM  disk speed"));
    assert!(problem.is_some_and(|line| line.contains(missing)), "{text}");
    assert!(
        lines
            .next()
            .is_some_and(|line| line.contains("-> choose a folder")),
        "{text}"
    );
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("problem"), "{error}");
}
