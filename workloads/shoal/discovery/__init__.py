"""Discovery: where a node says that it exists, and waits for an invite."""
