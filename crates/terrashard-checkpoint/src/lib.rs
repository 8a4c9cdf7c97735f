//! Sharded safetensors checkpoints that load at any rank count and stage
