"""Objectives: their distance from the formulas in float64, and what GSPO costs. Called as `python -m benchmarks.objectives`."""
