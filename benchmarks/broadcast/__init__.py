"""Benchmark of the broadcast: ours and its peers over the same shaped links, deltas, and CPU time (`docs/broadcast.md`)."""
