"""The journals of this worker's leases, a file each in `tmp/`. A thread of their own writes them, so that decoding waits for no disk.

In: leases as they begin, go on as a rest and end; what their rows have more, once a second. Out: files that `journal` reads, for the process that
comes next. A file goes when its lease is handed in or given up. A full disk, or more than `MOST_BYTES`, ends the journal of this process, and
is told once: what cannot be kept is drawn again. Called by `worker` and `generation`.
"""

import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from shoal.contracts.protocol import Lease
from shoal.contracts.run import PublicRun
from shoal.inference.batch import Row, RunningLease
from shoal.inference.beside import Beside
from shoal.inference.completions import Completion
from shoal.inference.journal import Heading, Recovered, heading_line, recover, row_line, tried_line
from shoal.installed import installed
from shoal.telemetry import get_logger
from shoal.toploc.codec import CHUNK_TOKENS, PROOF_BYTES

EVERY_SECONDS = 1.0
MOST_BYTES = 1 << 30
"""Of all journals: 64 rows of 30,720 tokens take 45 MB, and a worker has four leases at most."""
PUT_AWAY = "journal.put-away"
"""The newest journal that a process went on with and that brought nothing. It is for people to look at."""

Line = tuple[int, int, Completion]
"""Seed, first token, and what is new."""


@dataclass(frozen=True)
class LeftJournal:
    """A journal of a process before this one."""

    path: Path
    said: Recovered


def why_not(public: PublicRun, has_tools: bool) -> str | None:
    """Why rows of this run are not kept, or None: what they need besides tokens is not in a journal."""
    if public.several_versions:
        return "rows may be of several versions"
    if public.rows_each > 1:
        return "rows have continuations"
    if public.routes is not None:
        return "rows have routes"
    return "rows call tools" if has_tools else None


class Journal:
    """Leases whose rows are kept. Methods are called by the decoding thread; `go_on` and `end` by others too."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.on = True
        self._folder, self._most_bytes = folder, most_bytes
        self._beside = Beside("journal", lambda: None)
        self._kept: set[RunningLease] = set()
        self._lines: defaultdict[RunningLease, list[Line]] = defaultdict(list)
        self._flushed = 0.0
        self._files: dict[RunningLease, tuple[Path, Heading]] = {}  # the writing thread's, as is the next
        self._bytes = 0

    def left(self) -> list[LeftJournal]:
        """What a process before this one left, each marked as tried from now on. What cannot be used is gone afterwards."""
        found = []
        for path in sorted(self._folder.glob("*.journal")):
            try:
                said = recover(path.read_bytes()) if path.stat().st_size <= self._most_bytes else None
                if said is None or said.tried:
                    get_logger().warning("journal put away", file=path.name, nothing_in_it=said is None)
                    path.replace(self._folder / PUT_AWAY)
                elif said.heading.software != installed().version or not said.rows:
                    path.unlink()
                else:
                    _append(path, tried_line())
                    found.append(LeftJournal(path, said))
            except OSError as error:  # it could not be marked: a full disk
                get_logger().warning("journal not used", file=path.name, reason=str(error))
                path.unlink(missing_ok=True)
        return found

    def begin(self, lease: RunningLease, path: Path | None = None) -> None:
        """Keep this lease's rows from now on, if they are plain; `path`: in a file that has rows of it."""
        given, shown = lease.given, lease.given.shown
        if not self.on or shown is None or why_not(given.public, given.tools is not None) is not None:
            return
        self._kept.add(lease)
        heading = Heading(
            given.lease.lease, shown, given.policy.version, given.policy.manifest.sha256, installed().version
        )
        to = path or self._folder / f"{given.lease.lease}.journal"
        self._beside.put(lambda: self._head(lease, to, heading))

    def has(self, lease: RunningLease) -> bool:
        """Whether its rows are kept."""
        return self.on and lease in self._kept

    def due(self, now: float) -> bool:
        """Whether to ask rows for what is new. While the disk is slower than this it is not asked."""
        return self.on and bool(self._kept) and now - self._flushed >= EVERY_SECONDS and self._beside.idle

    def add(self, row: Row, new: Completion) -> None:
        """A row has these tokens more."""
        if self.has(row.of):
            self._lines[row.of].append((row.episode.row.request.seed, row.kept, new))
            row.kept += len(new.tokens)

    def whole(self, row: Row, made: Completion) -> None:
        """A row is whole; what is not in its file yet is added."""
        first = row.kept
        if first < len(made.tokens):
            proofs = made.proofs[first // CHUNK_TOKENS * PROOF_BYTES :]
            self.add(row, Completion(made.tokens[first:], made.logprobs[first:], made.finish_reason, proofs))

    def flush(self, now: float) -> None:
        """Have what was added written."""
        self._flushed = now
        lines, self._lines = self._lines, defaultdict(list)
        if lines:
            self._beside.put(lambda: self._write(lines))

    def go_on(self, lease: RunningLease, rest: Lease) -> None:
        """What is left of a lease has this name from now on."""
        self._beside.put(lambda: self._rename(lease, rest.lease))

    def end(self, lease: RunningLease) -> None:
        """Nothing more comes of this lease: its file is handed in, or it is given up."""
        self._kept.discard(lease)
        self._beside.put(lambda: self._remove(lease))

    def settle(self, seconds: float) -> None:
        """Wait until all is written, for this long at most."""
        done = threading.Event()
        self._beside.put(done.set)
        done.wait(max(0.0, seconds))

    def _head(self, lease: RunningLease, path: Path, heading: Heading) -> None:
        if self.on:
            if lease not in self._files and path.exists():
                self._bytes += path.stat().st_size
            self._files[lease] = path, heading
            self._append(path, heading_line(heading))

    def _rename(self, lease: RunningLease, name: str) -> None:
        if lease in self._files:
            path, before = self._files[lease]
            self._head(lease, path, Heading(name, before.step, before.version, before.weights_digest, before.software))

    def _write(self, lines: dict[RunningLease, list[Line]]) -> None:
        for lease, new in lines.items():
            if lease in self._files:
                self._append(self._files[lease][0], b"".join(row_line(*each) for each in new))

    def _append(self, path: Path, data: bytes) -> None:
        try:
            self._bytes += len(data)
            if self._bytes > self._most_bytes:
                raise OSError(f"journals have more than {self._most_bytes} bytes")
            _append(path, data)
        except OSError as error:
            self.on = False
            get_logger().warning("rows are not kept for the process that comes next", reason=str(error))
            for lease in list(self._files):
                self._remove(lease)

    def _remove(self, lease: RunningLease) -> None:
        if lease in self._files:
            path = self._files.pop(lease)[0]
            try:
                self._bytes -= path.stat().st_size
                path.unlink()
            except OSError as error:
                get_logger().debug("journal not removed", file=path.name, reason=str(error))


def _append(path: Path, data: bytes) -> None:
    """Others may write to the folder: no link is followed."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab") as file:
        file.write(data)
