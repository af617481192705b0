"""What comes of an environment: a score, none, answers to calls, or the news that it cannot be used. Pure values, which `base` hands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.contracts.tasks import Task


class BadEnvironment(ValueError):
    """The environment that a run names cannot be used; the message says what is installed."""


@dataclass(frozen=True)
class Score:
    """The task reward of one completion: 0.0 (wrong) to 1.0 (right), and in a few words why."""

    task_reward: float
    detail: str = ""
    program_seconds: float = field(default=0.0, compare=False)
    """CPU seconds of the programs that were run for it."""


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
    part_of = getattr(environment, "part_of", None)
    judge = environment if task is None or part_of is None else part_of(task)
    return bool(getattr(judge, "runs_programs", False))
