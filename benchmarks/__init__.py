"""Programs that measure Shoal. Each writes one JSON under `benchmarks/results/` and prints one table."""
