//! Benchmarks: models, stages and peers.
