"""What environments of others cost and whether both sides judge alike: `benchmarks/results/agents.json`."""
