"""The open pool under load: heartbeats of ten thousand nodes, and a thousand that come, work and go."""
