"""The trainer against TRL 1.16.0, with agreement of loss and gradient as the gate: `make bench-trainer` (docs/benchmarks/trainer.md)."""
