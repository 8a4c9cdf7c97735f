//! What a training leaves for others to use.

use std::fs;

use terrashard_checkpoint::{Kind, Source};

use crate::scenario::Scenario;

/// What `fit` leaves is taken by every other command as it is, and by other programs once it is exported.
#[test]
fn c12_a_finished_training_leaves_weights_that_can_be_used() {
    let scenario = Scenario::new();
    scenario.fit("run", None, &["zero.ranks=3", "zero.stage=3"]);
    let succeed = |arguments: &[&str]| {
        let output = scenario.terrashard(arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
    };
    let map = |checkpoint: &str| {
        let predict = ["predict", "image.tif", "-o", "map.tif", "--quiet"];
        succeed(&[&predict[..], &["--checkpoint", checkpoint]].concat());
        fs::read(scenario.path("map.tif")).unwrap()
    };
    let of_run = map("run");
    succeed(&["export", "run"]);
    assert!(of_run == map("model.safetensors"), "another map");

    // As any reader of the format sees it: a header in JSON, then the values.
    let bytes = fs::read(scenario.path("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, values) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let run = Source::open(scenario.path("run")).unwrap();
    let parameters = run
        .tensors()
        .into_iter()
        .filter(|tensor| tensor.kind == Kind::Parameter);
    let mut count = 0;
    for tensor in parameters {
        let entry = &header[&tensor.name];
        assert_eq!(entry["dtype"], "F32", "{}", tensor.name);
        assert_eq!(entry["shape"], serde_json::json!(tensor.shape));
        let offset = |end: usize| entry["data_offsets"][end].as_u64().unwrap() as usize;
        let all = 0..tensor.numel();
        let expected = run.read(&tensor.name, Kind::Parameter, all).unwrap();
        assert!(values[offset(0)..offset(1)] == expected, "{}", tensor.name);
        count += 1;
    }
    assert!(count > 30, "{count} parameters");
}
