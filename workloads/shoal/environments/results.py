"""What comes of an environment: a score, none, answers to calls, or the news that it cannot be used. Pure values, which `base` hands on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.contracts.tasks import Task


TURNS_ROUNDING = 1e-6
"""Between an episode's reward and the sum of its turns' rewards: float64 of a few hundred turns rounds by far less."""


class BadEnvironment(ValueError):
    """The environment that a run names cannot be used; the message says what is installed."""


@dataclass(frozen=True)
class Score:
    """The task reward of one completion: 0.0 (wrong) to 1.0 (right), and in a few words why."""

    task_reward: float
    detail: str = ""
    program_seconds: float = field(default=0.0, compare=False)
    """CPU seconds of the programs that were run for it."""
    turn_rewards: tuple[float, ...] = ()
    """What each turn of the model earned, from -1 to 1; together they are the task reward. Of environments with `rewards_turns`, else empty."""

    def turn_fault(self, turns: int) -> str | None:
        """Why the rewards of turns are not those of an episode of this many turns; None where they are."""
        if len(self.turn_rewards) != turns:
            return f"{len(self.turn_rewards)} turns have a reward, and the episode has {turns}"
        if wrong := [each for each in self.turn_rewards if not -1.0 <= each <= 1.0]:
            return f"a turn's reward is {wrong[0]}; allowed: -1 to 1"
        if abs((total := math.fsum(self.turn_rewards)) - self.task_reward) > TURNS_ROUNDING:
            return f"the rewards of its turns are {total:g} together, and the task reward is {self.task_reward:g}"
        return None


@dataclass(frozen=True)
class Unscorable:
    """Scoring itself failed (never: the answer was wrong). The row is left out of its group, and is not a zero."""

    reason: str
    program_seconds: float = field(default=0.0, compare=False)
    passing: bool = field(default=False, compare=False)
    """The machine is at fault and not the task: another try may succeed."""


@dataclass(frozen=True)
class EnvironmentBroke(Unscorable):
    """The environment's own code raised, ended, took too long or gave no score."""


@dataclass(frozen=True)
class FunctionCall:
    """One call of the model. `problem`: why it is none of a function; the model is told."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class ToolAnswer:
    """What a function answers. `sure`: every machine gets exactly this for these calls, whatever its processor, load and version of Python."""

    text: str
    sure: bool = False


@dataclass(frozen=True)
class Answers:
    """For each turn one answer a call, in order; and CPU seconds of programs that ran for them."""

    turns: Sequence[Sequence[ToolAnswer]]
    program_seconds: float = 0.0


def runs_programs(environment: object, task: Task | None = None) -> bool:
    """Whether scores come from programs that the model wrote: of this task, or of any."""
    return bool(getattr(judge_of(environment, task), "runs_programs", False))


def is_repeatable(environment: object, task: Task | None = None) -> bool:
    """Whether another machine gives the same score on another day: of this task, or of all."""
    return bool(getattr(judge_of(environment, task), "repeatable", True))


def judge_of(environment: object, task: Task | None) -> object:
    """What judges a task: a part may have parts itself, as a source of a mixture has."""
    part_of = getattr(environment, "part_of", None)
    if task is None or part_of is None:
        return environment
    part = part_of(task)
    return part if part is environment else judge_of(part, task)
