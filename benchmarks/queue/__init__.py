"""Twenty runs in one Kueue queue over a hundred fake GPU nodes; Kueue is the tests' stand-in."""
