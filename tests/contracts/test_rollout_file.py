"""Rollout Parquet v1 as a hostile worker could write it: whatever is not exactly the schema is refused by the name of what is wrong."""

import io
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples import METADATA, NODE, RUN, rollout
from shoal.contracts.rollouts import (
    ROLLOUT_SCHEMA,
    BadRollouts,
    Rollout,
    read_rollouts,
    sampled_stretches,
    write_rollouts,
)

ROWS = [
    rollout(sample_index=0),
    rollout(sample_index=1, target_length=None, task_reward=None, length_penalty=None, reward=None),
]
NAMES = ROLLOUT_SCHEMA.names
REQUIRED = [field.name for field in ROLLOUT_SCHEMA if not field.nullable]
LISTS = [field.name for field in ROLLOUT_SCHEMA if pa.types.is_list(field.type)]


def table(rows: list[Rollout] = ROWS) -> pa.Table:
    return pq.read_table(pa.BufferReader(write_rollouts(rows, METADATA)), use_threads=False)


def parquet(content: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(content, sink, **options)
    return sink.getvalue()


def with_column(name: str, values: list[Any], kind: pa.DataType) -> bytes:
    content = table()
    return parquet(content.set_column(NAMES.index(name), pa.field(name, kind), pa.array(values, kind)))


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
INT32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def rows(draw: st.DrawFn) -> list[Rollout]:
    made = []
    for sample in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 6))
        rewards = draw(st.none() | FLOATS)
        made.append(
            rollout(
                sample_index=sample,
                problem_id=draw(st.text(st.characters(exclude_categories=("Cs",)), max_size=20)),
                prompt_tokens=draw(st.lists(INT32, min_size=1, max_size=6)),
                completion_tokens=draw(st.lists(INT32, min_size=length, max_size=length)),
                completion_logprobs=draw(st.lists(FLOATS, min_size=length, max_size=length)),
                completion_mask=draw(st.lists(st.booleans(), min_size=length, max_size=length)),
                finish_reason=draw(st.sampled_from(["stop", "length"])),
                target_length=draw(st.none() | INT32),
                task_reward=rewards,
                reward=rewards,
                seed=draw(st.integers(0, 2**63 - 1)),
                temperature=draw(FLOATS),
                proofs=draw(st.binary(max_size=30)),
            )
        )
    return made


@given(rows())
@settings(deadline=None)
def test_rows_survive_the_round_trip(written: list[Rollout]) -> None:
    read, metadata = read_rollouts(write_rollouts(written, METADATA))
    assert read == written
    assert metadata == METADATA


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_column_is_named(name: str) -> None:
    with pytest.raises(BadRollouts, match=rf"columns do not match: missing \['{name}'\]"):
        read_rollouts(parquet(table().drop_columns([name])))


@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_another_type_is_named(name: str) -> None:
    required = ROLLOUT_SCHEMA.field(name).type
    wrong = pa.int64() if not pa.types.is_int64(required) else pa.float64()
    with pytest.raises(BadRollouts, match=rf"column {name} has type {wrong}; required:"):
        read_rollouts(with_column(name, [1, 1], wrong))


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_another_element_type_is_named(name: str) -> None:
    with pytest.raises(BadRollouts, match=rf"column {name} has type list<.*: string>; required:"):
        read_rollouts(with_column(name, [["x"], ["x"]], pa.list_(pa.string())))


@pytest.mark.parametrize("name", REQUIRED)
def test_a_null_where_none_is_allowed_names_row_and_column(name: str) -> None:
    values = table().column(name).to_pylist()
    with pytest.raises(BadRollouts, match=f"row 1: {name} is null"):
        read_rollouts(with_column(name, [values[0], None], ROLLOUT_SCHEMA.field(name).type))


@pytest.mark.parametrize("name", LISTS)
def test_a_null_inside_a_list_names_row_and_column(name: str) -> None:
    values = table().column(name).to_pylist()
    kind = pa.list_(ROLLOUT_SCHEMA.field(name).type.value_type)
    with pytest.raises(BadRollouts, match=f"row 1: {name} holds a null"):
        read_rollouts(with_column(name, [values[0], [None, *values[1][1:]]], kind))


@pytest.mark.parametrize("name", ["completion_logprobs", "completion_mask"])
@pytest.mark.parametrize("change", [-1, 1])
def test_lists_of_unequal_length_name_row_and_column(name: str, change: int) -> None:
    values = table().column(name).to_pylist()
    longer = values[1][:-1] if change < 0 else values[1] + values[1][:1]
    with pytest.raises(BadRollouts, match=f"row 1: {name} has {4 + change} entries, completion_tokens 4"):
        read_rollouts(with_column(name, [values[0], longer], ROLLOUT_SCHEMA.field(name).type))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"completion_tokens": [], "completion_logprobs": [], "completion_mask": []},
            "row 1: completion_tokens is empty",
        ),
        ({"prompt_tokens": []}, "row 1: prompt_tokens is empty"),
        ({"finish_reason": "abort"}, "row 1: finish_reason is 'abort'; allowed:"),
        ({"finish_reason": ""}, "row 1: finish_reason is ''"),
        ({"run": "other"}, "row 1: run differs from row 0"),
        ({"step": 8}, "row 1: step differs from row 0"),
        ({"policy_version": 5}, "row 1: policy_version differs from row 0"),
        ({"node": "f" * 64}, "row 1: node differs from row 0"),
        ({"submission": 3}, "row 1: submission differs from row 0; a file holds one submission of one policy version"),
    ],
    ids=str,
)
def test_a_row_that_no_reader_takes_is_named_when_written_and_when_read(change: dict[str, Any], error: str) -> None:
    rows = [ROWS[0], rollout(**change)]
    with pytest.raises(BadRollouts, match=error):
        write_rollouts(rows, METADATA)
    columns = {name: [getattr(row, name) for row in rows] for name in NAMES}
    schema = ROLLOUT_SCHEMA.with_metadata(
        {f"shoal.{name}": value for name, value in asdict(METADATA).items() if value is not None}
    )
    with pytest.raises(BadRollouts, match=error):
        read_rollouts(parquet(pa.table(columns, schema=schema)))


def test_a_file_without_rows_is_refused() -> None:
    with pytest.raises(BadRollouts, match="file has no rows"):
        write_rollouts([], METADATA)
    with pytest.raises(BadRollouts, match="file has no rows"):
        read_rollouts(parquet(table().slice(0, 0)))


def test_unknown_columns_and_another_order_are_refused() -> None:
    with pytest.raises(BadRollouts, match=r"unknown \['extra'\]"):
        read_rollouts(parquet(table().append_column("extra", pa.array([1, 2]))))
    with pytest.raises(BadRollouts, match="in another order"):
        read_rollouts(parquet(table().select(NAMES[::-1])))
    twice = table().append_column("run", pa.array([RUN, RUN]))
    with pytest.raises(BadRollouts):
        read_rollouts(parquet(twice))


def test_more_than_one_row_group_is_refused() -> None:
    with pytest.raises(BadRollouts, match="file has 2 row groups; exactly one is allowed"):
        read_rollouts(parquet(table(), row_group_size=1))


@pytest.mark.parametrize("name", [name for name, value in asdict(METADATA).items() if value is not None])
def test_missing_file_metadata_is_named(name: str) -> None:
    content = table()
    kept = {key: value for key, value in content.schema.metadata.items() if key != f"shoal.{name}".encode()}
    with pytest.raises(BadRollouts, match=f"file metadata lacks shoal.{name}"):
        read_rollouts(parquet(content.replace_schema_metadata(kept)))
    with pytest.raises(BadRollouts, match="file metadata lacks"):
        read_rollouts(parquet(content.replace_schema_metadata(None)))


def test_another_schema_version_is_refused() -> None:
    content = table()
    changed = dict(content.schema.metadata) | {b"shoal.schema_version": b"2"}
    with pytest.raises(BadRollouts, match="schema version is '2', but this software reads '1'"):
        read_rollouts(parquet(content.replace_schema_metadata(changed)))


def test_metadata_of_hostile_length_is_cut() -> None:
    content = table()
    changed = dict(content.schema.metadata) | {b"shoal.software_version": b"\xff" * 100_000}
    _, metadata = read_rollouts(parquet(content.replace_schema_metadata(changed)))
    assert len(metadata.software_version) <= 256


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + bytes(100) + b"PAR1", b"\x00" * 1000], ids=repr)
def test_bytes_that_are_no_parquet_are_refused(data: bytes) -> None:
    with pytest.raises(BadRollouts, match="not a readable Parquet file"):
        read_rollouts(data)


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(deadline=None, max_examples=300)
def test_a_flipped_byte_gives_rows_or_a_refusal_and_never_a_crash(position: int, flip: int) -> None:
    data = bytearray(write_rollouts(ROWS, METADATA))
    data[position % len(data)] ^= flip
    try:
        read, _ = read_rollouts(bytes(data))
    except BadRollouts:
        return
    assert all(isinstance(row.node, str) and len(row.completion_logprobs) == len(row.completion_tokens) for row in read)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_short_is_refused(share: float) -> None:
    data = write_rollouts(ROWS, METADATA)
    with pytest.raises(BadRollouts, match="not a readable Parquet file"):
        read_rollouts(data[: int(len(data) * share)])


def test_the_schema_is_the_documented_one() -> None:
    assert len(NODE) == 64
    assert NAMES[:5] == ["run", "step", "policy_version", "node", "submission"]
    assert [field.name for field in ROLLOUT_SCHEMA if field.nullable] == [
        "target_length",
        "task_reward",
        "length_penalty",
        "reward",
    ]


@pytest.mark.parametrize(
    ("mask", "stretches"),
    [
        ([True] * 5, [(0, 5)]),
        ([True, True, False, True], [(0, 2), (3, 4)]),
        ([False, True, False], [(1, 2)]),
        ([False, False], []),
        ([], []),
    ],
)
def test_sampled_stretches_are_the_runs_of_true(mask: list[bool], stretches: list[tuple[int, int]]) -> None:
    assert [(part.start, part.stop) for part in sampled_stretches(mask)] == stretches
