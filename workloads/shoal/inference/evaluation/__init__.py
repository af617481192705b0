"""A model scored once on environments, with the workers' own engine: `shoal eval`."""
