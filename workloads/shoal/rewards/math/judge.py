"""Equality of mathematical answers, decided in bounded time: text and numbers here, all else in worker processes that can be killed.

In: two answers as text, from any thread. Out: a `MathVerdict`, or `Undecided` when sympy took too long, needed too much memory or failed, which is
nobody's zero. One judge a process (`shared_judge`). Called by `environments.math`.
"""

from dataclasses import dataclass

from shoal.rewards.judging import QUESTION_SECONDS, JudgeWorker, NoReply, Took, judges_here
from shoal.rewards.math.compare import Decided, compare
from shoal.rewards.per_process import OnePerProcess

WORKER = JudgeWorker("shoal.rewards.math.worker", "a math worker", "is math-verify installed?")
"""An honest pair takes it 5 to 300 ms."""


@dataclass(frozen=True)
class MathVerdict:
    equal: bool
    detail: str


@dataclass(frozen=True)
class Undecided:
    """Judging failed; `reason` says how."""

    reason: str


class MathJudge:
    """`workers` questions are answered at once (default: a core each, at most 4); in a sandbox the parent answers them."""

    def __init__(self, workers: int | None = None, question_seconds: float = QUESTION_SECONDS) -> None:
        self.question_seconds = question_seconds
        self.judges = judges_here(WORKER, workers, question_seconds)

    def equal(self, gold: str, answer: str, took: Took | None = None) -> MathVerdict | Undecided:
        """Whether `answer` says the same as `gold`. Any strings are allowed; never raises for what they contain. `took` counts sympy's CPU time."""
        found = compare(gold, answer)
        if isinstance(found, Decided):
            return MathVerdict(found.equal, found.detail)
        reply = self.judges.ask(found.pairs, took)
        if isinstance(reply, NoReply):
            return Undecided(reply.reason or f"sympy did not decide within {self.question_seconds:.0f} s of CPU time")
        verdict, detail = map(str, reply)
        # An answer that cannot be read is wrong; a gold answer that cannot be read, or an error, decides nothing.
        if verdict in ("equal", "unequal"):
            return MathVerdict(verdict == "equal", detail)
        return Undecided(detail)

    def close(self) -> None:
        self.judges.close()


_shared = OnePerProcess(MathJudge)


def shared_judge() -> MathJudge:
    """The judge of this process, made at first use."""
    return _shared.get()
