"""Sends a run's metrics to Weights & Biases, trackio or TensorBoard: a process that follows what the trainer writes into the store."""
