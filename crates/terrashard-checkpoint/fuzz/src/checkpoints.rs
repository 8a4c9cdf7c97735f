//! What is tried with any bytes as a file of a checkpoint: it reads or is refused in one line that names it, and what is read is
//! no more than the files hold.

use std::fs;
use std::path::Path;

use serde_json::Value;
use terrashard_checkpoint::{
    Checkpoint, ElementType, Error, ForeignFile, Keep, Kind, ModelFile, Piece, Result, Saver,
    Source, State, TensorSpec, in_force, remains, step_folder, steps, superfluous,
};

thread_local! {
    static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder");
    static SAVED: tempfile::TempDir = saved();
}

/// The step that is saved in [`SAVED`].
const STEP: u64 = 7;

/// Two ranks' checkpoint of a few small tensors of each kind.
fn saved() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let savers = [0, 1].map(|rank| {
        let saver = Saver::create(folder.path(), STEP, rank, 2).expect("a rank of two");
        saver.prepare().expect("makes the folders");
        saver
    });
    for (rank, saver) in savers.iter().enumerate() {
        let half = |name: &str, kind, shape: &[usize], dtype: ElementType| Piece {
            tensor: TensorSpec::new(name, kind, shape, dtype),
            start: 3 * rank,
            bytes: vec![rank as u8 + 1; 3 * dtype.bytes()].into(),
        };
        let mut pieces = vec![
            half("stem.weight", Kind::Parameter, &[2, 3], ElementType::F32),
            half("stem.weight", Kind::M, &[2, 3], ElementType::F32),
            half("stem.bias", Kind::Parameter, &[6], ElementType::Bf16),
        ];
        if rank == 0 {
            let tensor = TensorSpec::new("mean", Kind::Buffer, [1], ElementType::F64);
            let (start, bytes) = (0, vec![5; 8].into());
            pieces.push(Piece {
                tensor,
                start,
                bytes,
            });
            let tied = TensorSpec::new("head.weight", Kind::Parameter, [2, 3], ElementType::F32);
            pieces.push(Piece {
                tensor: tied.tied_to("stem.weight"),
                start,
                bytes: Vec::new().into(),
            });
        }
        saver.write(&pieces).expect("writes");
    }
    let state = State {
        step: STEP,
        score: Some(0.5),
        ..State::default()
    };
    for saver in &savers {
        saver.publish(&state).expect("publishes");
    }
    folder
}

/// What was refused tells so in one line that names the file.
fn refused(error: &Error, name: &str) {
    let message = error.to_string();
    assert!(message.contains(name), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(!message.contains(char::is_control), "{message:?}");
}

/// Reads all that a source says it has; the values of its own are no more bytes than the files.
fn read(source: &Source, stored: u64) -> Result<()> {
    let specs: Vec<TensorSpec> = source.tensors().into_iter().cloned().collect();
    let owned = specs.iter().filter(|spec| spec.tied_to.is_none());
    let bytes: usize = owned
        .map(|spec| spec.numel().saturating_mul(spec.dtype.bytes()))
        .fold(0, usize::saturating_add);
    assert!(bytes as u64 <= stored, "{bytes} bytes of {stored}");
    source.require(&specs)?;
    for spec in &specs {
        let numel = spec.numel();
        let _ = source.read_f32(&spec.name, spec.kind, numel / 3..numel)?;
        let _ = source.read_f64(&spec.name, spec.kind, 0..numel.min(2))?;
    }
    source.verify()?;
    Ok(())
}

/// Checks a folder's checkpoint as it is.
fn checkpoint(root: &Path, stored: u64) {
    let attempt = Checkpoint::open(root).and_then(|checkpoint| {
        checkpoint.disk_bytes()?;
        read(&Source::Checkpoint(checkpoint), stored)
    });
    if let Err(error) = attempt {
        // A gap or an overlap is told of a tensor.
        let told = matches!(error, Error::Gap { .. } | Error::Overlap { .. });
        refused(&error, if told { "`" } else { "step-" });
    }
    if let Ok(damaged) = Checkpoint::open_damaged(root) {
        let specs: Vec<TensorSpec> = damaged.tensors().cloned().collect();
        for fault in damaged.faults() {
            refused(&fault.error, "step-");
        }
        for spec in specs {
            let _ = damaged.read_whole(&spec.name, spec.kind);
        }
    }
}

/// A `manifest.json` over the data files of a small checkpoint: as it is, and with the hash that its state has.
pub fn manifest(bytes: &[u8]) {
    SAVED.with(|folder| {
        let step = step_folder(folder.path(), STEP);
        let lengths = [0, 1].map(|rank| {
            let data = step.join(format!("rank-{rank:05}.safetensors"));
            data.metadata().expect("was written").len()
        });
        let stored = lengths.iter().sum();
        let path = step.join("manifest.json");
        fs::write(&path, bytes).expect("writes");
        checkpoint(folder.path(), stored);
        let Ok(mut manifest) = serde_json::from_slice::<Value>(bytes) else {
            return;
        };
        let Some(state) = manifest.get("state") else {
            return;
        };
        let mut state = state.clone();
        state.sort_all_objects();
        let hash = blake3::hash(state.to_string().as_bytes());
        manifest["state_hash"] = hash.to_hex().as_str().into();
        fs::write(&path, manifest.to_string()).expect("writes");
        checkpoint(folder.path(), stored);
    });
}

/// What `latest` says of a folder with one complete step.
pub fn pointer(bytes: &[u8]) {
    SAVED.with(|folder| {
        let root = folder.path();
        fs::write(root.join("latest"), bytes).expect("writes");
        match in_force(root) {
            Ok(step) => assert_eq!(step, Some(STEP)),
            Err(error) => refused(&error, "latest"),
        }
        let keep = Keep { last: 1, best: 1 };
        match superfluous(root, keep) {
            Ok(none) => assert_eq!(none, Vec::<u64>::new()),
            Err(error) => refused(&error, "latest"),
        }
        assert_eq!(steps(root).expect("lists"), [STEP]);
        assert_eq!(remains(root).expect("lists"), Vec::<String>::new());
    });
}

/// A safetensors file, as a model of this project and as one of another.
pub fn safetensors(bytes: &[u8]) {
    FOLDER.with(|folder| {
        let path = folder.path().join("input");
        fs::write(&path, bytes).expect("writes");
        let model = ModelFile::open(&path).map(Source::Model);
        if let Err(error) = model.and_then(|model| read(&model, bytes.len() as u64)) {
            refused(&error, "input");
        }
        foreign(&path, bytes.len());
    });
}

/// A `data.pkl` in an archive as `torch.save` writes it, with one storage of 64 bytes; or the archive itself.
pub fn pickle(bytes: &[u8]) {
    FOLDER.with(|folder| {
        let path = folder.path().join("input");
        let file = match bytes {
            [b'P', b'K', ..] => bytes.to_vec(),
            _ => archive(&[("m/data.pkl", bytes), ("m/data/0", &[7; 64])]),
        };
        fs::write(&path, &file).expect("writes");
        foreign(&path, file.len());
    });
}

fn foreign(path: &Path, stored: usize) {
    let file = match ForeignFile::open(path) {
        Ok(file) => file,
        Err(error) => return refused(&error, "input"),
    };
    for (name, _) in file.tensors() {
        match file.read(name) {
            // Two bytes make four at most.
            Ok(values) => assert!(values.len() <= stored, "{name}: {}", values.len()),
            Err(error) => refused(&error, "input"),
        }
    }
}

/// A zip file of entries that are stored as they are; nobody checks their sums.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let header = file.len() as u32;
        let length = (content.len() as u32).to_le_bytes();
        let sizes = [length, length].concat();
        let name_bytes = (name.len() as u16).to_le_bytes();
        file.extend(b"PK\x03\x04");
        file.extend([0; 14]);
        file.extend(&sizes);
        file.extend(name_bytes);
        file.extend([0; 2]);
        file.extend(name.as_bytes());
        file.extend(*content);
        directory.extend(b"PK\x01\x02");
        directory.extend([0; 16]);
        directory.extend(&sizes);
        directory.extend(name_bytes);
        directory.extend([0; 12]);
        directory.extend(header.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = (file.len() as u32).to_le_bytes();
    let count = (entries.len() as u16).to_le_bytes();
    let size = (directory.len() as u32).to_le_bytes();
    file.extend(directory);
    file.extend(b"PK\x05\x06");
    file.extend([0; 4]);
    file.extend([count, count].concat());
    file.extend(size);
    file.extend(start);
    file.extend([0; 2]);
    file
}
