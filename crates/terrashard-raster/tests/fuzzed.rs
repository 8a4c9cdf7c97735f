//! Inputs that fuzzing has kept: each reads or is refused in one line, within the budget, and none panics.

// Public for the targets, which are another crate.
#[allow(unreachable_pub)]
#[path = "../fuzz/src/rasters.rs"]
mod rasters;

use std::path::Path;

/// Runs over the seeds and findings of these names.
fn each(folders: &[&str], attempt: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let mut inputs = 0;
    for folder in folders {
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
    }
    assert!(inputs > 0, "{folders:?} hold inputs");
}

#[test]
fn rasters_of_any_bytes_read_or_are_refused() {
    each(&["open", "jp2", "numpy"], rasters::open);
}

#[test]
fn metadata_of_products_read_or_are_refused() {
    each(&["product"], rasters::product);
}

#[test]
fn texts_in_tags_read_or_are_left_aside() {
    each(&["tags"], rasters::tags);
}
