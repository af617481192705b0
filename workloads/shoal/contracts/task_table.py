"""The run's task table: one Parquet file with a digest, the same for every worker and validator.

The table is made once by prepare from an environment or a dataset; a prompt index in a rollout is a row number of this table.
"""

import io
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.contracts.tasks import Task

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


class BadTaskTable(ValueError):
    """A task table that cannot be read: the message names the column or the row."""


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
