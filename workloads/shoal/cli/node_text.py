"""A joined machine in words: what it has, and what its agent is doing. Pure except for `Teller`, which reads the agent's `status.json`.

Text from the run is escaped before it is printed.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from shoal.contracts.protocol import Hardware
from shoal.contracts.run import AgentStatus
from shoal.text import plain

LOOK_SECONDS = 0.5
STALE_SECONDS = 30.0
"""`status.json` is written every ten seconds: an older one is from an agent that has ended."""
GIB = 1 << 30


def machine_line(found: Hardware) -> str:
    """The hardware of this machine."""
    memory = f", {found.gpu_memory_bytes / GIB:.1f} GiB each" if found.gpu_memory_bytes is not None else ""
    gpus = f"{found.gpus} GPUs ({found.gpu_type or 'unknown kind'}{memory})" if found.gpus else "no GPU"
    uplink = f"uplink of {found.uplink_mbps:g} Mbit/s" if found.uplink_mbps is not None else "uplink not measured"
    return (
        f"this machine: {found.cpus} cores, {found.memory_bytes / GIB:.1f} GiB memory, "
        f"{found.disk_free_bytes / GIB:.1f} GiB free disk, {gpus}, {uplink}"
    )


def status_lines(status: AgentStatus, now_unix: float) -> list[str]:
    """`shoal node status`."""
    age = now_unix - status.written_unix
    beat = status.last_heartbeat_unix
    lines = [
        f"run        {status.run}, pool {status.pool}",
        f"node       {status.node}",
        f"state      {status.state}"
        + (f" (reported {age:.0f} s ago: the agent is not running)" if age > STALE_SECONDS else ""),
        f"waits for  {plain(status.waits_for, 1000)}" if status.waits_for else "waits for  nothing",
        f"heartbeat  {f'{now_unix - beat:.0f} s ago' if beat is not None else 'no answer yet'}",
        f"work       {status.assignment.kind if status.assignment is not None else 'none assigned'}",
        f"weights    version {_version(status.held_version)} here, {_version(status.latest_version)} is the newest",
        f"files      {status.files_accepted} accepted, {status.files_rejected} rejected",
    ]
    if status.owner:
        lines.append(f"owner      {plain(status.owner, 200)}")
    for part in status.parts:
        pid = f", pid {part.pid}" if part.pid is not None else ""
        note = f": {plain(part.note, 500)}" if part.note else ""
        lines.append(f"process    {part.name} {part.state}{pid}, {part.restarts} restarts{note}")
    return lines


def changes(before: AgentStatus | None, now: AgentStatus, told_version: int = -1) -> list[str]:
    """Lines of progress for the changes between two statuses; `told_version` is the newest version already reported as downloaded."""
    lines = []
    held = max(told_version, -1 if before is None or before.held_version is None else before.held_version)
    if before is None or before.state != now.state:
        lines.append(f"state {now.state}")
    if now.waits_for and (before is None or before.waits_for != now.waits_for):
        lines.append(f"waits for {plain(now.waits_for, 500)}")
    if now.owner != (before.owner if before is not None else None):
        lines.append(plain(now.owner or "its owner lets it work", 200))
    # Files come and go while a version is checked or replaced: what is told is news only when it is newer.
    if now.held_version is not None and now.held_version > held:
        lines.append(f"downloaded the weights of version {now.held_version}")
    known = {part.name: part for part in before.parts} if before is not None else {}
    for part in now.parts:
        if part.name not in known or (known[part.name].state, known[part.name].note) != (part.state, part.note):
            lines.append(f"{part.name} {part.state}" + (f": {plain(part.note, 500)}" if part.note else ""))
    judged = (before.files_accepted, before.files_rejected) if before is not None else (0, 0)
    if (now.files_accepted, now.files_rejected) != judged:
        lines.append(f"files: {now.files_accepted} accepted, {now.files_rejected} rejected")
    return lines


def read_status(path: Path) -> AgentStatus | None:
    """`status.json`, or None while there is none."""
    try:
        return AgentStatus.from_json(path.read_bytes())
    except (OSError, ValueError):
        return None


class Teller:
    """Prints changes until it is stopped."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._before: AgentStatus | None = None
        self._told_version = -1

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_SECONDS):
            self.look()
        self.look()

    def look(self) -> None:
        now = read_status(self._path)
        if now is None:
            return
        for line in changes(self._before, now, self._told_version):
            self._say(f"{time.strftime('%H:%M:%S')} {line}")
        self._before = now
        if now.held_version is not None:
            self._told_version = max(self._told_version, now.held_version)


def _version(number: int | None) -> str:
    return "none" if number is None else str(number)
