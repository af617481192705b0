"""What reconcile stands on: the `Cluster` interface, and the pure decisions about applying objects and writing conditions."""
