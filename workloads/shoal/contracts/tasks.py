"""A task (a problem to solve) and the run's task table: one Parquet file with a digest, the same for every worker and validator.

The table is made once by prepare from an environment or a dataset; a prompt index in a rollout is a row number of this table. Its digest is over
the rows' canonical JSON, not over the file's bytes, which change between Parquet writers.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import rfc8785
from pydantic import Field

from shoal.contracts.base import Contract, unset

TASKS_SCHEMA_VERSION = "1"

TASKS_SCHEMA = pa.schema(
    [
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("task_type", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),  # JSON: a string, or a list of chat messages
        pa.field("verification_info", pa.string(), nullable=False),  # JSON object
        pa.field("metadata", pa.string(), nullable=False),  # JSON object
    ],
    metadata={"shoal.tasks.version": TASKS_SCHEMA_VERSION},
)


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


class BadTaskTable(ValueError):
    """A task table that cannot be read: the message names the column or the row."""


def tasks_digest(tasks: Iterable[Task]) -> str:
    """SHA-256 over the canonical JSON (RFC 8785) of every task in order, each followed by a newline."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(rfc8785.dumps(task.model_dump(mode="json")) + b"\n")
    return digest.hexdigest()


def write_tasks(tasks: Sequence[Task]) -> bytes:
    """The Parquet bytes of a task table; problem ids must be unique."""
    ids = [task.problem_id for task in tasks]
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise BadTaskTable(f"problem_id {twice!r} occurs more than once")
    rows = [
        {
            "problem_id": task.problem_id,
            "task_type": task.task_type,
            "prompt": json.dumps(task.model_dump(mode="json")["prompt"]),
            "verification_info": json.dumps(task.verification_info),
            "metadata": json.dumps(task.metadata),
        }
        for task in tasks
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=TASKS_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def read_tasks(data: bytes) -> list[Task]:
    """Tasks of a table written by `write_tasks`; raises `BadTaskTable` naming what is wrong and in which row."""
    try:
        # No threads, which `read_table` has for input even so: one that is alive at interpreter exit aborts the process (seen with pyarrow 26).
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            table = file.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise BadTaskTable(f"not a Parquet file: {error}") from error
    version = (table.schema.metadata or {}).get(b"shoal.tasks.version", b"none").decode()
    if version != TASKS_SCHEMA_VERSION:
        raise BadTaskTable(f"task table version is {version!r}, but this software reads {TASKS_SCHEMA_VERSION!r}")
    if not table.schema.equals(TASKS_SCHEMA):
        raise BadTaskTable(f"columns are {table.schema.names}; required: {TASKS_SCHEMA.names} with their types")
    tasks = []
    for number, row in enumerate(table.to_pylist()):
        try:
            tasks.append(
                Task(
                    problem_id=row["problem_id"],
                    task_type=row["task_type"],
                    prompt=json.loads(row["prompt"]),
                    verification_info=json.loads(row["verification_info"]),
                    metadata=json.loads(row["metadata"]),
                )
            )
        except ValueError as error:
            raise BadTaskTable(f"row {number}: {error}") from error
    return tasks
