"""A GPU's first ten minutes: `python -m benchmarks.gpu`."""
