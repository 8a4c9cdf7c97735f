//! Saves beside the work that goes on.

use std::fs;

use terrashard_checkpoint::{Checkpoint, Keep, Kind, Piece, Saver, Slot, TensorSpec, steps};

use crate::fixture::{pieces, save, state, values};

const KEEP: Keep = Keep { last: 1, best: 0 };

/// A rank's slots with their bytes.
fn slots(rank: usize, ranks: usize) -> Vec<(Slot, Vec<u8>)> {
    let slot = |piece: Piece<'static>| {
        let len = piece.bytes.len() / piece.tensor.dtype.bytes();
        let interval = piece.start..piece.start + len;
        let tensor = piece.tensor;
        (Slot { tensor, interval }, piece.bytes.into_owned())
    };
    pieces(rank, ranks).into_iter().map(slot).collect()
}

#[test]
fn what_is_saved_is_what_was_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 2, 1);
    let savers = [0, 1].map(|rank| Saver::create(folder.path(), 3, rank, 2).unwrap());
    savers[0].prepare().unwrap();
    let writes = [0, 1].map(|rank| savers[rank].write_beside(slots(rank, 2)).unwrap());
    writes.into_iter().for_each(|write| write.wait().unwrap());
    let publish = savers[0].publish_beside(state(3), KEEP).unwrap();
    publish.wait().unwrap();
    assert_eq!(steps(folder.path()).unwrap(), [3]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let tensors: Vec<TensorSpec> = checkpoint.tensors().cloned().collect();
    assert_eq!(checkpoint.state(), &state(3));
    assert!(tensors.iter().any(|tensor| tensor.kind == Kind::V));
    for tensor in tensors {
        let read = checkpoint.read_whole(&tensor.name, tensor.kind).unwrap();
        assert!(read == values(&tensor), "{}", tensor.name);
    }
}

#[test]
fn a_failure_comes_out_and_the_previous_checkpoint_stays() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1, 1);
    let saver = Saver::create(folder.path(), 2, 0, 1).unwrap();
    // Nobody has prepared, so that there is no folder to write into.
    let write = saver.write_beside(slots(0, 1)).unwrap();
    let message = write.wait().unwrap_err().to_string();
    assert!(
        message.starts_with("failed to create") && message.contains("step-000002"),
        "{message}"
    );
    saver.prepare().unwrap();
    let publish = saver.publish_beside(state(2), KEEP).unwrap();
    let message = publish.wait().unwrap_err().to_string();
    assert!(
        message.contains("rank 0 of 1 has not written its part"),
        "{message}"
    );
    assert_eq!(Checkpoint::open(folder.path()).unwrap().state().step, 1);
    save(folder.path(), 2, 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}
