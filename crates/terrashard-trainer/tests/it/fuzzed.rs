//! Configurations that fuzzing has kept: each reads or is refused in one line, what is read is written as it reads, and none panics.

use std::path::Path;

use crate::{configurations, kept};

#[test]
fn configurations_read_or_are_refused() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    assert!(kept::each(&fuzz, &["config"], configurations::config) > 0);
}
