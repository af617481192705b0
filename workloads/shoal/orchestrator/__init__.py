"""The orchestrator: which nodes take part, which work each gets, and what is recorded about it."""
