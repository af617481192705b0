"""Reading a hostile file: refused with words, whatever it does to its reader."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.contracts.rollouts import (
    ROLLOUT_SCHEMA,
    BadRollouts,
    FileLimits,
    Rollout,
    RolloutMetadata,
    write_rollouts,
)
from shoal.validation import parsing
from shoal.validation.parsing import BASE_MEMORY_BYTES, ReaderLost, parse_file, reading_memory, reading_seconds

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
    assert type(caught.value) is BadRollouts, "the reader lived to refuse it: no second validator is asked"
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
    metadata = {f"shoal.{name}": value for name, value in asdict(METADATA).items() if value is not None}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=ROLLOUT_SCHEMA.with_metadata(metadata)), sink, compression="zstd")
    assert len(sink.getvalue()) < 1 << 20
    assert "MemoryError" in refusal(tmp_path, sink.getvalue())


def test_an_answer_longer_than_that_of_an_honest_file_is_refused(tmp_path: Path) -> None:
    many = replace(ROW, proofs=bytes(1_500_000))
    path = tmp_path / "file"
    path.write_bytes(write_rollouts([many], METADATA))
    with pytest.raises(ReaderLost, match="it needs more than"):
        parse_file(path, 10)


@pytest.mark.parametrize(
    ("row", "count", "words"),
    [
        (
            replace(ROW, prompt_tokens=[1] * 97),
            3,
            "file has 300 entries of prompt and completion; at most 299 are allowed",
        ),
        (replace(ROW, prompt_tokens=[1] * 3000), 1, "a row has 3000 entries of prompt_tokens; at most 120 are allowed"),
        (
            replace(ROW, prompt_tokens=[1] * 118),
            1,
            "a row has 121 entries of prompt and completion; at most 120 are allowed",
        ),
        (
            replace(ROW, completion_tokens=[1] * 400),
            1,
            "a row has 400 entries of completion_tokens; at most 120 are allowed",
        ),
        (ROW, 5, "file has 5 rows; at most 4 are allowed"),
        (replace(ROW, problem_id="x" * 1025), 1, "a row has 1025 bytes of problem_id; at most 1024 are allowed"),
    ],
)
def test_a_file_with_more_than_it_may_have_is_refused_before_its_rows_are_made(
    tmp_path: Path, row: Rollout, count: int, words: str
) -> None:
    # Some times what is allowed is still within the characters and the memory of the longest honest file.
    length = len(row.completion_tokens)
    row = replace(row, completion_logprobs=[-0.5] * length, completion_mask=[True] * length)
    path = tmp_path / "file"
    path.write_bytes(write_rollouts([row] * count, METADATA))
    with pytest.raises(BadRollouts) as caught:
        parse_file(path, 299, 120, 4)
    assert str(caught.value) == words


def test_a_file_with_all_that_it_may_have_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(write_rollouts([replace(ROW, prompt_tokens=[1] * 97)] * 3, METADATA))
    assert len(parse_file(path, 300, 100, 3)[0]) == 3


@pytest.mark.parametrize(
    "rows",
    [[ROW] * 4, [replace(ROW, prompt_tokens=[1] * 8)], [ROW, replace(ROW, prompt_tokens=[1] * 7)]],
    ids=["rows", "a long row", "tokens"],
)
def test_what_a_reader_sends_is_counted_once_more(rows: list[Rollout]) -> None:
    count = parsing._Count(FileLimits(tokens=14, row_tokens=10, rows=3))
    with pytest.raises(BadRollouts, match="the reader sent"):
        count.add(rows)
    parsing._Count(FileLimits(tokens=15, row_tokens=10, rows=3)).add([ROW] * 3)
    for uneven in (replace(ROW, completion_mask=[True] * 9), replace(ROW, completion_logprobs=[])):
        with pytest.raises(BadRollouts, match="the reader sent a row"):
            parsing._Count(FileLimits(tokens=15, row_tokens=10, rows=3)).add([uneven])


def test_a_reader_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)  # nobody writes to it: its reader waits for ever
    begun = time.monotonic()
    with pytest.raises(ReaderLost, match=r"took more than 2 s"):
        parse_file(path, 1000, deadline_seconds=2.0)
    assert time.monotonic() - begun < 3.5, "no second reader waits as long"


def readers_of(path: Path) -> list[int]:
    """Other processes that have it open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(path) and int(link.parts[2]) != os.getpid():
                found.append(int(link.parts[2]))
        except OSError:  # it ended meanwhile
            continue
    return found


def kill_readers(path: Path, whole: Path, times: int) -> threading.Thread:
    """Kill so many readers of this pipe one after the other, as the kernel does where memory is short; then `whole` lies there."""

    def kill() -> None:
        for left in reversed(range(times)):
            with path.open("wb"):  # returns when a reader has opened it, which then waits for bytes
                (reader,) = readers_of(path)
                following = path.with_name("next") if left else whole
                if left:
                    os.mkfifo(following)
                following.replace(path)
                os.kill(reader, signal.SIGKILL)

    os.mkfifo(path)
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    return killer


def test_a_reader_that_was_killed_once_is_followed_by_another(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(write_rollouts([ROW], METADATA))
    killer = kill_readers(tmp_path / "file", whole, times=1)
    assert parse_file(tmp_path / "file", 1000) == ([ROW], METADATA)
    killer.join(10)


def test_two_readers_that_were_killed_leave_the_file_to_another_validator(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(write_rollouts([ROW], METADATA))
    killer = kill_readers(tmp_path / "file", whole, times=2)
    with pytest.raises(ReaderLost, match=r"exit -9"):
        parse_file(tmp_path / "file", 1000)
    killer.join(10)
    assert parse_file(tmp_path / "file", 1000) == ([ROW], METADATA)


READER = """
import json, re, sys
from pathlib import Path
from shoal.contracts.rollouts import BadRollouts
from shoal.validation.parsing import parse_file

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

if __name__ == "__main__":
    before = peak()
    rows, _ = parse_file(Path(sys.argv[1]), int(sys.argv[2]))
    tokens = sum(len(row.completion_tokens) for row in rows)
    print(json.dumps({"tokens": tokens, "grown": peak() - before}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A file whose rows have as little in common as those of a policy, and its tokens."""
    count, rows = 20_000, 12
    random = np.random.default_rng(0)
    row = replace(
        ROW,
        completion_tokens=random.integers(0, 150_000, count).tolist(),
        completion_logprobs=(-random.exponential(1.0, count)).astype(np.float32).tolist(),
        completion_mask=[True] * count,
        proofs=random.bytes(count // 32 * 258),
    )
    path = tmp_path_factory.mktemp("large") / "file"
    path.write_bytes(write_rollouts([row] * rows, METADATA))
    return path, rows * count


@pytest.mark.parametrize("most_tokens", [64 * 32_768, 15_000_000])
def test_a_large_file_is_read_whatever_the_limit_above_it(large: tuple[Path, int], most_tokens: int) -> None:
    # The first is the default recipe's. A reader of all rows at once, with Arrow's own allocator, found no room under its limit.
    rows, metadata = parse_file(large[0], most_tokens, 32_768)
    assert sum(len(row.completion_tokens) for row in rows) == large[1]
    assert metadata == METADATA


def test_readers_do_not_reserve_addresses_that_their_limit_counts() -> None:
    asked = "__import__('pyarrow').default_memory_pool().backend_name"
    with parsing._PROCESSES.Pool(1) as pool:
        assert pool.apply_async(eval, (asked,)).get(timeout=60) == "system"


def test_a_reader_imports_nothing_that_its_server_has_not(large: tuple[Path, int]) -> None:
    """It would do so anew for each file: pandas, which pyarrow asks for when it is given a value of Python's, took longer than the reading."""
    script = (
        "import sys; from shoal.validation import parsing; before = set(sys.modules); "
        "_, batches = parsing.read_batches(open(sys.argv[1], 'rb').read(), parsing.FileLimits(10**6, 10**6, 100)); "
        "print(sum(len(rows) for rows in batches), sorted(set(sys.modules) - before))"
    )
    read = subprocess.run(
        [sys.executable, "-c", script, large[0]], capture_output=True, text=True, timeout=60, check=True
    )
    assert read.stdout == "12 []\n"


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "completion_mask"])
def test_a_list_that_every_row_lacks_is_refused_by_name(tmp_path: Path, name: str) -> None:
    metadata = {f"shoal.{name}": value for name, value in asdict(METADATA).items() if value is not None}
    schema = pa.schema([each.with_nullable(True) for each in ROLLOUT_SCHEMA], metadata)
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([asdict(ROW) | {name: None}] * 2, schema), sink)
    assert refusal(tmp_path, sink.getvalue()) == f"row 0: {name} is null"


def test_rows_are_read_within_the_memory_of_the_longest_and_not_of_all(large: tuple[Path, int]) -> None:
    path, tokens = large
    assert reading_memory(tokens, 20_002) < BASE_MEMORY_BYTES + 25_000_000
    assert len(parse_file(path, tokens + 24, 20_002)[0]) == 12


def test_a_reader_has_time_for_what_it_may_have_to_read(tmp_path: Path) -> None:
    assert reading_seconds(1000) == reading_seconds(2_000_000) == 60.0
    assert reading_seconds(10_000_000) == 5 * reading_seconds(2_000_000)
    path = tmp_path / "file"
    os.mkfifo(path)
    said: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "WORD_SECONDS", 0.2)
        with pytest.raises(ReaderLost, match=r"took more than 1 s"):
            parse_file(path, 1000, deadline_seconds=1.0, progress=lambda: said.append(time.monotonic()))
    assert len(said) >= 2, "progress is told while a reader may take its time"


def test_reading_a_large_file_takes_memory_in_proportion_to_its_tokens(large: tuple[Path, int], tmp_path: Path) -> None:
    path, tokens = large
    script = tmp_path / "reader.py"
    script.write_text(READER)
    done = subprocess.run(
        [sys.executable, str(script), str(path), str(tokens + 100)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens"] == tokens
    assert 0 < found["grown"] < 150 * tokens
