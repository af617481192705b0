"""Evaluation of versions by the run's own workers: what is due, what it costs, and what is written when it ends."""
