"""Several environments as one: `mixed:math+code`. Each task goes to the environment that its `task_type` names.

So one run trains on the mathematics and the code of a data set, as INTELLECT-2 did (section 3.1.1); shares are those of its rows. `mixed` alone is
mathematics and code. Nothing else of the product knows of it: workers, validators and prepare see one environment, whose digest covers its parts.
"""

from __future__ import annotations

from itertools import zip_longest

from shoal.contracts.tasks import Task
from shoal.environments.base import Environment, Score, Unscorable, load, runs_programs
from shoal.environments.episodes import WithTools

USUAL = "math+code"
MOST_PARTS = 8


class Mixed:
    """See the module's page."""

    parameter = "ENVIRONMENT+ENVIRONMENT"

    def __init__(self, wanted: str | None = None) -> None:
        names = (wanted or USUAL).split("+")
        self.name = "mixed" if wanted is None else f"mixed:{wanted}"
        if not 2 <= len(set(names)) == len(names) <= MOST_PARTS or "mixed" in names:
            raise ValueError(
                f"environment {self.name!r}: name 2 to {MOST_PARTS} different environments with + between them, as in mixed:{USUAL}"
            )
        self._parts: dict[str, Environment] = {name: load(name) for name in names}
        for name, part in self._parts.items():
            if isinstance(part, WithTools):
                raise ValueError(
                    f"environment {self.name!r}: {name} has tools, which a mixture cannot offer to some tasks"
                )
        parts = self._parts.values()
        self.version = "1 " + " ".join(f"{part.name}={part.version}" for part in parts)
        modules = {cls.__module__ for part in parts for cls in type(part).__mro__} - {"builtins", "typing"}
        self.sources = (*sorted(modules), *(name for part in parts for name in getattr(part, "sources", ())))
        self.requires = tuple({name: None for part in parts for name in getattr(part, "requires", ())})
        self.runs_programs = any(map(runs_programs, parts))
        self.extra = next(filter(None, (getattr(part, "extra", None) for part in parts)), None)

    def tasks(self, count: int, seed: int) -> list[Task]:
        """As many of each part, in turn; ids begin with the part's name. ValueError where a part has not that many."""
        if count < len(self._parts):
            raise ValueError(
                f"{self.name}: {count} tasks asked for; allowed: at least one of each of {len(self._parts)} parts"
            )
        made = []
        for number, (name, part) in enumerate(self._parts.items()):
            share = count // len(self._parts) + (number < count % len(self._parts))
            made.append(
                [
                    task.model_copy(update={"problem_id": f"{name}-{task.problem_id}", "task_type": name})
                    for task in part.tasks(share, seed)
                ]
            )
        return [task for turn in zip_longest(*made) for task in turn if task is not None]

    def prompt(self, task: Task, target_length: int | None) -> str:
        """That of the task's environment. ValueError for a task of none."""
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

    def broken(self, task: Task) -> str:
        """That of the task's environment, or no answer at all."""
        make = getattr(self.part_of(task), "broken", None)
        return "" if make is None else str(make(task))

    def flaw(self, task: Task) -> str | None:
        """That of the task's environment. ValueError where it proves none."""
        prove = getattr(self.part_of(task), "flaw", None)
        if prove is None:
            raise ValueError(f"task {task.problem_id}: environment {task.task_type} proves no gold answers")
        found: str | None = prove(task)
        return found

    def problems(self) -> list[str]:
        """What this machine lacks for one of the parts."""
        return [line for part in self._parts.values() for line in getattr(part, "problems", list)()]

    def has_answer(self, task: Task, completion: str) -> bool:
        """That of the task's environment; true where it cannot tell."""
        tell = getattr(self.part_of(task), "has_answer", None)
        return True if tell is None else bool(tell(task, completion))

    def part_of(self, task: Task) -> Environment:
        """The environment that judges a task. ValueError for a task of none."""
        try:
            return self._parts[task.task_type]
        except KeyError:
            raise ValueError(
                f"task {task.problem_id} has task_type {task.task_type!r}, which names none of {', '.join(self._parts)}"
            ) from None
