//! Behaviour across crates: parity with reference values, equality of the stages, end-to-end runs.
