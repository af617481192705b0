"""What a run may add to training: one package each. `base` is the seam, `enabled` chooses by the run's settings."""
