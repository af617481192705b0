"""The operator under load, on a real API server: `make bench-operator`."""
