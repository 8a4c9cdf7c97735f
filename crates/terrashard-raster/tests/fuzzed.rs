//! Inputs that fuzzing has kept: each reads or is refused in one line, within the budget, and none panics.

// Public for the targets, which are another crate.
#[allow(unreachable_pub)]
#[path = "../fuzz/src/rasters.rs"]
mod rasters;

#[allow(unreachable_pub)]
#[path = "../fuzz/src/kept.rs"]
mod kept;

use std::path::Path;

fn each(names: &[&str], attempt: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    assert!(
        kept::each(&fuzz, names, attempt) > 0,
        "{names:?} hold inputs"
    );
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
