"""The files of a data set of traces: what is written is read again, and what is not as it should be is refused by name."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.contracts import sft_data
from shoal.contracts.filtering import ProblemCount
from shoal.contracts.sft_data import (
    BATCH_ROWS,
    BadTraces,
    Trace,
    read_problem_counts,
    read_traces,
    write_problem_counts,
    write_traces,
)

ROWS = [Trace(f"p-{n}", "math", f"What is {n}?", f"It is {n}.", 1.0, 5) for n in range(BATCH_ROWS + 3)]


def parquet(columns: dict[str, list[object]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_rows_are_read_as_they_were_written_over_more_than_one_batch() -> None:
    assert list(read_traces(write_traces(ROWS))) == ROWS


def test_the_same_rows_give_the_same_bytes() -> None:
    assert write_traces(ROWS) == write_traces(list(ROWS))


def test_counts_are_read_as_they_were_written() -> None:
    counts = [ProblemCount("a", 8, 3, 12.5), ProblemCount("b", 0, 0, 0.0)]
    assert list(read_problem_counts(write_problem_counts(counts))) == counts


def test_more_right_than_sampled_is_refused() -> None:
    with pytest.raises(BadTraces, match="row 0: 9 of 8 samples are correct"):
        list(read_problem_counts(write_problem_counts([ProblemCount("a", 8, 9, 1.0)])))


def test_other_columns_are_refused_by_their_names() -> None:
    with pytest.raises(BadTraces, match=r"columns are \['text'\]; required: \['problem_id', 'task_type'"):
        list(read_traces(parquet({"text": ["a"]})))


def test_a_null_is_refused_by_its_row_and_column() -> None:
    columns = {name: [getattr(row, name) for row in ROWS[:2]] for name in sft_data.TRACE_SCHEMA.names}
    columns["completion"][1] = None
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in sft_data.TRACE_SCHEMA])), sink
    )
    with pytest.raises(BadTraces, match="row 1: completion is null"):
        list(read_traces(sink.getvalue()))


def test_bytes_that_are_no_parquet_are_refused() -> None:
    with pytest.raises(BadTraces, match="not a readable Parquet file"):
        list(read_traces(b"PAR1 or so"))


def test_a_text_above_the_bound_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_traces(ROWS)
    monkeypatch.setattr(sft_data, "MAX_TEXT_BYTES", 8)
    with pytest.raises(BadTraces, match="row 0: prompt has 10 bytes; at most 8 are allowed"):
        write_traces(ROWS)
    with pytest.raises(BadTraces, match="row 0: prompt has 10 bytes; at most 8 are allowed"):
        list(read_traces(data))


def test_a_file_above_the_bound_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_traces(ROWS)
    monkeypatch.setattr(sft_data, "MAX_PART_BYTES", 100)
    with pytest.raises(BadTraces, match="at most 100 are allowed"):
        list(read_traces(data))
