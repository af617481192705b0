"""Whether a lease that is being generated is still worth its tokens: its step may be sealed, its time over, or the process about to end. Pure.

In: the lease's work, what the orchestrator shows now, what its rows may still need. A lease whose step still takes files is finished with the version
that it began with, however new the weights that have come meanwhile; unless rows may be of several versions (`generation`). Called by `batch` and
`generation`.
"""

import math
from collections.abc import Sequence

from shoal.contracts.protocol import LEAVE_SECONDS, StepInfo
from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work
from shoal.inference.lengths import KnownLengths, RowKind

HAND_IN_SECONDS = 6.0
"""Of the time to leave, kept for scoring, writing and uploading files."""
GENERATE_SECONDS = LEAVE_SECONDS - HAND_IN_SECONDS
"""Of the time to leave, in which tokens may still come."""


def is_sealed(work: Work, info: StepInfo | None) -> bool:
    """Whether files of this work expire by what the orchestrator says now; while it says nothing they do not."""
    if info is None:
        return False
    match work:
        case EvaluationSlice():  # no batch seals it; a file that comes too late expires when it is handed in
            return False
        case TrainingStep(number=step) | TableSlice(number=step):
            first = info.first_unsealed_step if info.first_unsealed_step is not None else info.latest_version
            return step < first


def longest_left(limits: Sequence[int], together: int) -> int:
    """Most decoding steps that rows can still take which may have this many tokens more, `together` of them at a time."""
    return math.ceil(len(limits) / together) * max(limits, default=0)


def comes_too_late(kinds: Sequence[RowKind], lengths: KnownLengths, pace: float, left: float, whole: float) -> bool:
    """Whether a lease that has `left` seconds of its `whole` life, and rows of these kinds to start yet, will more probably than not expire.

    Where not even a fresh lease would have better prospects it is tried all the same. `pace`: seconds of a decoding step.
    """
    if pace <= 0:
        return False
    now, fresh = ((seconds - HAND_IN_SECONDS) / pace for seconds in (left, whole))
    return lengths.chance(kinds, now) < 0.5 <= lengths.chance(kinds, fresh)
