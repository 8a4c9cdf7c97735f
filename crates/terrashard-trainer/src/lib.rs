//! Trains, tests and runs Sentinel-2 super-resolution segmentation models on sharded model states
