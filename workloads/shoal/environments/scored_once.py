"""Scores of one file's answers: equal answers to a task are scored once.

In: an environment, then tasks and texts one after the other. Out: task rewards. Called by workers (`inference.worker`) and validators
(`validation.checks.reward`), so that both do the same. Of a text only its digest is kept: a file's texts can be hundreds of times its tokens.
"""

import hashlib
import math
import time

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score, runs_programs
from shoal.environments.results import judge_of

SECOND_TRIES = 16
"""In a file, of answers that could not be scored: the machine may have been short of memory or processes for a moment. A file whose texts are to
blame gets no more time than that."""
AGAIN = 2
"""Further runs of a program whose reward another machine found to be different."""
PAUSE_SECONDS = 1.0
SLOW_SECONDS = 4.0
"""A scoring that failed after this long ran into its limit of time, which is the text's doing: another try would cost as much again."""


class ProgramTime:
    """CPU seconds that the programs and judges of a file may take in all, and have taken. After that none of them is asked."""

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self.spent = 0.0

    @property
    def over(self) -> bool:
        return self.spent >= self._limit


def takes_time(environment: object, task: Task) -> bool:
    """Whether another process scores this task, whose CPU time counts: a program, a judge, or others' code (`judged_apart`)."""
    return runs_programs(environment, task) or bool(getattr(judge_of(environment, task), "judged_apart", False))


class ScoredOnce:
    """Task rewards of a file's answers, by task and text."""

    def __init__(self, environment: Environment, programs: ProgramTime | None = None) -> None:
        self._environment = environment
        self._known: dict[tuple[str, bytes], Score | None] = {}
        self._second_tries = SECOND_TRIES
        self._programs = programs or ProgramTime()

    def reward(self, task: Task, text: str) -> float | None:
        """The task reward of an answer; None where scoring failed twice, or once for long. What failed is not tried again for equal answers."""
        found = self.score(task, text)
        return None if found is None else found.task_reward

    def score(self, task: Task, text: str) -> Score | None:
        """The same, with the rewards of turns."""
        key = _key(task, text)
        if key not in self._known:
            self._known[key] = self._scored(task, text)
        return self._known[key]

    def ahead(self, task: Task, text: str) -> None:
        """Score an answer before its file is whole. What fails is forgotten, and has all of its tries with the file."""
        key = _key(task, text)
        if key not in self._known and (found := self._once(task, text)) is not None:
            self._known[key] = found

    def next_file(self) -> None:
        """What comes now is of another file, which has second tries of its own."""
        self._second_tries = SECOND_TRIES

    def settle(self, task: Task, text: str) -> float | None:
        """The same after further runs, for an answer that another machine scored differently; None where our own runs disagree.

        It counts as a second try. Where a file has had all of them, or all of its CPU time, what was found first stands.
        """
        key = _key(task, text)
        first = self.score(task, text)
        if first is not None and self._second_tries > 0:
            self._second_tries -= 1
            for _ in range(AGAIN):
                if self._spent(task):
                    break
                if _rewards(self._once(task, text)) != _rewards(first):
                    self._known[key] = None
                    break
        return self.reward(task, text)

    def _spent(self, task: Task) -> bool:
        """Whether the file has had its CPU time, and this task would need more of it."""
        return self._programs.over and takes_time(self._environment, task)

    def _once(self, task: Task, text: str) -> Score | None:
        if self._spent(task):
            return None
        found = self._environment.score(task, text)
        self._programs.spent += found.program_seconds
        return found if isinstance(found, Score) else None

    def _scored(self, task: Task, text: str) -> Score | None:
        again = False
        while True:
            began = time.monotonic()
            found = self._once(task, text)
            if found is not None or self._spent(task):
                return found
            if again or self._second_tries == 0 or time.monotonic() - began >= SLOW_SECONDS:
                return None
            again = True
            self._second_tries -= 1
            time.sleep(PAUSE_SECONDS)


def _rewards(found: Score | None) -> tuple[float, ...] | None:
    return None if found is None else (found.task_reward, *found.turn_rewards)


def _key(task: Task, text: str) -> tuple[str, bytes]:
    return task.problem_id, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
