"""TOPLOC proofs: how fast they are made and checked, and how far honest ones of a real engine are from a validator's states."""
