"""Equality of mathematical answers, decided in bounded time: text and numbers here, all else in worker processes that can be killed.

In: two answers as text, from any thread. Out: a `MathVerdict`, or `Undecided` when sympy took too long, needed too much memory or failed, which is
nobody's zero. One judge a process (`shared_judge`). Called by `environments.math`.
"""

import atexit
import os
import threading
from dataclasses import dataclass

from shoal.rewards.judging import QUESTION_SECONDS, Judges, JudgeWorker, NoReply
from shoal.rewards.math.compare import Decided, compare, number
from shoal.rewards.math.normalise import normalise
from shoal.rewards.math.units import split_unit

WORKER = JudgeWorker("shoal.rewards.math.worker", "a math worker", "is math-verify installed?")
"""An honest pair takes it 5 to 300 ms."""
WRONG = "-987654321"
"""No problem's answer."""


@dataclass(frozen=True)
class MathVerdict:
    equal: bool
    detail: str


@dataclass(frozen=True)
class Undecided:
    """Judging failed; `reason` says how."""

    reason: str


class JudgeFailed(RuntimeError):
    """There was no worker to ask, or it ended by itself."""


class MathJudge:
    """`workers` questions are answered at once (default: a core each, at most 4)."""

    def __init__(self, workers: int | None = None, question_seconds: float = QUESTION_SECONDS) -> None:
        self._seconds = question_seconds
        self._judges = Judges(WORKER, workers, question_seconds)

    def equal(self, gold: str, answer: str) -> MathVerdict | Undecided:
        """Whether `answer` says the same as `gold`. Any strings are allowed; never raises for what they contain."""
        found = compare(gold, answer)
        if isinstance(found, Decided):
            return MathVerdict(found.equal, found.detail)
        reply = self._judges.ask(found.pairs)
        if isinstance(reply, NoReply):
            return Undecided(reply.reason or f"sympy did not decide within {self._seconds:.0f} s of CPU time")
        verdict, detail = map(str, reply)
        # An answer that cannot be read is wrong; a gold answer that cannot be read, or an error, decides nothing.
        if verdict in ("equal", "unequal"):
            return MathVerdict(verdict == "equal", detail)
        return Undecided(detail)

    def flaw(self, gold: str) -> str | None:
        """Why a right answer might not be judged against `gold`, None when it can: an equivalent answer, by value, is equal and a wrong one is not.

        Raises JudgeFailed where no worker was available, which says nothing about the answer.
        A number takes a few microseconds, another expression one question to a worker, of 5 to 300 ms.
        """
        value = number(split_unit(normalise(gold))[0])
        if value is not None:
            found = compare(gold, rf"\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}")
            if isinstance(found, Decided) and found.equal:
                return None
        found = compare(gold, WRONG)
        if isinstance(found, Decided):
            return "a wrong answer equals the gold answer" if found.equal else None
        reply = self._judges.ask({"prove": found.pairs})
        if isinstance(reply, NoReply):
            if reply.reason:
                raise JudgeFailed(reply.reason)
            return f"sympy does not decide it within {self._seconds:.0f} s of CPU time"
        verdict, detail = map(str, reply)
        return None if verdict == "equal" else detail

    def close(self) -> None:
        self._judges.close()


_shared: tuple[int, MathJudge] | None = None
_shared_lock = threading.Lock()


def shared_judge() -> MathJudge:
    """The judge of this process, made at first use."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared[0] != os.getpid():  # after a fork the parent's workers are the parent's
            judge = MathJudge()
            atexit.register(judge.close)
            _shared = (os.getpid(), judge)
        return _shared[1]
