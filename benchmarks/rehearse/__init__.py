"""A run of the paper's size without GPUs: real services and full counts of objects, bytes at a scale, and clocks in the place of GPUs and lines."""
