"""Work: which step is open, leases for it, uploads, and the batch of a step."""
