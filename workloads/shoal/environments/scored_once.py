"""Scores of one file's answers: equal answers to a task are scored once.

In: an environment, then tasks and texts one after the other. Out: task rewards. Called by workers (`inference.worker`) and validators
(`validation.checks.reward`), so that both do the same. Of a text only its digest is kept: a file's texts can be hundreds of times its tokens.
"""

import hashlib
import time

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score

SECOND_TRIES = 16
"""In a file, of answers that could not be scored: the machine may have been short of memory or processes for a moment. A file whose texts are to
blame gets no more time than that."""
PAUSE_SECONDS = 1.0
SLOW_SECONDS = 4.0
"""A scoring that failed after so long ran into its limit of time, which is the text's doing: another try would cost as much again."""


class ScoredOnce:
    """Task rewards of a file's answers, by task and text."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._known: dict[tuple[str, bytes], float | None] = {}
        self._second_tries = SECOND_TRIES

    def reward(self, task: Task, text: str) -> float | None:
        """The task reward of an answer; None where scoring failed twice, or once for long. What failed is not tried again for equal answers."""
        key = (task.problem_id, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        if key not in self._known:
            self._known[key] = self._scored(task, text)
        return self._known[key]

    def _scored(self, task: Task, text: str) -> float | None:
        again = False
        while True:
            began = time.monotonic()
            found = self._environment.score(task, text)
            if isinstance(found, Score):
                return found.task_reward
            if again or self._second_tries == 0 or time.monotonic() - began >= SLOW_SECONDS:
                return None
            again = True
            self._second_tries -= 1
            time.sleep(PAUSE_SECONDS)
