"""How good a model is on an environment's tasks: sampling with a serving engine, and what the answers say. Used by `shoal eval`."""
