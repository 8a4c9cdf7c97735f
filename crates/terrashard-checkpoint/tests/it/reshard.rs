//! Saved at any rank count, read at any other.

use std::borrow::Cow;
use std::fs;

use safetensors::SafeTensors;
use terrashard_checkpoint::{Checkpoint, Error, Kind, Piece, Saver, Slot, TensorSpec};
use terrashard_layout::ElementType::F32;

use crate::fixture::{buffer, kinds, pieces, rows, save, state, tensors, values};

#[test]
fn every_rank_count_reads_what_every_other_wrote() {
    let folder = tempfile::tempdir().unwrap();
    for writers in 1..=4 {
        let root = folder.path().join(writers.to_string());
        save(&root, 100, writers);
        let checkpoint = Checkpoint::open(&root).unwrap();
        assert_eq!(checkpoint.ranks(), writers);
        for readers in 1..=5 {
            for row in rows(readers) {
                for &kind in kinds(&row.parameter) {
                    let spec = TensorSpec::of(&row.parameter, kind);
                    let (whole, width) = (values(&spec), spec.dtype.bytes());
                    for rank in 0..readers {
                        let interval = row.interval(rank, readers);
                        let expected = &whole[interval.start * width..interval.end * width];
                        let read = checkpoint.read(&spec.name, kind, interval).unwrap();
                        assert!(
                            read == expected,
                            "{} {kind} {writers} -> {readers}",
                            spec.name
                        );
                    }
                }
            }
        }
    }
}

/// A hash is of a mebibyte, so that at most one at each end of a piece is read beside what is wanted.
#[test]
fn a_rank_reads_its_own_bytes_and_little_beside_them() {
    const MEBIBYTE: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let spec = TensorSpec::new("wide", Kind::M, [10, 1 << 20], F32);
    let bytes: Vec<u8> = (0..40 * MEBIBYTE).map(|at| (at % 251) as u8).collect();
    let savers = [0, 1].map(|rank| Saver::create(folder.path(), 1, rank, 2).unwrap());
    savers[0].prepare().unwrap();
    for (saver, half) in savers.iter().zip([0, 1]) {
        let half = half * bytes.len() / 2;
        let piece = Piece {
            tensor: spec.clone(),
            start: half / 4,
            bytes: Cow::from(&bytes[half..half + bytes.len() / 2]),
        };
        saver.write(&[piece]).unwrap();
    }
    savers[0].publish(&state(1)).unwrap();
    for ranks in [1, 2, 3, 5, 7] {
        let mut all = 0;
        for rank in 0..ranks {
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            let end = |rank: usize| rank * spec.numel() / ranks;
            let own = end(rank)..end(rank + 1);
            let mut out = vec![1; 4 * own.len()];
            let into = checkpoint.read_into("wide", Kind::M, own.clone(), &mut out);
            into.unwrap();
            assert!(
                out == bytes[4 * own.start..4 * own.end],
                "{rank} of {ranks}"
            );
            let read = checkpoint.bytes_read();
            let beside = read - out.len() as u64;
            assert!(beside < 2 * MEBIBYTE, "{beside} for {rank} of {ranks}");
            all += read;
            let short = checkpoint.read_into("wide", Kind::M, own, &mut out[1..]);
            assert!(matches!(short, Err(Error::Length { .. })));
            assert_eq!(checkpoint.bytes_read(), read);
            // Together they check all of it once.
            let share = checkpoint.verify_share(rank, ranks).unwrap();
            assert_eq!(checkpoint.bytes_read(), read + share);
            assert!(share <= bytes.len() as u64 / ranks as u64 + MEBIBYTE);
        }
        assert!(all < bytes.len() as u64 + 2 * MEBIBYTE * ranks as u64);
    }
}

#[test]
fn the_whole_comes_back_with_its_description() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("run/checkpoints");
    save(&root, 100, 3);
    for path in [
        folder.path().join("run"),
        root.clone(),
        root.join("step-000100"),
    ] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.state(), &state(100));
        let mut expected = tensors();
        expected.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
        let found: Vec<TensorSpec> = checkpoint.tensors().cloned().collect();
        assert_eq!(found, expected);
        let mut bytes = 0;
        for spec in &expected {
            let whole = checkpoint.read_whole(&spec.name, spec.kind).unwrap();
            assert!(whole == values(spec), "{} {}", spec.name, spec.kind);
            bytes += whole.len() * usize::from(spec.tied_to.is_none());
        }
        assert_eq!(checkpoint.verify().unwrap(), bytes as u64);
    }
    let mut names: Vec<String> = fs::read_dir(root.join("step-000100"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "manifest.json",
            "rank-00000.safetensors",
            "rank-00001.safetensors",
            "rank-00002.safetensors"
        ]
    );
    assert_eq!(
        fs::read_to_string(root.join("latest")).unwrap(),
        "step-000100\n"
    );
}

#[test]
fn a_tied_name_has_its_owners_values_and_states() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1, 2);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    for kind in [Kind::Parameter, Kind::M, Kind::V] {
        assert_eq!(
            checkpoint.read("head.weight", kind, 3..20).unwrap(),
            checkpoint.read("stem.weight", kind, 3..20).unwrap()
        );
    }
    let tied = checkpoint.tensor("head.weight", Kind::Parameter).unwrap();
    assert_eq!(tied.tied_to.as_deref(), Some("stem.weight"));
    assert!(checkpoint.tensor("frozen.weight", Kind::M).is_none());
    assert!(checkpoint.tensor("none", Kind::M).is_some());
}

#[test]
fn other_readers_open_every_data_file() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1, 2);
    for rank in 0..2 {
        let path = format!("step-000001/rank-0000{rank}.safetensors");
        let bytes = fs::read(folder.path().join(path)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let start = [0, 18][rank];
        let view = file.tensor(&format!("v/stem.weight@{start}")).unwrap();
        assert_eq!(view.shape(), [18 - rank]);
        let spec = TensorSpec::new("stem.weight", Kind::V, [7, 5], F32);
        assert_eq!(view.data(), &values(&spec)[start * 4..][..(18 - rank) * 4]);
        assert_eq!(file.tensor("parameter/scale@0").is_ok(), rank == 0);
    }
}

#[test]
fn equal_states_give_equal_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| {
        let root = folder.path().join(name);
        save(&root, 1, 2);
        [
            "manifest.json",
            "rank-00000.safetensors",
            "rank-00001.safetensors",
        ]
        .map(|file| fs::read(root.join("step-000001").join(file)).unwrap())
    };
    assert!(read("a") == read("b"));
}

#[test]
fn slots_are_fetched_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let saver = Saver::create(folder.path(), 1, 0, 1).unwrap();
    saver.prepare().unwrap();
    let slot = Slot {
        tensor: buffer(),
        interval: 0..5,
    };
    let failed = saver.write_with(std::slice::from_ref(&slot), |_| {
        Err(std::io::Error::other("device lost"))
    });
    assert_eq!(
        failed.unwrap_err().to_string(),
        "failed to fetch buffer `bn.running_mean`: device lost"
    );
    saver
        .write_with(&[slot], |slot| {
            Ok::<_, std::io::Error>(Cow::from(values(&slot.tensor)))
        })
        .unwrap();
    saver.publish(&state(1)).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(
        checkpoint
            .read_whole("bn.running_mean", Kind::Buffer)
            .unwrap(),
        values(&buffer())
    );
}

/// Two ranks write `[start, end)` of one tensor of 6 elements, each with its own idea of the tensor.
fn publish_two(first: (TensorSpec, usize, usize), second: (TensorSpec, usize, usize)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let savers = [0, 1].map(|rank| Saver::create(folder.path(), 1, rank, 2).unwrap());
    savers[0].prepare().unwrap();
    for (saver, (tensor, start, end)) in savers.iter().zip([first, second]) {
        let bytes = Cow::from(vec![0; (end - start) * 4]);
        let piece = Piece {
            tensor,
            start,
            bytes,
        };
        saver.write(&[piece]).unwrap();
    }
    let error = savers[0].publish(&state(1)).unwrap_err();
    assert!(matches!(
        Checkpoint::open(folder.path()),
        Err(Error::NoCheckpoint { .. })
    ));
    error.to_string()
}

#[test]
fn ranks_that_do_not_fit_together_publish_nothing() {
    let w = || TensorSpec::new("w", Kind::M, [6], F32);
    let check = |message: String, expected: &str| assert!(message.contains(expected), "{message}");
    check(
        publish_two((w(), 0, 3), (w(), 4, 6)),
        "m `w`: no rank wrote elements 3..4",
    );
    check(
        publish_two((w(), 0, 3), (w(), 3, 5)),
        "m `w`: no rank wrote elements 5..6",
    );
    check(
        publish_two((w(), 0, 6), (w(), 0, 6)),
        "m `w`: elements 0..6 were written twice",
    );
    check(
        publish_two((w(), 0, 4), (w(), 3, 6)),
        "m `w`: elements 3..4 were written twice",
    );
    check(
        publish_two((w(), 0, 3), (w(), 3, 7)),
        "m `w`: its intervals",
    );
    let other = TensorSpec::new("w", Kind::M, [2, 3], F32);
    check(
        publish_two((w(), 0, 3), (other, 3, 6)),
        "ranks disagree on m `w`: [6] f32 and [2, 3] f32",
    );
    let tied = w().tied_to("nobody");
    check(
        publish_two((tied.clone(), 0, 0), (tied, 0, 0)),
        "a tied tensor",
    );
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1, 1);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let check = |name: &str, kind, interval, expected: &str| {
        let message = checkpoint
            .read(name, kind, interval)
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{message}");
    };
    check("stem", Kind::Parameter, 0..1, "has no parameter `stem`");
    check("frozen.weight", Kind::V, 0..1, "has no v `frozen.weight`");
    check("pair", Kind::M, 1..3, "m `pair`");
    check("pair", Kind::M, 1..3, "has 2 elements, asked for 1..3");
    check("pair", Kind::M, 0..usize::MAX, "has 2 elements");

    assert!(matches!(
        Saver::create(folder.path(), 2, 2, 2),
        Err(Error::Rank { .. })
    ));
}

#[test]
fn what_is_not_written_is_not_published() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), 1, 1);
    let saver = Saver::create(folder.path(), 2, 0, 2).unwrap();
    saver.prepare().unwrap();
    saver.write(&pieces(0, 2)).unwrap();
    let error = saver.publish(&state(2)).unwrap_err();
    assert!(
        matches!(error, Error::MissingRank { rank: 1, .. }),
        "{error}"
    );
    let error = saver.publish(&state(3)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Step {
                expected: 2,
                got: 3
            }
        ),
        "{error}"
    );
    let other = Saver::create(folder.path(), 2, 1, 2).unwrap();
    other.write(&pieces(1, 2)).unwrap();
    let path = folder
        .path()
        .join(".step-000002.tmp/rank-00001.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[1..]).unwrap();
    let message = saver.publish(&state(2)).unwrap_err().to_string();
    assert!(message.contains("rank-00001.safetensors has "), "{message}");
    assert_eq!(Checkpoint::open(folder.path()).unwrap().state().step, 1);

    // Nothing of that failed save gets into the next one of fewer ranks.
    save(folder.path(), 2, 1);
    let step = folder.path().join("step-000002");
    assert_eq!(fs::read_dir(step).unwrap().count(), 2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}
