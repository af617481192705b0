"""Reading a hostile file: refused with words, whatever it does to its reader."""

import io
import os
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.contracts.rollouts import ROLLOUT_SCHEMA, BadRollouts, Rollout, RolloutMetadata, write_rollouts
from shoal.validation.parsing import parse_file

METADATA = RolloutMetadata("model", "aa" * 32, "bb" * 32, "0.1.0")
ROW = Rollout(
    run="tiny",
    step=1,
    policy_version=1,
    node="ab" * 32,
    submission=0,
    problem_id="p",
    prompt_index=3,
    sample_index=0,
    prompt_tokens=[1, 2],
    completion_tokens=[3, 4, 5],
    completion_logprobs=[-0.5, -1.0, -0.25],
    completion_mask=[True, True, True],
    finish_reason="stop",
    task_type="t",
    target_length=None,
    task_reward=1.0,
    length_penalty=None,
    reward=None,
    seed=2**62 + 1,
    temperature=1.0,
    proofs=bytes(range(256)),
)


def refusal(folder: Path, data: bytes, max_tokens: int = 1000) -> str:
    path = folder / "file"
    path.write_bytes(data)
    with pytest.raises(BadRollouts) as caught:
        parse_file(path, max_tokens)
    return str(caught.value)


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(write_rollouts([ROW, ROW], METADATA))
    assert parse_file(path, 1000) == ([ROW, ROW], METADATA)


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"").startswith("not a readable Parquet file")
    assert refusal(tmp_path, b"PAR1" + bytes(1000) + b"PAR1").startswith("not a readable Parquet file")
    whole = write_rollouts([ROW], METADATA)
    assert refusal(tmp_path, whole[: len(whole) // 2]).startswith("not a readable Parquet file")


def test_flipped_bytes_are_refused_or_harmless_and_never_a_crash(tmp_path: Path) -> None:
    whole = write_rollouts([ROW], METADATA)
    path = tmp_path / "file"
    outcomes = set()
    for position in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            parse_file(path, 1000)
            outcomes.add("read")
        except BadRollouts:
            outcomes.add("refused")
    assert "refused" in outcomes


def test_a_file_that_unpacks_to_more_memory_than_an_honest_one_is_refused(tmp_path: Path) -> None:
    # 50 million equal tokens are some kilobytes on the disk and 600 MB in memory.
    many = pa.concat_arrays([pa.array([1] * 1000, pa.int32())] * 50_000)
    columns = {name: [getattr(ROW, name)] for name in ROLLOUT_SCHEMA.names}
    columns["prompt_tokens"] = pa.ListArray.from_arrays(pa.array([0, len(many)], pa.int32()), many)
    metadata = {f"shoal.{name}": value for name, value in asdict(METADATA).items()}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=ROLLOUT_SCHEMA.with_metadata(metadata)), sink, compression="zstd")
    assert len(sink.getvalue()) < 1 << 20
    assert "MemoryError" in refusal(tmp_path, sink.getvalue())


def test_an_answer_longer_than_that_of_an_honest_file_is_refused(tmp_path: Path) -> None:
    many = replace(ROW, prompt_tokens=[12345] * 500_000)
    assert "it needs more than" in refusal(tmp_path, write_rollouts([many], METADATA), max_tokens=10)


def test_a_reader_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)  # nobody writes to it: its reader waits for ever
    with pytest.raises(BadRollouts, match=r"took more than 0\.5 s"):
        parse_file(path, 1000, deadline_seconds=0.5)
