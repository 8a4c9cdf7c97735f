//! The peers: PyTorch's own data parallelism and DeepSpeed, by their scripts.
//!
//! A folder of scripts has `worker.py`, which takes one measurement as JSON in its argument, runs in the environment that
//! torchrun gives and prints `RESULT` and JSON.

use std::collections::BTreeMap;

use super::job::{Device, Job, Sharding};
use super::processes::Program;
use super::{Measured, Precision, Scripts, workload};

/// The peers to measure.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Where they are.
    pub scripts: Scripts,
    /// Only these; all of PyTorch's own where there are none.
    pub names: Vec<String>,
}

/// The peers that do what a sharding does, ranks permitting.
fn doing(sharding: Sharding, ranks: usize) -> &'static [&'static str] {
    let Sharding {
        stage,
        offload,
        recompute,
        group,
    } = sharding;
    if group.is_some() {
        return &[];
    }
    match (ranks, stage, offload, recompute) {
        (1, 0, false, false) => &["single"],
        (1, ..) => &[],
        (_, 0, false, false) => &["ddp"],
        (_, 1, false, false) => &["zro", "ds1"],
        (_, 2, false, false) => &["fsdp2", "ds2"],
        (_, 3, false, false) => &["fsdp3", "ds3"],
        (_, 2, true, false) => &["ds2off"],
        (_, 3, true, false) => &["fsdp3off"],
        _ => &[],
    }
}

impl Peers {
    /// Who does the same as `job`, by name.
    pub(super) fn of(&self, job: &Job) -> Vec<(String, Program)> {
        let chosen = |name: &&&str| match self.names.as_slice() {
            [] => !name.starts_with("ds"),
            names => names.iter().any(|chosen| chosen == **name),
        };
        let peer = |name: &&str| (name.to_string(), self.program(job, name));
        let has_scripts = ["tiny", "b0", "b5", "xl"].contains(&job.model.as_str());
        // The scripts know each model at its own size alone.
        let own_px = workload::model(&job.model).is_ok_and(|known| known.px == job.px);
        if !has_scripts || !own_px || job.precision == Precision::Fp16 {
            return Vec::new();
        }
        let all = doing(job.sharding, job.ranks).iter();
        all.filter(chosen).map(peer).collect()
    }

    fn program(&self, job: &Job, peer: &str) -> Program {
        let config = serde_json::json!({
            "model": job.model,
            "peer": peer,
            "prec": job.precision,
            "batch": job.batch,
            "steps": job.steps,
            "warmup": job.warm_up,
        });
        let script = self.scripts.folder.join("worker.py");
        Program {
            path: self.scripts.python.clone(),
            read,
            arguments: vec![script.display().to_string(), config.to_string()],
            environment: environment(job),
        }
    }
}

fn environment(job: &Job) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("PYTHONUNBUFFERED", "1".to_string()),
        // What our programs need of LibTorch's libraries, torch finds by itself.
        ("LD_PRELOAD", String::new()),
    ];
    if job.device != Device::Cuda {
        environment.push(("PEERS_CPU", "1".into()));
        environment.push(("DS_ACCELERATOR", "cpu".into()));
        environment.push(("OMP_NUM_THREADS", job.threads().to_string()));
    }
    environment
}

fn read(value: &serde_json::Value) -> Result<Measured, String> {
    let number = |key: &str| value[key].as_f64();
    let required = |key: &str| number(key).ok_or_else(|| format!("a peer's result has no `{key}`"));
    let memory = |key: &str| number(key).filter(|gib| *gib > 0.0);
    let mut loss = BTreeMap::new();
    for (step, terms) in value["loss"].as_object().into_iter().flatten() {
        // The first term is the total.
        if let (Ok(step), Some(total)) = (step.parse(), terms[0].as_f64()) {
            loss.insert(step, total);
        }
    }
    Ok(Measured {
        step_ms: required("step_ms")?,
        min_ms: required("min_ms")?,
        max_ms: required("max_ms")?,
        wall_ms: required("wall_ms")?,
        images_s: required("images_s")?,
        alloc_gib: memory("alloc_GiB"),
        reserved_gib: memory("reserved_GiB"),
        loss,
        parameters: value["params"].as_u64().unwrap_or(0) as usize,
        setup_s: number("setup_s").unwrap_or(0.0),
        ..Measured::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_and_gaps_are_named() {
        let line = r#"{"model": "tiny", "peer": "ddp", "params": 7, "step_ms": 3.5, "min_ms": 3.0, "max_ms": 4.0,
            "wall_ms": 3.6, "images_s": 10.0, "alloc_GiB": 0.0, "reserved_GiB": 0.5, "setup_s": 1.5,
            "loss": {"1": [0.5, 0.1, 0.2, 0.3], "28": [0.25, 0, 0, 0]}}"#;
        let measured = read(&serde_json::from_str(line).unwrap()).unwrap();
        assert_eq!(measured.step_ms, 3.5);
        assert_eq!(
            (measured.alloc_gib, measured.reserved_gib),
            (None, Some(0.5))
        );
        assert_eq!(measured.loss, [(1, 0.5), (28, 0.25)].into());
        assert_eq!(measured.parameters, 7);
        let message = read(&serde_json::json!({"step_ms": 1.0})).unwrap_err();
        assert!(message.contains("`min_ms`"), "{message}");
    }
}
