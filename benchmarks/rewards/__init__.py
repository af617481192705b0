"""How fast answers and programs are judged, against calling math-verify and Python directly: `python -m benchmarks.rewards`."""
