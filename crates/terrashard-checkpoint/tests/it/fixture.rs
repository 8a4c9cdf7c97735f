//! A small model with every awkward kind of tensor, and its save by several ranks.

use std::borrow::Cow;
use std::path::Path;

use serde_json::json;
use terrashard_checkpoint::{Kind, Piece, Saver, State, TensorSpec};
use terrashard_layout::ElementType::{Bf16, F32, F64};
use terrashard_layout::{LayoutConfig, ParameterSpec, Row, ShardTable, Stage};

/// The parameters: cut unevenly, larger than one hashed chunk at any rank count up to 2, in three element types, frozen,
/// tied, empty, a scalar, and with fewer elements than ranks.
pub(crate) fn parameters() -> Vec<ParameterSpec> {
    let spec = |name: &str, shape: &[usize], dtype| ParameterSpec::new(name, shape, dtype);
    vec![
        spec("stem.weight", &[7, 5], F32),
        spec("stem.bias", &[3], F64),
        spec("wide.weight", &[1001, 601], F32),
        spec("coarse.weight", &[9, 3], Bf16),
        ParameterSpec {
            trainable: false,
            ..spec("frozen.weight", &[4, 5], Bf16)
        },
        ParameterSpec {
            tied_to: Some("stem.weight".into()),
            ..spec("head.weight", &[7, 5], F32)
        },
        spec("none", &[0, 4], F32),
        spec("scale", &[], F32),
        spec("pair", &[2], F32),
    ]
}

/// The parameters as rows of a shard table for a rank count.
pub(crate) fn rows(ranks: usize) -> Vec<Row> {
    let config = LayoutConfig {
        ranks,
        stage: Stage::Two,
        ..LayoutConfig::default()
    };
    let table = ShardTable::new(parameters(), &config).unwrap();
    table.rows().to_vec()
}

/// The kinds of tensor that a parameter has.
pub(crate) fn kinds(parameter: &ParameterSpec) -> &'static [Kind] {
    match parameter.trainable && parameter.tied_to.is_none() {
        true => &[Kind::Parameter, Kind::M, Kind::V, Kind::Ema],
        false => &[Kind::Parameter],
    }
}

/// The one buffer, written whole by rank 0.
pub(crate) fn buffer() -> TensorSpec {
    TensorSpec::new("bn.running_mean", Kind::Buffer, [5], F32)
}

/// All tensors of the checkpoint.
pub(crate) fn tensors() -> Vec<TensorSpec> {
    let of_parameters = parameters().into_iter().flat_map(|parameter| {
        kinds(&parameter)
            .iter()
            .map(move |&kind| TensorSpec::of(&parameter, kind))
    });
    of_parameters.chain([buffer()]).collect()
}

/// The bytes of a whole tensor: a function of name, kind and position, so that nothing can be mistaken for
/// anything else. A tied tensor has its owner's.
pub(crate) fn values(tensor: &TensorSpec) -> Vec<u8> {
    let name = tensor.tied_to.as_ref().unwrap_or(&tensor.name);
    let mut bytes = vec![0; tensor.numel() * tensor.dtype.bytes()];
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{name} {}", tensor.kind).as_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// A rank's pieces.
pub(crate) fn pieces(rank: usize, ranks: usize) -> Vec<Piece<'static>> {
    let mut pieces = Vec::new();
    for row in rows(ranks) {
        for &kind in kinds(&row.parameter) {
            let tensor = TensorSpec::of(&row.parameter, kind);
            let (interval, width) = (row.interval(rank, ranks), tensor.dtype.bytes());
            let bytes = match tensor.tied_to {
                Some(_) => Vec::new(),
                None => values(&tensor)[interval.start * width..interval.end * width].to_vec(),
            };
            pieces.push(Piece {
                tensor,
                start: interval.start,
                bytes: bytes.into(),
            });
        }
    }
    if rank == 0 {
        pieces.push(Piece {
            start: 0,
            bytes: Cow::from(values(&buffer())),
            tensor: buffer(),
        });
    }
    pieces
}

/// A state with numbers that a careless reader would round.
pub(crate) fn state(step: u64) -> State {
    let values = json!({ "bands": ["B02", "B03"], "loss_scale": 65536.0, "third": 1.0 / 3.0, "tiny": 5e-324 });
    State {
        step,
        cursor: (1 << 60) + 1,
        seed: u64::MAX,
        schedule: json!({ "lr": 0.1 + 0.2 }),
        config: "[train]\nsteps = 10 # \"quoted\"\n".into(),
        tool: "terrashard 0.1.0".into(),
        values: values.as_object().unwrap().clone(),
        score: Some(0.1 + 0.2),
        scored_by: Some("iou".into()),
    }
}

/// Saves a step with all ranks, one after another, as the barriers would order them.
pub(crate) fn save(root: &Path, step: u64, ranks: usize) {
    let savers: Vec<Saver> = (0..ranks)
        .map(|rank| Saver::create(root, step, rank, ranks).unwrap())
        .collect();
    for saver in &savers {
        saver.prepare().unwrap();
    }
    for (rank, saver) in savers.iter().enumerate().rev() {
        saver.write(&pieces(rank, ranks)).unwrap();
    }
    for saver in &savers {
        saver.publish(&state(step)).unwrap();
    }
}
