"""Whether a lease that is being generated is still worth its tokens: its step may be sealed, or the process asked to end.

In: the lease and its work, `GET /v1/step` asked again and again on a thread of its own while tokens come, the process's stop signal.
Out: `over`, asked before each decoding step: why to abort, or None. A lease whose step still takes files is finished
with the version that it began with, however new the weights that have come meanwhile: one row, one version. Called by
`worker`.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from shoal.contracts.protocol import LEAVE_SECONDS, Lease, StepInfo
from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work
from shoal.inference.completions import Request
from shoal.telemetry import STOP, get_logger

POLL_SECONDS = 1.0
"""Between questions while tokens are generated: a lease that is lost costs a second of tokens more, and the orchestrator one request a node."""
HAND_IN_SECONDS = 6.0
"""Of the time to leave, kept for scoring, writing and uploading a file."""


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


def longest_left(requests: Sequence[Request], together: int, steps_done: int) -> int:
    """Most decoding steps that these requests can still take, `together` of them at a time, after `steps_done`."""
    waves = math.ceil(len(requests) / together)
    return max(0, waves * max(request.max_tokens for request in requests) - steps_done)


class Commitment:
    """One lease under generation; a context, within which the step counter is asked."""

    def __init__(
        self,
        work: Work,
        lease: Lease,
        rounds: Sequence[Sequence[Request]],
        together: int,
        ask: Callable[[], StepInfo | None],
        stop: threading.Event = STOP,
    ) -> None:
        """`rounds`: what is decoded, one after the other; none begins before the one before it has ended, whatever the engine has room for. What
        later ones ask for need not be known, only bounds on it. `together`: sequences that the engine decodes at a time. `ask` gives the open
        step, None when there is none or nobody answers.
        """
        self._work = work
        self._lease = lease
        self._rounds = list(rounds)
        self._steps_before = 0  # the round that is being decoded
        self._together = together
        self._ask = ask
        self._stop = stop
        self._sealed = threading.Event()
        self._ended = threading.Event()
        self.steps = 0  # asked for so far
        self._started = time.monotonic()
        self._leaving_since: float | None = None
        self._thread = threading.Thread(target=self._watch, name="step-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()  # a question under way ends by itself

    def over(self) -> str | None:
        """Why this lease is to be handed back, or None. Called before each decoding step, which it counts."""
        now = time.monotonic()
        if self._sealed.is_set():
            return "sealed"
        if self._stop.is_set():
            if self._leaving_since is None:
                self._leaving_since = now
            left = self._leaving_since + LEAVE_SECONDS - HAND_IN_SECONDS - now
            pace = (now - self._started) / max(1, self.steps)
            if self._longest_left() * pace > left:
                return "leaving"
        self.steps += 1
        return None

    def begin_next_round(self, requests: Sequence[Request]) -> None:
        """The round under way has ended, however early; the next one is known now."""
        self._rounds[:2] = [requests]
        self._steps_before = self.steps

    def _longest_left(self) -> int:
        now, *later = self._rounds
        left = longest_left(now, self._together, self.steps - self._steps_before)
        return left + sum(longest_left(each, self._together, 0) for each in later)

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            if is_sealed(self._work, self._ask()):
                get_logger().info("step was sealed", step=self._lease.step, submission=self._lease.submission)
                self._sealed.set()
                return
