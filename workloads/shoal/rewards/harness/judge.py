"""What lm-evaluation-harness makes of a completion, decided in bounded time: its filters and metrics run in processes that can be killed.

In: the terms of a task as `environments.harness_import` wrote them, and a completion, from any thread. Out: the metric's value, or `NoValue` when
there is none: a pattern that does not end, a function that raised. One judge a process (`shared_harness_judge`). Called by `environments.harness`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.rewards.harness.scoring import FUNCTION, fault
from shoal.rewards.judging import QUESTION_SECONDS, Judges, JudgeWorker, NoReply, Took
from shoal.rewards.per_process import OnePerProcess

WORKER = JudgeWorker("shoal.rewards.harness.worker", "a harness worker", "is lm_eval installed?")


@dataclass(frozen=True)
class NoValue:
    """Scoring failed; `reason` says how."""

    reason: str


class HarnessJudge:
    """`workers` questions are answered at once (default: a core each, at most 4)."""

    def __init__(self, workers: int | None = None, question_seconds: float = QUESTION_SECONDS) -> None:
        self._seconds = question_seconds
        self._judges = Judges(WORKER, workers, question_seconds)

    def value(self, terms: Mapping[str, Any], completion: str, took: Took | None = None) -> float | NoValue:
        """The metric of `terms` for a completion, 0 to 1. Any string is allowed; never raises for what it or the terms contain.

        `took` counts the CPU time.
        """
        if (wrong := fault(terms)) is not None:
            return NoValue(wrong)
        reply = self._judges.ask([dict(terms), completion], took, _function_in(terms))
        if isinstance(reply, NoReply):
            return NoValue(reply.reason or f"scoring did not end within {self._seconds:.0f} s of CPU time")
        kind, found = reply
        return float(found) if kind == "value" else NoValue(str(found))

    def close(self) -> None:
        self._judges.close()


def _function_in(terms: Mapping[str, Any]) -> str | None:
    """A function that takes its time to load, so that no answer pays for it."""
    arguments = [given for step in terms["filters"] for given in step.values()]
    functions = [
        given.removeprefix(FUNCTION) for given in arguments if isinstance(given, str) and given.startswith(FUNCTION)
    ]
    return next(iter([*filter(None, map(terms.get, ("process_results", "metric_function"))), *functions]), None)


_shared = OnePerProcess(HarnessJudge)


def shared_harness_judge() -> HarnessJudge:
    """The judge of this process, made at first use."""
    return _shared.get()
