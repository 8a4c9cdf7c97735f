//! Collective operations over flat tensors between ranks that are threads, processes or GPUs
