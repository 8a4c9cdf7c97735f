//! Saving, exporting and loading, a tensor at a time.

use std::borrow::Cow;

use terrashard_checkpoint::{
    Checkpoint, ElementType, Export, Kind, ModelDescription, Saver, Slot, State, TensorSpec,
    Weights, export,
};

use crate::{live, peak, restart_peak, turn};

const TENSORS: usize = 24;
const ELEMENTS: usize = 1 << 20;
/// Bytes of a tensor; a checkpoint has three states of each.
const LARGEST: usize = 4 * ELEMENTS;
/// What files, manifests and digests take, whatever the size of the model.
const SLACK: usize = 2 << 20;

/// The most bytes that lived during `run`, over those before it.
fn peak_of(run: impl FnOnce()) -> usize {
    let before = live();
    restart_peak();
    run();
    peak() - before
}

#[test]
fn m6_a_model_is_saved_exported_and_loaded_a_tensor_at_a_time() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    let spec = |index: usize, kind| {
        TensorSpec::new(
            format!("layers.{index}"),
            kind,
            [1024, 1024],
            ElementType::F32,
        )
    };
    let kinds = [Kind::Parameter, Kind::M, Kind::V];
    let slots: Vec<Slot> = (0..TENSORS)
        .flat_map(|index| kinds.map(|kind| spec(index, kind)))
        .map(|tensor| Slot {
            tensor,
            interval: 0..ELEMENTS,
        })
        .collect();
    let all = slots.len() * LARGEST;
    let saver = Saver::create(folder.path(), 1, 0, 1).expect("a rank");
    saver.prepare().expect("a folder");
    let saved = peak_of(|| {
        let fetched = |_: &Slot| Ok::<_, std::io::Error>(Cow::from(vec![7; LARGEST]));
        saver.write_with(&slots, fetched).expect("written");
        let state = State {
            step: 1,
            ..State::default()
        };
        saver.publish(&state).expect("published");
    });
    let checkpoint = Checkpoint::open(folder.path()).expect("whole");
    let model = folder.path().join("model.safetensors");
    let exported = peak_of(|| {
        let description = ModelDescription::default();
        let wanted = Export {
            weights: Weights::Plain,
            dtype: None,
        };
        export(&checkpoint, &model, &description, wanted).expect("exported");
    });
    // A rank of four takes its quarter of each tensor.
    let loaded = peak_of(|| {
        let own = ELEMENTS / 4..ELEMENTS / 2;
        let mut buffer = vec![0; 4 * own.len()];
        for slot in &slots {
            let TensorSpec { name, kind, .. } = &slot.tensor;
            let read = checkpoint.read_into(name, *kind, own.clone(), &mut buffer);
            read.expect("read");
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    });
    let most = 3 * LARGEST + SLACK;
    assert!(most < all / 20, "the bound says something");
    for (what, bytes) in [("saved", saved), ("exported", exported), ("loaded", loaded)] {
        assert!(bytes <= most, "{what} with {bytes} bytes, allowed {most}");
    }
}
