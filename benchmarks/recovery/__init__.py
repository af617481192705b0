"""What recovery reads of the store after a million files."""
