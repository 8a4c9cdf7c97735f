//! Sentinel-2 scenes to training batches, and predictions back to scenes
