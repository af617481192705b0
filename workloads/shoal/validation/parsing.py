"""The format check: read a stranger's Parquet file in a child process with limits on memory and time.

In: a path and the greatest size that an honest file can have. Out: rows and metadata, or `BadRollouts`, which is a
reject. A Parquet file can ask its reader for any amount of memory, and readers have had memory bugs; so the file is
read in a process that may die, and what it sends back is JSON, which cannot run anything here. Children are forked
from a server process that has imported pyarrow already: some milliseconds each.
"""

import base64
import json
import math
import multiprocessing
import resource
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from shoal.contracts.rollouts import BadRollouts, Rollout, RolloutMetadata, read_rollouts

BYTES_PER_TOKEN = 400
"""Memory of a token while it is read: Python numbers and list slots of three columns, their JSON and share of the
proofs. Half a million tokens were read within 250 bytes each."""
BASE_MEMORY_BYTES = 256 << 20
CHARACTERS_PER_TOKEN = 64
"""Longest JSON of a token's id, log-probability, mask and share of the proofs."""
DEADLINE_SECONDS = 60.0
"""Half a million tokens take 3 to 7 seconds on a busy core."""

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


def parse_file(
    path: Path, max_tokens: int, *, deadline_seconds: float = DEADLINE_SECONDS
) -> tuple[list[Rollout], RolloutMetadata]:
    """Rows and metadata of a file in which prompts and completions together have at most `max_tokens` tokens.

    Raises `BadRollouts` for a file that is not exactly Rollout Parquet v1, and for one whose reading dies, takes too
    much memory or too long. A reader that died or took too long is followed by one more: this machine may have been
    short of memory or time, and a reject for this reason is final.
    """
    try:
        return _parse(path, max_tokens, deadline_seconds)
    except _ReaderLost:
        return _parse(path, max_tokens, deadline_seconds)


class _ReaderLost(BadRollouts):
    """The reader gave no answer."""


def _parse(path: Path, max_tokens: int, deadline_seconds: float) -> tuple[list[Rollout], RolloutMetadata]:
    """Start one reader and wait for what it says."""
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    memory = BASE_MEMORY_BYTES + BYTES_PER_TOKEN * max_tokens
    child = _PROCESSES.Process(target=_read_in_child, args=(str(path), memory, sender), daemon=True)
    child.start()
    sender.close()
    try:
        if not receiver.poll(deadline_seconds):
            raise _ReaderLost(f"reading the file took more than {deadline_seconds:g} s")
        answer = json.loads(receiver.recv_bytes(maxlength=(1 << 20) + CHARACTERS_PER_TOKEN * max_tokens))
    except (EOFError, OSError) as error:  # OSError: the answer is longer than any honest file's
        child.join(5.0)
        raise _ReaderLost(
            f"reading the file failed (exit {child.exitcode}): it needs more than {memory} bytes"
        ) from error
    finally:
        child.kill()
        child.join()
        receiver.close()
    if "refused" in answer:
        raise BadRollouts(answer["refused"])
    rows = [Rollout(**(row | {"proofs": base64.b64decode(row["proofs"])})) for row in answer["rows"]]
    return rows, RolloutMetadata(**answer["metadata"])


def _read_in_child(path: str, memory_bytes: int, answers: Connection) -> None:
    """Runs in the child: read, and send JSON."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(DEADLINE_SECONDS), math.ceil(DEADLINE_SECONDS)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        rows, metadata = read_rollouts(Path(path).read_bytes())
        # `asdict` copies every token by itself, which took as long as all the rest.
        plain = [vars(row) | {"proofs": base64.b64encode(row.proofs).decode()} for row in rows]
        answer = json.dumps({"rows": plain, "metadata": asdict(metadata)})
    except BadRollouts as error:
        answer = json.dumps({"refused": str(error)[:1000]})
    except MemoryError:
        answer = json.dumps({"refused": f"reading the file needs more than {memory_bytes} bytes of memory"})
    answers.send_bytes(answer.encode())
