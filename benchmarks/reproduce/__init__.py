"""The experiments behind the paper's figures, on a model that learns in a minute: `make reproduce` (docs/reproduction.md)."""
