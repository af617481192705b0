"""The arithmetic of TOPLOC proofs: a field, its polynomials, the points of a chunk, the proof. Pure."""
