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
            let at_peak = plan["at_peak"].as_object().unwrap().values();
            let at_peak: u64 = at_peak.map(|bytes| bytes.as_u64().unwrap()).sum();
            assert_eq!(number(plan, "total"), at_peak);
            let least = together + number(plan, "batch") + number(plan, "activations");
            let most = least
                + ["gradients", "buckets", "gathered", "workspace"]
                    .map(|key| number(plan, key))
                    .iter()
                    .sum::<u64>();
            assert!(
                (least / 2..=most).contains(&number(plan, "total")),
                "{plan}"
            );
            assert!(plan["fits"].is_null());
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
    let fits = |stage, offload| {
        self::stage(&plan, stage, offload)["fits"]
            .as_bool()
            .unwrap()
    };
    for (stage, offload, expected) in [
        (0, "none", false),
        (1, "none", false),
        (2, "none", false),
        (3, "none", true),
        (2, "optimizer", false),
        (3, "optimizer", true),
        (3, "parameters", true),
    ] {
        assert_eq!(fits(stage, offload), expected, "{stage} {offload}");
    }
    let advice = plan["advice"].as_str().unwrap();
    assert!(
        advice.starts_with("take stage 3: stage 0 would take"),
        "{advice}"
    );
}

/// A small model on large samples: activations are nearly everything, and the advice says so.
#[test]
fn m1_where_zero_does_not_help_the_advice_says_so() {
    let scenario = Scenario::new();
    let advice = |arguments: &[&str]| {
        let mut all = vec!["--gpus", "2", "--set", "data.chip=512"];
        all.extend(arguments);
        let plan = plan(&scenario, &all);
        plan["advice"].as_str().unwrap().to_string()
    };
    let text = advice(&["--set", "train.global_batch=16"]);
    assert!(text.starts_with("ZeRO will help little here"), "{text}");
    // 16 samples do not fit, but some do.
    let text = advice(&["--set", "train.global_batch=32", "--memory", "600MiB"]);
    assert!(
        text.starts_with("nothing fits into 600.0 MiB with 16 samples"),
        "{text}"
    );
    assert!(
        text.contains("ZeRO will not help you further") && text.contains("`train.micro_batch = "),
        "{text}"
    );
    // Not even one does.
    let text = advice(&["--set", "train.global_batch=2", "--memory", "100MiB"]);
    assert!(text.contains("take smaller tiles, `data.chip = "), "{text}");
    // A large model keeps more than recomputation leaves.
    let deep = [
        "--set",
        "model.depths=[3, 6, 40, 3]",
        "--set",
        "train.global_batch=2",
    ];
    let kept = plan(
        &scenario,
        &[&["--gpus", "2", "--set", "data.chip=512"], &deep[..]].concat(),
    );
    let [zero, three] = [0, 3].map(|stage| number(self::stage(&kept, stage, "none"), "total"));
    let between = format!("{}B", three - (zero - three) / 4);
    let text = advice(&[&deep[..], &["--memory", &between]].concat());
    assert!(text.contains("recompute"), "{text}");
}

/// Activations by the shapes of the model: a hidden tensor is of four times the channels, and so on.
#[test]
fn activations_grow_with_samples_and_pixels_and_go_with_recomputation() {
    let scenario = Scenario::new();
    let of = |set: &[&str]| {
        let mut all = vec!["--gpus", "1", "--set", "model.depths=[4, 4, 8, 4]"];
        set.iter().for_each(|set| all.extend(["--set", set]));
        let plan = plan(&scenario, &all);
        number(stage(&plan, 0, "none"), "activations")
    };
    let one = of(&["train.global_batch=1", "data.chip=64"]);
    let within = |got: u64, expected: f64| {
        let ratio = got as f64 / (expected * one as f64);
        assert!((0.98..1.02).contains(&ratio), "{got} of {one}: {ratio}");
    };
    within(of(&["train.global_batch=4", "data.chip=64"]), 4.0);
    within(of(&["train.global_batch=1", "data.chip=128"]), 4.0);
    let narrow = of(&[
        "train.global_batch=1",
        "data.chip=64",
        "train.precision=\"bf16\"",
    ]);
    assert!(
        (0.5..0.62).contains(&(narrow as f64 / one as f64)),
        "{narrow} of {one}"
    );
    let again = of(&[
        "train.global_batch=1",
        "data.chip=64",
        "zero.recompute=\"recompute\"",
    ]);
    assert!(again < one * 6 / 10, "{again} of {one}");
    let offloaded = of(&[
        "train.global_batch=1",
        "data.chip=64",
        "zero.recompute=\"offload\"",
    ]);
    assert!(offloaded < again, "{offloaded} of {again}");
    let branch = of(&[
        "train.global_batch=1",
        "data.chip=64",
        "model.superres=true",
    ]);
    assert!(branch > one, "{branch} of {one}");
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
        "--memory",
        "2GiB",
    ];
    let output = scenario.terrashard(&plan);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains("on each of 4 ranks in groups of 2"),
        "{text}"
    );
    assert!(lines[1].starts_with("stage  offload"), "{text}");
    assert!(lines[0].contains("on a GPU (LibTorch)"), "{text}");
    assert!(lines[1].ends_with("fits"), "{text}");
    assert!(lines[9].starts_with("3      parameters"), "{text}");
    assert!(lines[11].starts_with("zero.persist_bytes keeps"), "{text}");
    assert!(
        lines[14].starts_with("stage  offload     recompute"),
        "{text}"
    );
    // Each stage and offload with each recomputation.
    assert!(lines[15].starts_with("0      none        keep"), "{text}");
    assert!(
        lines[38].starts_with("3      parameters  offload"),
        "{text}"
    );
    assert!(lines[40].starts_with("take stage 0: "), "{text}");
    assert!(lines[41].starts_with("`--gpus` plans for GPUs"), "{text}");
    assert_eq!(lines.len(), 42, "{text}");

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

/// The device that is planned for follows from `--gpus`, which is told.
#[test]
fn a_plan_for_gpus_says_that_it_is_one() {
    let scenario = Scenario::new();
    let page = |arguments: &[&str]| {
        let output = scenario.terrashard(&[&["plan", "run.toml"], arguments].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let note = "`--gpus` plans for GPUs; with `--device cpu` beside it";
    assert!(page(&["--gpus", "2"]).contains(note));
    for arguments in [&[][..], &["--gpus", "2", "--device", "cpu"]] {
        assert!(!page(arguments).contains(note), "{arguments:?}");
    }
}

/// The configuration's own limit is what is asked about; on the processor nothing can be held to it.
#[test]
fn a_limit_of_a_gpus_memory_is_planned_for_and_refused_on_the_processor() {
    let scenario = Scenario::new();
    let limit = ["--gpus", "2", "--set", "zero.device_memory=\"1.5GiB\""];
    assert_eq!(number(&plan(&scenario, &limit), "memory"), 3 << 29);
    let refused = |arguments: &[&str], expected: &str| {
        let output = scenario.terrashard(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains(expected) && message.lines().count() == 1,
            "{message}"
        );
    };
    let fit = ["fit", "run.toml", "--set", "zero.device_memory=\"1GiB\""];
    refused(&fit, "`zero.device_memory`");
    refused(
        &["plan", "run.toml", "--set", "zero.device_memory=5"],
        "16GiB",
    );
    refused(
        &["plan", "run.toml", "--set", "zero.device_memory=\"5GB\""],
        "unknown unit",
    );
}

/// A run in a process of its own: what was foretold stands beside what it took.
#[test]
fn a_run_tells_what_was_foretold_beside_what_it_took() {
    let scenario = Scenario::new();
    let fit = ["fit", "run.toml", "--run", "run", "--set", "train.steps=2"];
    let output = scenario.terrashard(&fit);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    let session = std::fs::read_to_string(scenario.path("run/sessions.jsonl")).unwrap();
    let session: Value = serde_json::from_str(session.lines().next().unwrap()).unwrap();
    assert!(number(&session["foretold"], "peak") > number(&session["foretold"], "batch"));
    let page = std::fs::read_to_string(scenario.path("run/report.html")).unwrap();
    let told = page.contains("foretells") && page.contains("measured were");
    assert_eq!(told, !session["measured_peak"].is_null());
}
