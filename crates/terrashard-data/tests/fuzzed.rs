//! Texts that fuzzing has kept: each reads or is refused in one line, what is read writes itself as it reads, and none panics.

// Public for the targets, which are another crate.
#[allow(unreachable_pub)]
#[path = "../../terrashard-raster/fuzz/src/texts.rs"]
mod texts;

#[allow(unreachable_pub)]
#[path = "../../terrashard-raster/fuzz/src/kept.rs"]
mod kept;

use std::path::Path;

fn each(name: &str, attempt: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../terrashard-raster/fuzz");
    assert!(
        kept::each(&fuzz, &[name], attempt) > 100,
        "{name} holds inputs"
    );
}

#[test]
fn indices_of_chips_read_or_are_refused() {
    each("index", texts::index);
}

#[test]
fn settings_read_or_are_refused() {
    each("settings", texts::settings);
}
