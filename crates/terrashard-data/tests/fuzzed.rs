//! Texts that fuzzing has kept: each reads or is refused in one line, what is read writes itself as it reads, and none panics.

// Public for the targets, which are another crate.
#[allow(unreachable_pub)]
#[path = "../../terrashard-raster/fuzz/src/texts.rs"]
mod texts;

use std::path::Path;

/// Runs over the seeds and findings of this name.
fn each(folder: &str, attempt: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../terrashard-raster/fuzz");
    let mut inputs = 0;
    for kind in ["seeds", "findings"] {
        let Ok(files) = std::fs::read_dir(fuzz.join(kind).join(folder)) else {
            continue;
        };
        for file in files {
            let path = file.expect("listed").path();
            println!("{}", path.display());
            attempt(&std::fs::read(&path).expect("reads"));
            inputs += 1;
        }
    }
    assert!(inputs > 0, "{folder} holds inputs");
}

#[test]
fn indices_of_chips_read_or_are_refused() {
    each("index", texts::index);
}

#[test]
fn settings_read_or_are_refused() {
    each("settings", texts::settings);
}
