"""The format check: read a stranger's Parquet file in a child process with limits on memory and time.

In: a path and the greatest size that an honest file can have. Out: rows and metadata, or `BadRollouts`, which is a
reject; `ReaderLost`, where no reader lived to say what is wrong, is one that another validator must find too. A Parquet
file can ask its reader for any amount of memory, and readers have had memory bugs; so the file is read in a process
that may die. What it sends back, some rows at a time, is JSON, which cannot run anything here.
The reader refuses a file with more tokens or rows than allowed before it sends any; they are counted here once more.
Children are forked from a server process that has imported pyarrow already: some milliseconds each.
"""

import base64
import json
import math
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shoal.contracts.rollouts import (
    BATCH_TOKENS,
    BadRollouts,
    FileLimits,
    Rollout,
    RolloutMetadata,
    check_segments,
    read_batches,
)

BYTES_PER_TOKEN = 60
"""Memory of a token while it is read: three columns and its share of the proofs, in the file, unpacked and in the table. Two million tokens were
read within 20 bytes each."""
ROW_BYTES_PER_TOKEN = 400
"""The same in the longest row, which is made of Python's numbers and then of JSON: half a million were read within 250 bytes each."""
TIMES_ROUTES = 4
"""The same of the routes, by their bytes a token: in the file, unpacked, in the table; and of the longest row as bytes of Python and in JSON."""
BASE_MEMORY_BYTES = 256 << 20
CHARACTERS_PER_TOKEN = 64
"""Longest JSON of a token's id, log-probability, mask and share of the proofs."""
DEADLINE_SECONDS = 60.0
"""Of the smallest files."""
SECONDS_A_TOKEN = 30e-6
"""Half a million tokens take 3 to 7 seconds on a busy core: twice that where a file may have more than two million."""
WORD_SECONDS = 10.0
"""Between two signs of progress while a reader is within its deadline."""

# For the server and its children. Arrow's other allocators reserve 1 GiB of addresses at once: of a limit a little above that, as the default
# recipe's is, next to nothing would be left for the file.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


def reading_memory(max_tokens: int, row_tokens: int, route_bytes: int = 0) -> int:
    """Bytes that the reader of a file may take beyond what it begins with: for this many tokens in all, and in its longest row. `route_bytes`: of the
    routes of a token."""
    routes = TIMES_ROUTES * route_bytes
    return BASE_MEMORY_BYTES + (BYTES_PER_TOKEN + routes) * max_tokens + (ROW_BYTES_PER_TOKEN + 2 * routes) * row_tokens


def reading_seconds(max_tokens: int) -> float:
    """How long one reader of a file that may have this many tokens has, by the clock and of a processor."""
    return max(DEADLINE_SECONDS, SECONDS_A_TOKEN * max_tokens)


def parse_file(
    path: Path,
    max_tokens: int,
    row_tokens: int | None = None,
    rows: int | None = None,
    *,
    route_bytes: int = 0,
    deadline_seconds: float | None = None,
    progress: Callable[[], None] = lambda: None,
) -> tuple[list[Rollout], RolloutMetadata]:
    """Rows and metadata of a file of at most `rows` rows (default: any number), in which prompts and completions together have at most
    `max_tokens` tokens, and each row's `row_tokens` (default: as many). `route_bytes` are allowed for the routes of a token.

    Raises `BadRollouts` for a file that is not exactly Rollout Parquet v1 or has more; for one that asks its reader for more memory than an honest
    one can; and `ReaderLost` where readers died or took longer than `deadline_seconds` (by default `reading_seconds`). One that
    died in the first half of that time is followed by one more, which has the rest.
    `progress` is called every `WORD_SECONDS` while a reader is waited for: the wait is bounded.
    """
    deadline = reading_seconds(max_tokens) if deadline_seconds is None else deadline_seconds
    # A row has a token of its prompt and one of its completion, at least.
    limits = FileLimits(max_tokens, row_tokens or max_tokens, rows or max(1, max_tokens // 2), route_bytes)
    begun = time.monotonic()
    try:
        return _parse(path, limits, deadline, progress)
    except ReaderLost:
        left = deadline - (time.monotonic() - begun)
        if left < deadline / 2:
            raise
        return _parse(path, limits, left, progress)


class ReaderLost(BadRollouts):
    """The reader gave no answer: by the file's fault, or because this machine is short of memory or time."""


class _Count:
    """The messages that a reader has sent. The reader's own count is not trusted: the file may control the reader."""

    def __init__(self, limits: FileLimits) -> None:
        self._limits = limits
        self._rows = self._tokens = 0

    def add(self, rows: Sequence[Rollout]) -> None:
        """Raises `BadRollouts` for more than the file may have."""
        for row in rows:
            length = len(row.completion_tokens)
            size = len(row.prompt_tokens) + length
            self._rows += 1
            self._tokens += size
            if size > self._limits.row_tokens or {len(row.completion_logprobs), len(row.completion_mask)} != {length}:
                raise BadRollouts("the reader sent a row that is not allowed")
            if row.segment_versions or row.segment_starts:
                check_segments(self._rows - 1, row)
            if self._rows > self._limits.rows or self._tokens > self._limits.tokens:
                raise BadRollouts("the reader sent more rows or tokens than a file may have")


def _parse(
    path: Path, limits: FileLimits, deadline_seconds: float, progress: Callable[[], None]
) -> tuple[list[Rollout], RolloutMetadata]:
    """Start one reader and wait for what it says."""
    memory = reading_memory(limits.tokens, limits.row_tokens, limits.route_bytes)
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    child = _PROCESSES.Process(target=_read_in_child, args=(str(path), limits, deadline_seconds, sender), daemon=True)
    child.start()
    sender.close()
    try:
        ends = time.monotonic() + deadline_seconds
        characters = CHARACTERS_PER_TOKEN + 2 * limits.route_bytes
        room = (1 << 20) + characters * limits.tokens
        message = (1 << 20) + 2 * characters * max(BATCH_TOKENS, limits.row_tokens)
        rows: list[Rollout] = []
        count = _Count(limits)
        metadata: RolloutMetadata | None = None
        while True:
            while not receiver.poll(max(0.0, min(WORD_SECONDS, ends - time.monotonic()))):
                if time.monotonic() >= ends:
                    raise ReaderLost(f"reading the file took more than {deadline_seconds:g} s")
                progress()
            data = receiver.recv_bytes(maxlength=min(room, message))
            room -= len(data)
            answer = json.loads(data)
            if "refused" in answer:
                raise BadRollouts(answer["refused"])
            if "metadata" in answer:
                metadata = RolloutMetadata(**answer["metadata"])
            elif metadata is not None and "rows" in answer:
                sent = [Rollout(**(row | {name: _bytes(row[name]) for name in BINARY})) for row in answer["rows"]]
                count.add(sent)
                rows += sent
            else:
                break
    except (EOFError, OSError) as error:  # OSError: the answer is longer than any honest file's
        child.join(5.0)
        raise ReaderLost(
            f"reading the file failed (exit {child.exitcode}): it needs more than {memory} bytes, or its reader was ended"
        ) from error
    finally:
        child.kill()
        child.join()
        receiver.close()
    if metadata is None:
        raise ReaderLost("reading the file gave no metadata")
    return rows, metadata


BINARY = ("proofs", "routes")


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _read_in_child(path: str, limits: FileLimits, deadline_seconds: float, answers: Connection) -> None:
    """Runs in the child: read, and send JSON."""
    memory_bytes = reading_memory(limits.tokens, limits.row_tokens, limits.route_bytes)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    seconds = math.ceil(deadline_seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        metadata, batches = read_batches(Path(path).read_bytes(), limits)
        answers.send_bytes(json.dumps({"metadata": asdict(metadata)}).encode())
        for rows in batches:
            # `asdict` copies every token by itself, which took as long as all the rest.
            plain = [vars(row) | {name: _text(getattr(row, name)) for name in BINARY} for row in rows]
            for each in plain if not rows[0].segment_versions else ():
                del each["segment_versions"], each["segment_starts"]
            answers.send_bytes(json.dumps({"rows": plain}).encode())
        answer: dict[str, Any] = {"end": True}
    except BadRollouts as error:
        answer = {"refused": str(error)[:1000]}
    except MemoryError:
        answer = {"refused": f"reading the file needs more than {memory_bytes} bytes of memory"}
    answers.send_bytes(json.dumps(answer).encode())
