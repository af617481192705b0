"""What proofs cost an engine, how long a swap of weights takes, and how soon a new version is worked with."""
