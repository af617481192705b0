"""VinePPO: advantages from Monte-Carlo values of continuations (docs/vineppo.md)."""
