"""Processes that outlive whoever started them, and are ended by their own recorded pid.

A record names pid and start time (in ticks since boot), so that a pid that was given to somebody else is never signalled. `Daemon.start` when it runs
already does nothing; `stop` when it does not run does nothing.
"""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.nodes.layout import SYSTEM_PATH

STOP_SECONDS = 10.0


def started_at(pid: int) -> int | None:
    """When the process began, in ticks since boot; None when there is none, or only what is left of one (a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


@dataclass(frozen=True)
class Daemon:
    """One program under a name. `records` holds `<name>.json`, `logs` its `<name>.log`."""

    name: str
    records: Path
    logs: Path

    def start(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        """Start it unless it runs. Nothing of this environment goes along but what is named: no proxies, no credentials."""
        if self.pid is not None:
            return
        self.records.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{self.name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env={"PATH": SYSTEM_PATH, "HOME": "/", **(environment or {})},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _record(self._path, process.pid)

    @property
    def pid(self) -> int | None:
        """Of the running process, or None."""
        try:
            record = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return int(record["pid"]) if started_at(record["pid"]) == record["started"] else None

    @property
    def has_ended(self) -> bool:
        """Whether it was started, not stopped, and runs no more."""
        return self._path.exists() and self.pid is None

    def signal(self, number: int) -> None:
        """Send a signal if it runs."""
        if (pid := self.pid) is not None:
            os.kill(pid, number)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End it in order, or at once when it has not ended after `seconds`."""
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, STOP_SECONDS)):
            self.signal(number)
            end = time.monotonic() + patience
            while self.pid is not None and time.monotonic() < end:
                time.sleep(0.05)
            if self.pid is None:
                break
        else:
            raise RuntimeError(f"{self.name} (pid {self.pid}) does not end")
        self._path.unlink(missing_ok=True)

    def tail(self, characters: int = 2000) -> str:
        """The end of its log."""
        try:
            return (self.logs / f"{self.name}.log").read_text(errors="replace")[-characters:]
        except OSError:
            return ""

    @property
    def _path(self) -> Path:
        return self.records / f"{self.name}.json"


def _record(path: Path, pid: int) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"pid": pid, "started": started_at(pid)}))
    partial.rename(path)
