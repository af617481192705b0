"""The published `toploc` 0.1.6, timed in an environment of its own: `python peer.py SECONDS`, all cases in one process.

Run by `__main__` with the Python that `tools/toploc_peer.sh` prints. Prints a JSON list of microseconds for one chunk, [build, verify] a case.
"""

import json
import sys
from pathlib import Path

import toploc
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.toploc.inputs import CHUNK_TOKENS, TOP_K, cases, microseconds, states


def measured(width: int, chunks: int, seconds: float) -> tuple[float, float]:
    """Microseconds to build and to verify one chunk."""
    rows = states(width, chunks)
    one_by_one = list(rows)  # as an engine gives them: a tensor for each decoded token
    proofs = toploc.build_proofs_bytes(one_by_one, CHUNK_TOKENS, TOP_K, skip_prefill=True)
    return (
        microseconds(
            lambda: toploc.build_proofs_bytes(one_by_one, CHUNK_TOKENS, TOP_K, skip_prefill=True), chunks, seconds
        ),
        microseconds(  # one tensor: the library then does all of it in C++
            lambda: toploc.verify_proofs_bytes(rows, proofs, CHUNK_TOKENS, TOP_K, skip_prefill=True), chunks, seconds
        ),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([measured(width, chunks, float(sys.argv[1])) for width, chunks in cases()]))
