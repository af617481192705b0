"""Islands: several trainers that exchange weights between updates (docs/diloco.md)."""
