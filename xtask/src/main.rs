//! Build, check, test, bench, compare and demo: what CI runs.
fn main() {}
