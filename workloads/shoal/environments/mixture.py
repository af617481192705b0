"""The environment of a run on a mixture: each task goes to the environment of its source, which its `task_type` names.

Made from the sources that a manifest or `prepared.json` lists. Workers, validators and prepare see one environment, whose digest covers its parts.
Tools are not offered: an episode's rules are those of a whole file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.contracts.mixture import MIXTURE
from shoal.environments.base import (
    BadEnvironment,
    Environment,
    Score,
    Unscorable,
    is_repeatable,
    load,
    modules_of,
    packages_of,
    runs_programs,
    sources_of,
)
from shoal.environments.episodes import has_tools

if TYPE_CHECKING:
    from shoal.contracts.mixture import SourceTerms
    from shoal.contracts.tasks import Task

LONGEST_PROBLEM_ID = 253


class Mixture:
    """See the module's page. `parts`: environments by the names of sources. BadEnvironment for one with tools."""

    name = MIXTURE

    def __init__(self, parts: Mapping[str, Environment]) -> None:
        self._parts = dict(parts)
        for name, part in self._parts.items():
            if has_tools(part):
                raise BadEnvironment(
                    f"source {name!r}: environment {part.name!r} has tools, which a mixture cannot offer to some tasks; allowed: environments"
                    " without tools"
                )
        own = self._parts.values()
        self.version = "1 " + " ".join(f"{name}={part.name}={part.version}" for name, part in self._parts.items())
        modules = {module for part in own for module in modules_of(part)}
        self.sources = (*sorted(modules), *(name for part in own for name in sources_of(part)))
        self.whole_packages = tuple(name for part in own for name in packages_of(part))
        self.requires = tuple({name: None for part in own for name in getattr(part, "requires", ())})
        self.runs_programs = any(map(runs_programs, own))
        self.repeatable = all(map(is_repeatable, own))
        self.extra = next(filter(None, (getattr(part, "extra", None) for part in own)), None)

    def tasks(self, count: int, seed: int) -> list[Task]:
        """ValueError: the sources have tasks, and weights say how many of each."""
        raise ValueError("a mixture makes no tasks of its own; its sources do")

    def prompt(self, task: Task, target_length: int | None) -> str:
        """That of the task's environment. ValueError for a task of no source."""
        return self.part_of(task).prompt(task, target_length)

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """That of the task's environment."""
        try:
            part = self.part_of(task)
        except ValueError as error:
            return Unscorable(str(error))
        return part.score(task, completion)

    def gold(self, task: Task) -> str:
        """That of the task's environment. ValueError where there is none."""
        return self.part_of(task).gold(task)

    def has_answer(self, task: Task, completion: str) -> bool:
        """That of the task's environment; true where it cannot tell."""
        tell = getattr(self.part_of(task), "has_answer", None)
        return True if tell is None else bool(tell(task, completion))

    def part_of(self, task: Task) -> Environment:
        """The environment that judges a task. ValueError for a task of no source."""
        try:
            return self._parts[task.task_type]
        except KeyError:
            raise ValueError(
                f"task {task.problem_id} has task_type {task.task_type!r}, which names no source of the mixture; allowed: {', '.join(self._parts)}"
            ) from None


def environment_of(name: str, sources: Sequence[SourceTerms]) -> Environment:
    """The environment that a run pins: the installed one called `name`, or the mixture of these sources. BadEnvironment as of `load`."""
    return load(name) if not sources else Mixture({each.name: load(each.environment) for each in sources})


def of_source(task: Task, source: str) -> Task:
    """A task as the mixture's table has it: its source is its task type, and begins its id, so that two sources may have the same problem."""
    problem = f"{source}-{task.problem_id}"
    if len(problem) > LONGEST_PROBLEM_ID:
        problem = f"{source}-{hashlib.sha256(task.problem_id.encode()).hexdigest()}"
    return task.model_copy(update={"problem_id": problem, "task_type": source})
