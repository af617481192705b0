"""How many bytes a rollout file can have: what the orchestrator lets be uploaded, and what a run's manifest may ask for.

In: a file's rows and the run's limits on their tokens. Out: bytes. Pure, and without the libraries that read files: the rules of the CRDs are made
of the same numbers, so that a run whose honest files would be refused is refused itself.
"""

MAX_FILE_BYTES = 1 << 30
"""A file above this is refused unread; at the paper's size (16 x 10k tokens a group) a submission is some tens of megabytes."""
FILE_BYTES = 1 << 20
"""Parquet's own structures and the file's metadata."""
ROW_BYTES = 4096
"""Everything in a row that does not grow with its tokens, with room to spare."""
BYTES_A_TOKEN = 4 + 4 + 1
"""Token id, log-prob and mask in the rollout schema, uncompressed."""
PROOF_BYTES, PROOF_TOKENS = 258, 32
"""A TOPLOC proof, and the tokens that it is for."""


def largest_bytes(rows: int, sequence_tokens: int, completion_tokens: int, route_bytes: int = 0) -> int:
    """Bytes that an honest file of `rows` rows cannot exceed, of sequences and completions of at most this many tokens.

    `route_bytes`: of the routes of a sampled token, where the run records them.
    """
    proofs = -(-completion_tokens // PROOF_TOKENS) * PROOF_BYTES
    return FILE_BYTES + rows * (sequence_tokens * BYTES_A_TOKEN + proofs + completion_tokens * route_bytes + ROW_BYTES)
