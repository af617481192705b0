"""Processes that are ours beyond doubt: started in a session of their own, recorded with pid and start time, killed as a group.

A pid alone may belong to somebody else by the time it is used; pid and start time (from /proc) never do. Records lie in the run's folder, so that
whoever comes after a crash (the guardian, `shoal down`, the next `shoal up`) finds exactly what is left over.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class ProcessRecord:
    """One started process; it leads a process group of the same number."""

    pid: int
    start_ticks: int
    name: str


def start_ticks(pid: int) -> int | None:
    """When a process started (clock ticks since boot), or None when there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


class ProcessTable:
    """The recorded processes of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def spawn(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process that writes to `log` (appended); raises OSError when it cannot be started."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = self._begin(command, environment, cwd, output)
        ticks = start_ticks(process.pid)
        try:
            if ticks is not None:
                self._write(ProcessRecord(process.pid, ticks, name))
        except OSError:  # a full disk: without a record nobody would end it
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process

    def _begin(
        self, command: Sequence[str], environment: Mapping[str, str], cwd: Path, output: BinaryIO
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )

    def forget(self, pid: int) -> None:
        (self._folder / f"{pid}.json").unlink(missing_ok=True)

    def records(self) -> list[ProcessRecord]:
        """Everything recorded, running or not."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(ValueError, TypeError, FileNotFoundError):
                found.append(ProcessRecord(**json.loads(path.read_text())))
        return found

    def stop_all(self, grace_seconds: float) -> list[str]:
        """Stop every recorded process group: SIGTERM, then SIGKILL after the grace period. Returns the names of those that had to be stopped."""
        ours = [record for record in self.records() if start_ticks(record.pid) == record.start_ticks]
        for record in ours:
            signal_group(record.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and any(group_alive(record.pid) for record in ours):
            time.sleep(POLL_SECONDS)
        for record in self.records():
            # A leader that is gone may have left children (nginx workers after kill -9 of their master): a session of its own is
            # known by its number as long as any member lives, because the kernel does not reuse a pid that is still a session.
            if start_ticks(record.pid) in (None, record.start_ticks):
                signal_group(record.pid, signal.SIGKILL)
            self.forget(record.pid)
        return [record.name for record in ours]

    def _write(self, record: ProcessRecord) -> None:
        path = self._folder / f"{record.pid}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(record)))
        partial.replace(path)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal every process of the group that `leader` leads or led, if it is a session of ours."""
    for pid in _members(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def group_alive(leader: int) -> bool:
    return bool(_members(leader))


def _members(session: int) -> list[int]:
    """Processes (no zombies) of a session, from /proc: a group signal would miss children that changed their group."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(entry))
    return found
