//! What the targets try, as functions that a normal test runs over the kept inputs too.

pub mod checkpoints;
