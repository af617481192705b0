"""Many sequences' chunks at once: their points, and how far proofs of one set of states are from another.

In: last hidden states of sequences. Out: columns over all chunks, in order. Called by `masking`, `forgeries` and `calibration`, which look at
thousands of chunks where a worker or validator looks at one file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.toploc import codec
from shoal.toploc.top_points import TOP_K, Bool, Float32, Int64, UInt16, top_points

Points = tuple[Int64, UInt16]
"""Indices int64 [chunks, 128] and bfloat16 bits uint16 [chunks, 128], as `top_points` gives them."""


@dataclass(frozen=True)
class Chunks:
    """Where chunks are from: `sequence` int64 [chunks], and how long they are, `tokens` int64 [chunks]."""

    sequence: Int64
    tokens: Int64

    def __len__(self) -> int:
        return len(self.sequence)


def layout(lengths: Sequence[int]) -> Chunks:
    """Chunks of sequences of this many tokens, in order."""
    sequence, tokens = [], []
    for number, length in enumerate(lengths):
        for start in range(0, length, codec.CHUNK_TOKENS):
            sequence.append(number)
            tokens.append(min(codec.CHUNK_TOKENS, length - start))
    return Chunks(np.array(sequence, dtype=np.int64), np.array(tokens, dtype=np.int64))


def points_of(states: Sequence[Float32], masked: Bool | None) -> Points:
    """`top_points` of every chunk of every sequence, float32 [tokens, hidden size] each."""
    chunks = layout([len(each) for each in states])
    parts = [
        each[start : start + codec.CHUNK_TOKENS].reshape(-1)
        for each in states
        for start in range(0, len(each), codec.CHUNK_TOKENS)
    ]
    indices = np.zeros((len(chunks), TOP_K), dtype=np.int64)
    bits = np.zeros((len(chunks), TOP_K), dtype=np.uint16)
    for length in np.unique(chunks.tokens):  # chunks of one length are one array
        same = np.flatnonzero(chunks.tokens == length)
        indices[same], bits[same] = top_points(np.stack([parts[i] for i in same]), masked)
    return indices, bits


def distance(claimed: Points, ours: Points) -> codec.ErrorTable:
    """Errors of proofs through the points `claimed` against our own points."""
    return codec.compare_points(codec.interpolated(*claimed), *ours)


def by_file(events: npt.NDArray[np.bool_], chunks: Chunks, file_sequences: int) -> npt.NDArray[np.bool_]:
    """Whether any chunk of a file has the event, bool [files]; files of `file_sequences` sequences in order, a rest left out unless it is all."""
    files = max(1, (int(chunks.sequence[-1]) + 1) // file_sequences) if len(chunks) else 0
    number = chunks.sequence // file_sequences
    return np.bincount(number[events & (number < files)], minlength=files) > 0
