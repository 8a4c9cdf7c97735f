//! Limits that the system sets: on the size of files, as a full disk, on open files and on memory. What is beyond them ends in one
//! line, leaves no half of a file, and what was there before is still there.
#![cfg(target_os = "linux")]

use std::fs;

use crate::scenario::Scenario;

/// Maps what a run has learned.
const PREDICT: [&str; 6] = [
    "predict",
    "image.tif",
    "-o",
    "map.tif",
    "--checkpoint",
    "run",
];

/// The names in a folder, hidden ones too.
fn names(scenario: &Scenario, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(scenario.path(folder)).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

const FIT: [&str; 4] = ["fit", "run.toml", "--run", "run"];

/// The errors among the lines that were told.
fn errors(told: &str) -> Vec<&str> {
    let lines = told.lines();
    lines.filter(|line| line.starts_with("error: ")).collect()
}

#[test]
fn a_full_disk_costs_no_checkpoint_and_is_not_kept_full() {
    let scenario = Scenario::new();
    scenario.fit("whole", None, &[]);
    scenario.fit("run", Some(2), &["zero.ranks=2", "zero.stage=2"]);
    let before = names(&scenario, "run/checkpoints");
    // 32 KiB hold all but a checkpoint.
    for ranks in ["1", "3"] {
        let (code, told) = scenario.limited("-f 64", &[&FIT[..], &["--ranks", ranks]].concat());
        assert_eq!(code, Some(1), "{told}");
        let errors = errors(&told);
        assert!(
            errors.len() == 1
                && errors[0].contains(".step-000004.tmp")
                && errors[0].contains("File too large"),
            "{told}"
        );
        assert_eq!(names(&scenario, "run/checkpoints"), before, "{ranks} ranks");
    }
    // The run goes on without the saves on its way, but not without the last.
    let on = ["--set", "checkpoint.on_failure=continue", "--quiet"];
    let (code, told) = scenario.limited("-f 64", &[&FIT[..], &on].concat());
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("warning: step 4 was not saved"), "{told}");
    assert!(errors(&told)[0].contains(".step-000006.tmp"), "{told}");
    assert_eq!(names(&scenario, "run/checkpoints"), before);
    assert!(scenario.terrashard(&FIT).status.success());
    let losses = |run: &str| -> Vec<f64> {
        let steps = scenario.run(run).steps().unwrap();
        steps.iter().map(|step| step.loss).collect()
    };
    let (ours, theirs) = (losses("run"), losses("whole"));
    assert_eq!(ours.len(), 6);
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((ours - theirs).abs() < 1e-4 * theirs, "{ours} {theirs}");
    }
}

#[test]
fn a_full_disk_leaves_no_half_of_a_file() {
    let scenario = Scenario::new();
    scenario.fit("run", None, &["train.steps=2"]);
    let before = names(&scenario, "");
    let predict = ["predict", "image.tif", "--checkpoint", "run", "--quiet"];
    let align = [
        "align",
        "--onto",
        "image.tif",
        "--mask",
        "mask.tif",
        "-o",
        "out",
    ];
    let commands: [(&str, Vec<&str>); 3] = [
        ("export", vec!["export", "run"]),
        (
            "predict",
            [&predict[..], &["--probability", "map.tif"]].concat(),
        ),
        ("align", align.to_vec()),
    ];
    for (name, arguments) in commands {
        // 512 bytes: less than any of what they write.
        let (code, told) = scenario.limited("-f 1", &arguments);
        assert_eq!(code, Some(1), "{name}: {told}");
        assert_eq!(errors(&told).len(), 1, "{name}: {told}");
        let made: Vec<String> = names(&scenario, "")
            .into_iter()
            .filter(|name| !before.contains(name) && name != "out")
            .collect();
        // What is finished of a prediction may be gone on with.
        assert!(
            made.iter()
                .all(|name| name.starts_with('.') && name.ends_with(".journal")),
            "{name}: {made:?}"
        );
        if name == "align" {
            assert_eq!(names(&scenario, "out"), Vec::<String>::new());
        }
        assert!(scenario.terrashard(&arguments).status.success(), "{name}");
        for made in names(&scenario, "") {
            if !before.contains(&made) && made != "out" {
                fs::remove_file(scenario.path(&made)).unwrap();
            }
        }
    }
}

#[test]
fn too_few_open_files_are_told_with_what_raises_them() {
    let scenario = Scenario::new();
    scenario.fit("run", None, &["train.steps=2"]);
    let mut refused = 0;
    for limit in 4..16 {
        let (code, told) = scenario.limited(&format!("-n {limit}"), &PREDICT);
        if code == Some(0) {
            break;
        }
        refused += 1;
        // Below that the program does not start.
        if told.contains("error while loading shared libraries") {
            continue;
        }
        assert!(matches!(code, Some(1 | 2)), "{limit}: {told}");
        assert!(
            told.contains("Too many open files") && told.contains("ulimit -n"),
            "{limit}: {told}"
        );
        assert!(!scenario.path("map.tif").exists(), "{limit}");
    }
    assert!(refused > 0 && scenario.path("map.tif").exists());
}

#[test]
fn too_little_memory_ends_and_leaves_no_half_of_a_file() {
    let scenario = Scenario::new();
    scenario.fit("run", None, &["train.steps=2"]);
    let mut refused = 0;
    for mebibytes in [16, 24, 32, 48, 64, 96, 192, 384, 768] {
        let limit = format!("-v {}", mebibytes << 10);
        let (code, told) = scenario.limited(&limit, &PREDICT);
        if code == Some(0) {
            break;
        }
        refused += 1;
        assert!(!scenario.path("map.tif").exists(), "{mebibytes}: {told}");
    }
    assert!(refused > 0 && scenario.path("map.tif").exists());
    // What is there is still whole.
    assert!(
        scenario
            .terrashard(&["ckpt", "verify", "run"])
            .status
            .success()
    );
}
