"""A run recomputed by a stranger: from its ledger and its store alone, with the code that orchestrator, validators and trainer run themselves."""
