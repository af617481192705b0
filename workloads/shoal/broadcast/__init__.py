"""Broadcast of weights: the origin's publisher, the relays, and the client in a pool pod (paper section 2.2, "SHARDCAST").

One way only: trainer's `outbox/` -> publisher -> origin nginx -> relays -> clients. Nothing here trusts where bytes came from: every piece is
signed by the trainer's key, or has its SHA-256 in a piece that is.
"""
