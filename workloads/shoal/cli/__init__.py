"""The `shoal` program (DESIGN section 8): a thin edge over the operator's local cluster, the object store and the report."""
