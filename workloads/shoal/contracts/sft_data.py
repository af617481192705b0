"""A data set of verified traces: what a run of mode `Generate` writes and a supervised warm start reads.

`datasets/<name>/` in the store holds `part-00000.parquet` and so on (rows of `TRACE_SCHEMA`), `problems-00000.parquet` beside them (how often each
sampled problem was solved: what the offline filter goes by), `README.md` for people and `card.json`, which names every file with its digest and is
written last. Readers bound what they take into memory; a file that is not as its schema says is refused by name. Pure.

Rows of token ids, which prepare makes for the trainer, are Parquet under `sft/`, listed by `sft/manifest.json` (`contracts/sft.py`).
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.contracts.filtering import ProblemCount

SFT_SCHEMA_VERSION = "1"
SFT_SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("completion_tokens", pa.list_(pa.int32()), nullable=False),
    ],
    metadata={"shoal.sft.version": SFT_SCHEMA_VERSION},
)


@dataclass(frozen=True)
class SftRow:
    """One example: token ids of a prompt and of the completion to learn, its end-of-sequence token included."""

    row_id: str
    prompt_tokens: list[int]
    completion_tokens: list[int]


class BadSftRows(ValueError):
    """A file of rows that cannot be read; the message says what is wrong."""


def write_sft_rows(rows: Sequence[SftRow]) -> bytes:
    """The Parquet bytes of one shard."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], schema=SFT_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def read_sft_rows(data: bytes) -> pa.Table:
    """The rows of a shard, with the columns of `SFT_SCHEMA`. Raises BadSftRows."""
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise BadSftRows(f"not a Parquet file: {error}") from error
    version = (table.schema.metadata or {}).get(b"shoal.sft.version", b"none").decode()
    if version != SFT_SCHEMA_VERSION or not table.schema.equals(SFT_SCHEMA):
        raise BadSftRows(
            f"version {version!r} with columns {table.schema.names}, but this software reads {SFT_SCHEMA.names}"
        )
    return table


TRACE_SCHEMA = pa.schema(
    [
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("task_type", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),  # as the model saw it, request for a length included
        pa.field("completion", pa.string(), nullable=False),  # without its end-of-sequence token
        pa.field("reward", pa.float64(), nullable=False),  # the validator's task reward
        pa.field("tokens", pa.int32(), nullable=False),  # of the completion, its end-of-sequence token included
    ],
    metadata={"shoal.traces.version": "1"},
)
PROBLEM_SCHEMA = pa.schema(
    [
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("samples", pa.int32(), nullable=False),  # that could be scored
        pa.field("correct", pa.int32(), nullable=False),
        pa.field("mean_tokens", pa.float64(), nullable=False),
    ],
    metadata={"shoal.problems.version": "1"},
)

MAX_PART_BYTES = 1 << 30
"""A part above this is refused unread: ten thousand rows of 30,000 tokens have some hundreds of megabytes."""
MAX_TEXT_BYTES = 4 << 20
"""Of one prompt or completion: a million tokens."""
BATCH_ROWS = 256
"""Rows decoded at once, so that memory is bounded by 512 texts."""


class BadTraces(ValueError):
    """A file of a data set that is refused; the message names the column or the row."""


@dataclass(frozen=True)
class Trace:
    """One verified completion of one problem."""

    problem_id: str
    task_type: str
    prompt: str
    completion: str
    reward: float
    tokens: int


def write_traces(rows: Sequence[Trace]) -> bytes:
    """The Parquet bytes of one part; the same rows give the same bytes. Raises BadTraces for a text above the bound."""
    for number, row in enumerate(rows):
        _check_trace(number, asdict(row))
    return _write(rows, TRACE_SCHEMA)


def read_traces(data: bytes) -> Iterator[Trace]:
    """Rows of one part, `BATCH_ROWS` decoded at a time. Raises BadTraces."""
    for number, row in _rows(data, TRACE_SCHEMA):
        _check_trace(number, row)
        yield Trace(**row)


def write_problem_counts(rows: Sequence[ProblemCount]) -> bytes:
    """The Parquet bytes of one file of counts."""
    return _write(rows, PROBLEM_SCHEMA)


def read_problem_counts(data: bytes) -> Iterator[ProblemCount]:
    """Rows of one file of counts. Raises BadTraces."""
    for number, row in _rows(data, PROBLEM_SCHEMA):
        if not 0 <= row["correct"] <= row["samples"]:
            raise BadTraces(f"row {number}: {row['correct']} of {row['samples']} samples are correct")
        yield ProblemCount(**row)


def _write(rows: Iterable[Any], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
    pq.write_table(table, sink, compression="zstd", row_group_size=BATCH_ROWS)
    return sink.getvalue()


def _rows(data: bytes, schema: pa.Schema) -> Iterator[tuple[int, dict[str, Any]]]:
    if len(data) > MAX_PART_BYTES:
        raise BadTraces(f"the file has {len(data)} bytes; at most {MAX_PART_BYTES} are allowed")
    number = 0
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            found = file.schema_arrow
            if found.names != schema.names or any(found.field(f.name).type != f.type for f in schema):
                raise BadTraces(f"columns are {found.names}; required: {schema.names} with their types")
            # One thread: a reader thread that is still alive at interpreter exit aborts the process (seen with pyarrow 26).
            for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
                for row in batch.to_pylist():
                    empty = [name for name, value in row.items() if value is None]
                    if empty:
                        raise BadTraces(f"row {number}: {empty[0]} is null")
                    yield number, row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise BadTraces(f"not a readable Parquet file: {str(error)[:200]}") from error


def _check_trace(number: int, row: dict[str, Any]) -> None:
    for name in ("prompt", "completion"):
        size = len(row[name].encode(errors="replace"))
        if size > MAX_TEXT_BYTES:
            raise BadTraces(f"row {number}: {name} has {size} bytes; at most {MAX_TEXT_BYTES} are allowed")
