"""States that both sides of the speed comparison are given: bfloat16, wide and narrow, the same on both.

Called by `__main__` and, in the peer's environment, by `peer`, which has torch and numpy and nothing of ours installed.
"""

import time
from collections.abc import Callable

import torch

WIDTHS = (128, 1024, 5120)
"""Hidden sizes: the demo's model, a small one, and that of the paper's 32-billion model."""
BATCHES = (1, 16, 64)
"""Chunks a call. A row of 2,000 tokens is 63 chunks, a short one few; the engine interpolates what several sequences have ready."""
CHUNK_TOKENS, TOP_K = 32, 128
MOST_VALUES = 1 << 23
"""Values a call at most: more, and memory rather than proofs is measured."""


def cases() -> list[tuple[int, int]]:
    """Pairs of hidden size and chunks a call."""
    return [(width, chunks) for width in WIDTHS for chunks in BATCHES if width * chunks * CHUNK_TOKENS <= MOST_VALUES]


def states(width: int, chunks: int) -> torch.Tensor:
    """bfloat16 [tokens, width], normal with a few larger dimensions."""
    source = torch.Generator().manual_seed(width * 1000 + chunks)
    rows = torch.randn(chunks * CHUNK_TOKENS, width, generator=source)
    rows[:, ::61] *= 3.0
    return rows.bfloat16()


def microseconds(work: Callable[[], object], chunks: int, seconds: float) -> float:
    """Least processor time of a call, for one chunk, in about so many seconds: whatever else the machine does only adds to it."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return 1e6 * best / chunks
