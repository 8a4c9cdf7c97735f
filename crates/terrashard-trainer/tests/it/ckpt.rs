//! `ckpt`: what it lists, tells, compares, checks and clears away.

use std::fs;

use serde_json::Value;

use crate::scenario::Scenario;

fn run(scenario: &Scenario, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = scenario.terrashard(&[&["ckpt"], arguments].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[track_caller]
fn json(scenario: &Scenario, arguments: &[&str]) -> Value {
    let (code, out, told) = run(scenario, &[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{told}");
    serde_json::from_str(&out).unwrap()
}

/// A run with checkpoints at steps 2, 4 and 6.
fn trained(settings: &[&str]) -> Scenario {
    let scenario = Scenario::new();
    scenario.fit("run", None, settings);
    scenario
}

#[test]
fn a_run_is_listed() {
    let scenario = trained(&["zero.ranks=2", "zero.stage=2"]);
    let listing = json(&scenario, &["ls", "run"]);
    assert_eq!(listing["in_force"], 6);
    let entries = listing["checkpoints"].as_array().unwrap();
    let steps: Vec<&Value> = entries.iter().map(|entry| &entry["step"]).collect();
    assert_eq!(steps, [2, 4, 6]);
    let losses: Vec<f64> = scenario
        .run("run")
        .steps()
        .unwrap()
        .iter()
        .map(|step| step.loss)
        .collect();
    for (entry, pair) in entries.iter().zip(losses.chunks(2)) {
        assert_eq!(entry["ranks"], 2);
        assert_eq!(entry["score"], (pair[0] + pair[1]) / 2.0);
        let step = entry["step"].as_u64().unwrap();
        let folder = terrashard_checkpoint::step_folder(scenario.run("run").checkpoints(), step);
        let files = fs::read_dir(folder).unwrap();
        let bytes: u64 = files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(entry["bytes"], bytes);
    }
    let score = |entry: &&Value| entry["score"].as_f64().unwrap();
    let best = entries
        .iter()
        .min_by(|a, b| score(a).total_cmp(&score(b)))
        .unwrap();
    assert_eq!(
        (&listing["best"], &listing["scored_by"]),
        (&best["step"], &"loss".into())
    );
    let (_, table, _) = run(&scenario, &["ls", "run"]);
    let marked: Vec<&str> = table
        .lines()
        .filter(|line| line.ends_with("  best"))
        .collect();
    assert_eq!(marked.len(), 1, "{table}");
    assert!(
        marked[0].starts_with(&format!("step-{:06}", best["step"].as_u64().unwrap())),
        "{table}"
    );
    fs::remove_file(scenario.path("run/checkpoints/step-000004/rank-00001.safetensors")).unwrap();
    let (code, table, _) = run(&scenario, &["ls", "run"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(
        lines[2].starts_with("step-000004")
            && lines[2].contains("rank-00001.safetensors is missing"),
        "{table}"
    );
    assert!(
        lines[3].starts_with("step-000006") && lines[3].contains("  latest"),
        "{table}"
    );
    assert!(
        lines[4].starts_with("score: mean loss of the steps since the checkpoint before"),
        "{table}"
    );
    // Without a pointer the newest takes its place.
    fs::write(scenario.path("run/checkpoints/latest"), "step-000099").unwrap();
    let (code, table, _) = run(&scenario, &["ls", "run"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[3].starts_with("step-000006")
            && lines[3].ends_with("newest, in place of `latest`")
            && lines[4].contains("step-000099"),
        "{table}"
    );
    assert_eq!(table.matches("in place of").count(), 1, "{table}");
    let (code, _, told) = run(&scenario, &["ls", "nowhere"]);
    assert_eq!(code, Some(2));
    assert!(
        told.contains("nowhere") && told.lines().count() == 1,
        "{told}"
    );
}

#[test]
fn a_checkpoint_and_an_export_are_looked_into() {
    let scenario = trained(&["train.ema=0.9"]);
    let told = json(&scenario, &["inspect", "run/checkpoints/step-000004"]);
    assert_eq!(told["state"]["step"], 4);
    assert_eq!(told["state"]["cursor"], 48);
    assert_eq!(told["state"]["values"]["bands"], serde_json::json!([1, 2]));
    let session = &scenario.run("run").session_records().unwrap()[0];
    for kind in ["parameter", "m", "v", "ema"] {
        assert_eq!(
            told["kinds"][kind]["elements"], session.parameters,
            "{kind}"
        );
        assert_eq!(
            told["kinds"][kind]["bytes"],
            4 * session.parameters,
            "{kind}"
        );
    }
    let scenario_path = scenario.path("model.safetensors");
    let output = scenario.terrashard(&["export", "run", "--dtype", "bf16"]);
    assert!(output.status.success() && scenario_path.is_file());
    let told = json(&scenario, &["inspect", "model.safetensors"]);
    assert_eq!(told["kinds"]["parameter"]["bytes"], 2 * session.parameters);
    assert_eq!(told["state"]["threshold"], 0.5);
    let (_, text, _) = run(&scenario, &["inspect", "run"]);
    assert!(
        text.contains("\n    [model]\n") && text.contains("\nstep: 6\n"),
        "{text}"
    );
    assert!(
        text.contains("\nparameter f32   tail.head.cls.bias [16]\n"),
        "{text}"
    );
}

#[test]
fn two_checkpoints_are_compared() {
    let scenario = trained(&[
        "zero.ranks=3",
        "zero.stage=1",
        "train.groups=[{ match = \"stages.*\", frozen = true }]",
    ]);
    let (code, out, _) = run(
        &scenario,
        &["diff", "run", "run/checkpoints/step-000006", "--json"],
    );
    assert_eq!(code, Some(0), "{out}");
    let (code, out, told) = run(
        &scenario,
        &["diff", "run", "run/checkpoints/step-000002", "--json"],
    );
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.starts_with("error: the checkpoints differ in "),
        "{told}"
    );
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["state"]["step"], serde_json::json!([6, 2]));
    assert_eq!(found["state"]["cursor"], serde_json::json!([72, 24]));
    assert!(found["state"].get("config.train.steps").is_none());
    let changed: Vec<&str> = found["changed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| each["tensor"].as_str().unwrap())
        .collect();
    assert!(
        changed.contains(&"parameter `tail.head.cls.weight`"),
        "{changed:?}"
    );
    assert!(
        !changed.iter().any(|name| name.contains("stages.")),
        "frozen: {changed:?}"
    );
    // The same values as the files have them, by hand.
    let values = |step: u64| -> Vec<f64> {
        let root = scenario.run("run").checkpoints();
        let path = terrashard_checkpoint::step_folder(root, step);
        let source = terrashard_checkpoint::Source::open(path).unwrap();
        source
            .read_f64(
                "tail.head.cls.weight",
                terrashard_checkpoint::Kind::Parameter,
                0..128,
            )
            .unwrap()
    };
    let largest = values(6)
        .iter()
        .zip(values(2))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    let each = found["changed"]
        .as_array()
        .unwrap()
        .iter()
        .find(|each| each["tensor"] == "parameter `tail.head.cls.weight`")
        .unwrap();
    assert_eq!(each["max"], largest);

    // An export has neither moments nor the type.
    assert!(
        scenario
            .terrashard(&["export", "run", "--dtype", "fp16"])
            .status
            .success()
    );
    let (code, text, _) = run(&scenario, &["diff", "run", "model.safetensors"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("only in the first: m `tail.head.cls.weight`"),
        "{text}"
    );
    assert!(
        text.contains(
            "parameter `tail.head.cls.weight`: [16, 8, 1, 1] f32 and [16, 8, 1, 1] f16 differs by"
        ),
        "{text}"
    );
}

#[test]
fn every_damaged_tensor_is_named() {
    let scenario = trained(&[]);
    let (code, text, told) = run(&scenario, &["verify", "run"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(text.matches(": sound, ").count(), 3, "{text}");
    let path = scenario.path("run/checkpoints/step-000004/rank-00000.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    fs::write(
        scenario.path("run/checkpoints/step-000002/manifest.json"),
        "{",
    )
    .unwrap();
    let (code, text, told) = run(&scenario, &["verify", "run"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        told.contains("2 of 3 checkpoints are damaged")
            && told.contains("step-000002")
            && told.contains("fit goes on from the newest that is whole"),
        "{told}"
    );
    let (code, _, told) = run(&scenario, &["verify", "run/checkpoints/step-000004"]);
    assert_eq!(code, Some(2));
    assert!(
        told.contains("1 of 1 checkpoints are damaged")
            && told.contains("none is whole: restore one")
            && !told.contains("goes on from"),
        "{told}"
    );
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains("step-000002: damaged:") && lines[0].contains("truncated"),
        "{text}"
    );
    assert!(
        lines[1].contains("step-000004: damaged: v `")
            && lines[1].contains("rank-00000.safetensors"),
        "{text}"
    );
    assert!(lines[2].contains("step-000006: sound"), "{text}");
    assert_eq!(
        run(&scenario, &["verify", "run/checkpoints/step-000006"]).0,
        Some(0)
    );
    assert!(scenario.terrashard(&["export", "run"]).status.success());
    assert_eq!(run(&scenario, &["verify", "model.safetensors"]).0, Some(0));
}

#[test]
fn what_is_old_or_left_by_a_crash_is_cleared_away() {
    let scenario = trained(&[]);
    let root = scenario.run("run").checkpoints();
    fs::create_dir(root.join(".step-000007.tmp")).unwrap();
    fs::write(
        root.join(".step-000007.tmp/rank-00000.safetensors"),
        [0; 100],
    )
    .unwrap();
    let names = || {
        let mut names: Vec<String> = fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let before = names();
    // Where the newest is damaged, the older ones are all there is.
    let shard = root.join("step-000006/rank-00000.safetensors");
    let whole = fs::read(&shard).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&shard, damaged).unwrap();
    let (code, _, told) = run(&scenario, &["gc", "run", "--keep-last", "1"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("rank-00000.safetensors"), "{told}");
    assert_eq!(names(), before);
    fs::write(&shard, whole).unwrap();
    let would = json(&scenario, &["gc", "run", "--keep-last", "1", "--dry-run"]);
    assert_eq!(names(), before);
    let did = json(&scenario, &["gc", "run", "--keep-last", "1"]);
    assert_eq!(would, did);
    assert_eq!(did["removed"], serde_json::json!([2, 4]));
    assert_eq!(did["remains"], serde_json::json!([".step-000007.tmp"]));
    assert!(did["bytes"].as_u64().unwrap() > 100);
    assert_eq!(names(), ["latest", "step-000006"]);
    // Without a flag the run's own settings hold: 9 of them.
    let did = json(&scenario, &["gc", "run"]);
    assert_eq!(did["kept"], serde_json::json!([6]));
    let (code, _, told) = run(&scenario, &["gc", "run", "--keep-last", "0"]);
    assert_eq!(code, Some(2), "{told}");
    let _lock = scenario.run("run").lock().unwrap();
    let (code, _, told) = run(&scenario, &["gc", "run"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("another `fit` is running there"), "{told}");
    let (code, _, told) = run(&scenario, &["gc", "run/checkpoints"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("another `fit` is running there"), "{told}");
}
