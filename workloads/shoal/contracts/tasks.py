"""A task (a problem to solve), and what became of the rows that tasks were made of. `task_table` has the file of all tasks of a run.

The digest of a run's tasks is over their canonical JSON, not over a file's bytes, which change between Parquet writers.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import rfc8785
from pydantic import Field

from shoal.contracts.base import Contract, unset


class ChatMessage(Contract):
    role: str = Field(pattern=r"^(system|user|assistant|tool)$")
    content: str = Field(max_length=1_000_000)


class Task(Contract):
    """One problem: what is asked, and what an environment needs to judge an answer."""

    problem_id: str = Field(min_length=1, max_length=253)
    task_type: str = Field(min_length=1, max_length=63)
    prompt: str | list[ChatMessage]
    verification_info: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class RefusedTasks(Contract):
    """Tasks of a data set that cannot be used, for one reason."""

    reason: str
    count: int = Field(ge=1)
    first: list[str] = Field(
        default_factory=list, max_length=16, description="the first of them: problem ids, or file and row"
    )


class TaskReport(Contract):
    """`tasks.json` of a run whose tasks come from a data set: what became of its rows."""

    rows: int = Field(ge=0, description="rows read")
    tasks: int = Field(ge=0, description="tasks kept, before the offline filter")
    skipped: dict[str, int] = Field(default_factory=dict, description="rows that are no tasks, by reason")
    refused: list[RefusedTasks] = Field(
        default_factory=list, description="rows and tasks at fault, the most frequent reason first"
    )
    proven: int = Field(ge=0, description="tasks whose gold answer was judged against an equivalent one")
    by_source: dict[str, "TaskReport"] = Field(
        default_factory=dict, exclude_if=unset, max_length=16, description="of a mixture: each source with a data set"
    )


class JudgedTasks(Contract):
    """What was found out about some tasks, kept by their digest: why the gold answer of a problem cannot be judged, and how many can."""

    flaws: dict[str, str] = Field(default_factory=dict)
    proven: int = Field(ge=0)


def tasks_digest(tasks: Iterable[Task]) -> str:
    """SHA-256 over the canonical JSON (RFC 8785) of every task in order, each followed by a newline."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(rfc8785.dumps(task.model_dump(mode="json")) + b"\n")
    return digest.hexdigest()
