"""Rollout Parquet v1: the one file format in which rollouts travel from a worker to the trainer.

One row a completion; a file holds every row that was drawn for its submission, of one node, one step and one policy version. Workers write it,
validators and the trainer read it (`read_batches`). Rewards in a file are the worker's claim and nothing more. What is not exactly this schema is
refused, and the field named; judging the values is the validators' work, except for the shapes that every reader relies on (`check_shapes`).
With algorithm `vineppo` rows that continue completions follow on all of them (`vine`): their prompt is the prompt and part of the completion.

In a run with `rollouts.versions: Several` a row may go on under newer weights (ADR 0108). Its file has two columns more, which say where each version
begins; each of these segments was sampled with everything before it computed by its own version (`by_version`). Other files are as they always were.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import groupby
from mmap import mmap
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.contracts.file_size import MAX_FILE_BYTES

SCHEMA_VERSION = "1"
FINISH_REASONS = ("stop", "length", "unanswered")
"""How a completion ended: with an end-of-sequence token; at the length limit; at a call that no tool answered (environments with tools only, see
`shoal.environments.episodes`)."""

ROLLOUT_SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("policy_version", pa.int32(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("submission", pa.int32(), nullable=False),
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("prompt_index", pa.int32(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("prompt_tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("completion_tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("completion_logprobs", pa.list_(pa.field("element", pa.float32(), nullable=False)), nullable=False),
        pa.field("completion_mask", pa.list_(pa.field("element", pa.bool_(), nullable=False)), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("task_type", pa.string(), nullable=False),
        pa.field("target_length", pa.int32()),
        pa.field("task_reward", pa.float32()),
        pa.field("length_penalty", pa.float32()),
        pa.field("reward", pa.float32()),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("temperature", pa.float32(), nullable=False),
        pa.field("proofs", pa.binary(), nullable=False),
    ]
)

SEGMENT_FIELDS = [
    pa.field("segment_versions", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
    pa.field("segment_starts", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
]
"""The last columns of a file of several versions."""
SEGMENT_TOKENS = 32
"""Segments begin at multiples of this many completion tokens: each has whole proofs, and a node has few places to choose from."""
ROUTES_FIELD = pa.field("routes", pa.binary(), nullable=False)
"""A last column, in files of steps of a run whose recipe has `routerReplay`; other files do not have it."""

BATCH_TOKENS, BATCH_ROWS = 1 << 16, 256
"""Size of one read: entries of the four lists together, and rows."""
LONGEST_TEXT_BYTES = 1024
"""Of run, node, problem, finish reason and task type, in UTF-8: none of ours has a third of it."""
TOKEN_LISTS = ("prompt_tokens", "completion_tokens", "completion_logprobs", "completion_mask")


class BadRollouts(ValueError):
    """A rollout file that is refused: the message names the field or the row. Raised for workers' files, so never a crash."""


@dataclass(frozen=True)
class FileLimits:
    """Limits of a file: tokens of prompts and completions together, those of one row, and rows; and of routes, bytes a token."""

    tokens: int
    row_tokens: int
    rows: int
    route_bytes: int = 0


@dataclass(frozen=True)
class RolloutMetadata:
    """Metadata of the whole file; stored as Parquet key-value metadata under `shoal.<field>`.

    `quantization` is how the weights were rounded that sampled it; only files of runs with such a term have it (ADR 0116).
    """

    model: str
    weights_digest: str
    environment_digest: str
    software_version: str
    schema_version: str = SCHEMA_VERSION
    quantization: str | None = None


@dataclass(frozen=True)
class Rollout:
    """One completion. Lists over completion tokens (`completion_tokens`, `_logprobs`, `_mask`) have equal length.

    `completion_mask` is False where a token is a tool's output and was not sampled. `completion_logprobs` are natural logarithms at `temperature`,
    and exactly 0 where a token was not sampled. `target_length` is None when the run has no length reward; the three rewards are None where the
    worker could not score the row. `proofs` is the concatenation of 258-byte TOPLOC proofs: each stretch of sampled tokens (`sampled_stretches`;
    without tools the whole completion) has one for every 32 of its tokens or part of them. `routes` are the experts of each sampled token
    (`models.routes`); None where the run does not record them.

    `policy_version` is that of all tokens, or in a file of several versions the oldest of the file. There `segment_versions` has the versions that
    the row's tokens are of, ascending, and `segment_starts` the first token of each, as a position in the completion. Empty in all other files.
    """

    run: str
    step: int
    policy_version: int
    node: str
    submission: int
    problem_id: str
    prompt_index: int
    sample_index: int
    prompt_tokens: Sequence[int]
    completion_tokens: Sequence[int]
    completion_logprobs: Sequence[float]
    completion_mask: Sequence[bool]
    finish_reason: str
    task_type: str
    target_length: int | None
    task_reward: float | None
    length_penalty: float | None
    reward: float | None
    seed: int
    temperature: float
    proofs: bytes
    segment_versions: Sequence[int] = ()
    segment_starts: Sequence[int] = ()
    routes: bytes | None = None

    @property
    def versions(self) -> Sequence[int]:
        """The versions that the row's tokens are of, ascending."""
        return self.segment_versions or (self.policy_version,)


def versions_of(rows: Sequence[Rollout]) -> list[int]:
    """The versions of a file's tokens, ascending."""
    return sorted({version for row in rows for version in row.versions})


def digest_of_weights(digests: Sequence[str]) -> str:
    """`RolloutMetadata.weights_digest` for the digests (hex) of a file's versions, ascending: the one itself; of several a SHA-256 over all."""
    return digests[0] if len(digests) == 1 else sha256("\n".join(digests).encode()).hexdigest()


def by_version(rows: Mapping[int, Rollout], version: int) -> dict[int, Rollout]:
    """What `version` sampled, by row number, as rows of that version alone; rows without any of it are left out.

    Such a row ends where its segment does. Its mask is true in the segment only, and `proofs` are the segment's: what came before is context, which
    this version has to compute by itself. Costs a copy of the tokens.
    """
    found = {}
    for number, row in rows.items():
        if not row.segment_versions:
            if row.policy_version == version:
                found[number] = row
            continue
        if version not in row.segment_versions:
            continue
        place = list(row.segment_versions).index(version)
        length = len(row.completion_tokens)
        start, end = [*row.segment_starts, length][place : place + 2]
        size = len(row.proofs) // max(
            1, -(-length // SEGMENT_TOKENS)
        )  # of one proof; `computation.check_shape` has seen that it fits
        found[number] = replace(
            row,
            policy_version=version,
            completion_tokens=row.completion_tokens[:end],
            completion_logprobs=row.completion_logprobs[:end],
            completion_mask=[*[False] * start, *row.completion_mask[start:end]],
            proofs=row.proofs[start // SEGMENT_TOKENS * size : -(-end // SEGMENT_TOKENS) * size],
            segment_versions=(),
            segment_starts=(),
        )
    return found


def sampled_stretches(mask: Sequence[bool]) -> list[slice]:
    """The stretches of tokens that were sampled one after the other, in order; each was one request to the engine."""
    found, start = [], 0
    for sampled, run in groupby(mask):
        end = start + sum(1 for _ in run)
        if sampled:
            found.append(slice(start, end))
        start = end
    return found


def write_rollouts(rows: Sequence[Rollout], metadata: RolloutMetadata) -> bytes:
    """The Parquet bytes of one submission, one row group; raises `BadRollouts` for rows that no reader would take."""
    check_shapes(rows)
    fields = [*ROLLOUT_SCHEMA, *(SEGMENT_FIELDS if rows[0].segment_versions else [])]
    fields += [ROUTES_FIELD] if rows[0].routes is not None else []
    told = {f"shoal.{name}": value for name, value in asdict(metadata).items() if value is not None}
    schema = pa.schema(fields).with_metadata(told)
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), sink, compression="zstd", row_group_size=max(len(rows), 1))
    return sink.getvalue()


def read_rollouts(data: bytes) -> tuple[list[Rollout], RolloutMetadata]:
    """Rows and metadata of a file; raises `BadRollouts` for anything that is not exactly schema v1.

    The caller bounds memory: hostile files are parsed in a process that can be killed (validators do).
    """
    metadata, batches = read_batches(data)
    return [row for batch in batches for row in batch], metadata


def read_batches(
    data: bytes | mmap, limits: FileLimits | None = None
) -> tuple[RolloutMetadata, Iterator[list[Rollout]]]:
    """The same without all rows at once: metadata, and the rows a few at a time, `BATCH_TOKENS` or one that is longer. `data` may be a mapped file.

    Rows take fifteen times the memory of the table that they are in: a file with more than `limits` is refused before any is made.
    """
    if len(data) > MAX_FILE_BYTES:
        raise BadRollouts(f"file has {len(data)} bytes; at most {MAX_FILE_BYTES} are allowed")
    with _unreadable():
        # One thread: a reader thread that is still alive at interpreter exit aborts the process (seen with pyarrow 26).
        parquet = pq.ParquetFile(pa.BufferReader(data))
        metadata = _metadata(parquet.schema_arrow.metadata or {})
        _check_schema(parquet.schema_arrow)
        if parquet.metadata.num_row_groups > 1:
            raise BadRollouts(f"file has {parquet.metadata.num_row_groups} row groups; exactly one is allowed")
        table = parquet.read(use_threads=False)
        table.validate(full=True)
    if table.num_rows == 0:
        raise BadRollouts("file has no rows")
    if limits is not None:
        with _unreadable():
            _check_limits(table, limits)
    return metadata, _batches(table)


def _check_limits(table: pa.Table, limits: FileLimits) -> None:
    """Counts entries in Arrow's memory, without a row of Python's: zstd packs millions of equal tokens into some kilobytes.

    A row that lacks a list is left out of a sum here and refused later. No scalar is made of a Python value: pyarrow would import pandas for
    it, again in each reader of a file, which took longer than all the reading.
    """
    if table.num_rows > limits.rows:
        raise BadRollouts(f"file has {table.num_rows} rows; at most {limits.rows} are allowed")
    lengths = {name: pc.list_value_length(table.column(name)) for name in TOKEN_LISTS}
    lengths["prompt and completion"] = pc.add(lengths["prompt_tokens"], lengths["completion_tokens"])
    lengths |= {
        each.name: pc.list_value_length(table.column(each.name))
        for each in SEGMENT_FIELDS
        if each.name in table.column_names
    }
    for name, each in lengths.items():
        longest, total = pc.max(each).as_py() or 0, pc.sum(each).as_py() or 0
        if longest > limits.row_tokens:
            raise BadRollouts(f"a row has {longest} entries of {name}; at most {limits.row_tokens} are allowed")
        if total > limits.tokens:
            raise BadRollouts(f"file has {total} entries of {name}; at most {limits.tokens} are allowed")
    if ROUTES_FIELD.name in table.column_names:
        longest = pc.max(pc.binary_length(table.column(ROUTES_FIELD.name))).as_py() or 0
        if longest > limits.route_bytes * limits.row_tokens:
            allowed = (
                f"at most {limits.route_bytes} a token are allowed" if limits.route_bytes else "this run records none"
            )
            raise BadRollouts(f"a row has {longest} bytes of routes; {allowed}")
    for field in ROLLOUT_SCHEMA:
        if pa.types.is_string(field.type):
            longest = pc.max(pc.binary_length(table.column(field.name))).as_py() or 0
            if longest > LONGEST_TEXT_BYTES:
                raise BadRollouts(
                    f"a row has {longest} bytes of {field.name}; at most {LONGEST_TEXT_BYTES} are allowed"
                )


@contextmanager
def _unreadable() -> Iterator[None]:
    """Whatever a reader raises is a refusal of the file: pyarrow raises many kinds on hostile bytes, all of them mean the same here."""
    try:
        yield
    except BadRollouts:
        raise
    except Exception as error:
        raise BadRollouts(f"not a readable Parquet file: {type(error).__name__}: {str(error)[:200]}") from error


def _batches(table: pa.Table) -> Iterator[list[Rollout]]:
    first, start = None, 0
    while start < table.num_rows:
        with _unreadable():
            count = _fitting(table.slice(start, BATCH_ROWS))
            raw = table.slice(start, count).to_pylist()
        for number, row in enumerate(raw, start):
            _check_nulls(number, row)
        batch = [Rollout(**row) for row in raw]
        first = first or batch[0]
        for number, row in enumerate(batch, start):
            _check_row(number, row, first)
            if SEGMENT_FIELDS[0].name in table.column_names and not row.segment_versions:
                raise BadRollouts(f"row {number}: segment_versions is empty")
        yield batch
        start += count


def _fitting(rows: pa.Table) -> int:
    """How many of these rows have at most `BATCH_TOKENS` tokens together; 1 at least."""
    tokens, count = 0, 0
    lists = [rows.column(name) for name in TOKEN_LISTS]
    for lengths in zip(*(pc.list_value_length(each).to_pylist() for each in lists), strict=True):
        tokens += sum(length or 0 for length in lengths)
        if tokens > BATCH_TOKENS and count:
            break
        count += 1
    return count


def check_shapes(rows: Sequence[Rollout]) -> None:
    """Check the rules that every reader relies on: rows of one submission, equal list lengths, known finish reasons. Raises `BadRollouts` with the
    row."""
    if not rows:
        raise BadRollouts("file has no rows")
    for number, row in enumerate(rows):
        _check_row(number, row, rows[0])


def _check_row(number: int, row: Rollout, first: Rollout) -> None:
    for name in ("run", "step", "policy_version", "node", "submission"):
        if getattr(row, name) != getattr(first, name):
            raise BadRollouts(
                f"row {number}: {name} differs from row 0; a file holds one submission of one policy version"
            )
    if (row.routes is None) != (first.routes is None):
        raise BadRollouts(f"row {number}: routes are in some rows only; a file has them in all or in none")
    length = len(row.completion_tokens)
    for name in ("completion_logprobs", "completion_mask"):
        if len(getattr(row, name)) != length:
            raise BadRollouts(f"row {number}: {name} has {len(getattr(row, name))} entries, completion_tokens {length}")
    if length == 0:
        raise BadRollouts(f"row {number}: completion_tokens is empty")
    if not row.prompt_tokens:
        raise BadRollouts(f"row {number}: prompt_tokens is empty")
    if row.finish_reason not in FINISH_REASONS:
        raise BadRollouts(f"row {number}: finish_reason is {row.finish_reason[:40]!r}; allowed: {FINISH_REASONS}")
    if bool(row.segment_versions) != bool(first.segment_versions):
        raise BadRollouts(f"row {number}: segments are given for some rows of the file and not for others")
    if row.segment_versions or row.segment_starts:
        if row.routes is not None:
            raise BadRollouts(f"row {number}: it has segments and routes; a file has one of them at most")
        check_segments(number, row)


def check_segments(number: int, row: Rollout) -> None:
    """Each segment has tokens, begins where the one before it ends, and is of a newer version. Raises `BadRollouts`."""
    versions, starts = list(row.segment_versions), list(row.segment_starts)
    if len(versions) != len(starts):
        raise BadRollouts(f"row {number}: segment_versions has {len(versions)} entries, segment_starts {len(starts)}")
    if versions != sorted(set(versions)) or versions[0] < row.policy_version:
        raise BadRollouts(
            f"row {number}: segment_versions are {versions[:8]}; allowed: ascending, each once, none before policy_version {row.policy_version}"
        )
    ends = [*starts[1:], len(row.completion_tokens)]
    if starts[0] != 0 or any(end <= start or start % SEGMENT_TOKENS for start, end in zip(starts, ends, strict=True)):
        raise BadRollouts(
            f"row {number}: segments begin at {starts[:8]} of {len(row.completion_tokens)} tokens; allowed: 0 and ascending multiples of"
            f" {SEGMENT_TOKENS} before the end"
        )


def _metadata(raw: dict[bytes, bytes]) -> RolloutMetadata:
    found: dict[str, str] = {}
    for name in RolloutMetadata.__dataclass_fields__:
        value = raw.get(f"shoal.{name}".encode())
        if value is None and name == "quantization":
            continue
        if value is None:
            raise BadRollouts(f"file metadata lacks shoal.{name}")
        found[name] = value.decode(errors="replace")[:256]
    if found["schema_version"] != SCHEMA_VERSION:
        raise BadRollouts(f"schema version is {found['schema_version']!r}, but this software reads {SCHEMA_VERSION!r}")
    return RolloutMetadata(**found)


def _fields(names: Sequence[str]) -> list[pa.Field]:
    """The columns that a file with these must have: no run asks for both segments and routes."""
    if ROUTES_FIELD.name in names:
        return [*ROLLOUT_SCHEMA, ROUTES_FIELD]
    return [*ROLLOUT_SCHEMA, *(SEGMENT_FIELDS if SEGMENT_FIELDS[0].name in names else [])]


def _check_schema(schema: pa.Schema) -> None:
    fields = _fields(schema.names)
    names = [field.name for field in fields]
    if schema.names != names:
        missing = [name for name in names if name not in schema.names]
        unknown = [name for name in schema.names if name not in names]
        raise BadRollouts(f"columns do not match: missing {missing}, unknown {unknown[:5]}, or in another order")
    for field in fields:
        found = schema.field(field.name)
        if not _same_type(found.type, field.type):
            raise BadRollouts(f"column {field.name} has type {found.type}; required: {field.type}")


def _same_type(found: pa.DataType, required: pa.DataType) -> bool:
    """Equal types; the names of list elements and their nullability are a writer's taste and not compared."""
    if pa.types.is_list(required):
        return bool(pa.types.is_list(found) and found.value_type == required.value_type)
    return bool(found == required)


def _check_nulls(number: int, row: dict[str, Any]) -> None:
    for field in _fields(list(row)):
        value = row[field.name]
        if value is None and not field.nullable:
            raise BadRollouts(f"row {number}: {field.name} is null")
        if isinstance(value, list) and None in value:
            raise BadRollouts(f"row {number}: {field.name} holds a null")
