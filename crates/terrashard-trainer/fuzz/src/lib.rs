//! What the target tries, as a function that a normal test runs over the kept inputs too.

pub mod configurations;
