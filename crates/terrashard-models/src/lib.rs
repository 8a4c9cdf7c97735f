//! SegFormer-like segmentation and super-resolution models for Sentinel-2, single-device
