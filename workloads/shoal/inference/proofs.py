"""Collects last hidden states while sequences are decoded and turns them into TOPLOC proofs.

In: after each decoding step one row of states for each sampled token (`add`, called by `vllm_hooks`). Out: proof
bytes by request (`take`, called through it once sequences have finished). A full chunk of 32 rows is reduced to its
128 points on a thread of its own, so that decoding does not wait and a long sequence keeps 768 bytes a chunk instead
of all its states; the polynomials are interpolated together at the end, where many cost hardly more than one.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from shoal.contracts import toploc
from shoal.contracts.toploc import Float32, Int64, UInt16

Points = tuple[Int64, UInt16]


@dataclass
class _Sequence:
    """One sequence that is being decoded: the chunks already reduced, and the rows of the open chunk."""

    reduced: list[Future[Points]] = field(default_factory=list)
    rows: list[Float32] = field(default_factory=list)


class ProofRecorder:
    """States of running sequences by request id. Used by one decoding thread; the reducing thread is internal."""

    def __init__(self) -> None:
        self._sequences: dict[str, _Sequence] = {}
        # One thread: the reduction is numpy on a few kilobytes, and decoding wants the other cores.
        self._reducer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="toploc")

    def add(self, requests: Sequence[str], states: Float32) -> None:
        """Append row i of `states`, float32 [requests, hidden size], to request i. The rows are kept, not copied."""
        if len(requests) != len(states):
            raise ValueError(f"{len(states)} rows of hidden states for {len(requests)} sampled tokens")
        for request, row in zip(requests, states, strict=True):
            sequence = self._sequences.setdefault(request, _Sequence())
            sequence.rows.append(row)
            if len(sequence.rows) == toploc.CHUNK_TOKENS:
                sequence.reduced.append(self._reducer.submit(_reduce, sequence.rows))
                sequence.rows = []

    def take(self, requests: Iterable[str]) -> dict[str, bytes]:
        """Proofs of these finished requests, which are then forgotten; KeyError for one that has no states."""
        chunks: dict[str, list[Points]] = {}
        for request in requests:
            sequence = self._sequences.pop(request)
            chunks[request] = [future.result() for future in sequence.reduced]
            if sequence.rows:
                chunks[request].append(_reduce(sequence.rows))
        joined = toploc.prove([points for parts in chunks.values() for points in parts])
        proofs, start = {}, 0
        for request, parts in chunks.items():
            end = start + len(parts) * toploc.PROOF_BYTES
            proofs[request], start = joined[start:end], end
        return proofs

    def forget(self) -> None:
        """Drop everything: the sequences were aborted."""
        self._sequences.clear()


def _reduce(rows: Sequence[Float32]) -> Points:
    return toploc.top_points(np.concatenate(rows))
