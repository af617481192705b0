"""The processes of a joined machine: `fetch` and `worker`, started for the node's assignment, restarted with pauses, logged, and always ended.

The
run chooses the kind of work, never a command: the programs are those of this machine's installation. Exit code 0 is success: no restart. Called by
the agent (`protocol/agent.Work`) on a machine without Kubernetes.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from shoal import accelerators
from shoal.contracts.machine import OWNERS_CHOICES
from shoal.contracts.protocol import LEAVE_SECONDS, MAX_LOG_CHARACTERS, Assignment
from shoal.contracts.run import PartStatus
from shoal.retries import doubled
from shoal.telemetry import get_logger
from shoal_operator.local.processes import ProcessTable, group_alive, signal_group

COMMANDS: dict[str, dict[str, list[str]]] = {
    "rollouts": {
        "fetch": [sys.executable, "-m", "shoal.broadcast.fetch"],
        "worker": [sys.executable, "-m", "shoal.inference"],
    }
}
"""By kind of assignment, then by name of the process."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
HEALTHY_AFTER_SECONDS = 60.0
"""A process that ran this long had a good start: the pause before the next one is short again."""
KILL_AFTER_SECONDS = LEAVE_SECONDS + 5.0
MAX_LOG_BYTES = 32 << 20
"""A log above this is cut to its newer half."""

PASSED_ON = (
    *("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME"),
    *OWNERS_CHOICES,
    accelerators.COUNT,
)
PASSED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "VLLM_", "TORCH", "TRITON_", "HF_HOME")
"""Variables of the owner's environment that processes get: nothing that might be somebody's password."""


def restart_pause(quick_failures: int) -> float:
    """Seconds before the next start after this number of failures in a row, none of which ran for `HEALTHY_AFTER_SECONDS`."""
    return doubled(quick_failures - 1, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


def environment(given: Mapping[str, str], home: Path, bind: str, role: str, pod: str) -> dict[str, str]:
    """The environment of a process, as a container of a pool's pod has it."""
    kept = {name: value for name, value in given.items() if name in PASSED_ON or name.startswith(PASSED_PREFIXES)}
    return {**kept, "SHOAL_HOME": str(home), "SHOAL_BIND": bind, "SHOAL_ROLE": role, "SHOAL_POD": pod}


@dataclass
class NodeProcess:
    """One process and its successors."""

    name: str
    command: Sequence[str]
    process: Popen[bytes] | None = None
    started: float = 0.0  # monotonic
    next_start: float = 0.0
    quick_failures: int = 0
    restarts: int = 0
    last_exit: int | None = None
    finished: bool = False
    asked_to_end: float | None = None
    note: str = ""


class Processes:
    """`agent.Work` with processes of this machine."""

    def __init__(
        self,
        home: Path,
        bind: str,
        pod: str,
        commands: Mapping[str, Mapping[str, Sequence[str]]] = COMMANDS,
    ) -> None:
        self._home = home
        self._bind = bind
        self._pod = pod
        self._commands = commands
        self._table = ProcessTable(home / "run" / "processes")
        self._table.stop_all(grace_seconds=5.0)  # of an agent before this one that was killed
        self._parts: dict[str, NodeProcess] = {}
        self._kind: str | None = None
        self._restarts = 0
        self._lock = threading.RLock()
        self._ending = False

    def follow(self, assignment: Assignment | None) -> None:
        with self._lock:
            if self._ending:
                return
            now = time.monotonic()
            self._set_kind(assignment.kind if assignment is not None else None)
            if assignment is not None and assignment.restarts > self._restarts:
                if self._restarts or self._running():
                    get_logger().info("an admin asked for a restart")
                    self._restart(now)
                self._restarts = assignment.restarts
            for part in self._parts.values():
                self._advance(part, now)
            over = [name for name, part in self._parts.items() if part.finished and part.process is None]
            for name in over if self._kind is None else []:
                del self._parts[name]

    def restarts(self) -> int | None:
        return None  # `follow` has seen to it

    def parts(self) -> list[PartStatus]:
        with self._lock:
            return [
                PartStatus(
                    name=part.name,
                    state="running" if part.process is not None else "finished" if part.finished else "waiting",
                    pid=part.process.pid if part.process is not None else None,
                    restarts=part.restarts,
                    last_exit=part.last_exit,
                    note=part.note,
                )
                for part in self._parts.values()
            ]

    def logs(self) -> dict[str, str]:
        return {name: tail(path) for name, path in self._log_files().items()}

    def ask_to_end(self) -> None:
        with self._lock:
            self._ending = True
            for part in self._parts.values():
                if part.process is not None:
                    ask(part.process)

    def end(self) -> None:
        """End every process; those that ignore the signal are killed after `KILL_AFTER_SECONDS`."""
        self.ask_to_end()
        processes = [part.process for part in self._parts.values() if part.process is not None]
        ends = time.monotonic() + KILL_AFTER_SECONDS
        while time.monotonic() < ends and not all(has_ended(process) for process in processes):
            time.sleep(0.05)
        self._table.stop_all(grace_seconds=0.0)
        for process in processes:
            process.wait(timeout=10.0)

    def _log_files(self) -> dict[str, Path]:
        names = {name for commands in self._commands.values() for name in commands}
        return {name: path for name in sorted(names) if (path := self._home / "log" / f"{name}.log").is_file()}

    def _running(self) -> bool:
        return any(part.process is not None for part in self._parts.values())

    def _set_kind(self, kind: str | None) -> None:
        if kind == self._kind:
            return
        self._kind = kind
        get_logger().info("assignment", kind=kind or "none")
        for part in self._parts.values():
            part.finished = True
        if kind is not None:
            for name, command in self._commands.get(kind, {}).items():
                held = self._parts.get(name)
                if held is not None and held.process is not None:
                    held.finished = False
                else:
                    self._parts[name] = NodeProcess(name, command)

    def _restart(self, now: float) -> None:
        for part in self._parts.values():
            part.finished, part.quick_failures, part.next_start = False, 0, now
            if part.process is not None and part.asked_to_end is None:
                part.asked_to_end = now
                ask(part.process)

    def _advance(self, part: NodeProcess, now: float) -> None:
        if part.process is None:
            if not part.finished and now >= part.next_start:
                self._start(part, now)
            return
        if has_ended(part.process):
            # What it started may live and hold its port. Its number is its own until it is waited for, which therefore comes last.
            signal_group(part.process.pid, signal.SIGKILL)
            if not group_alive(part.process.pid):
                self._ended(part, part.process.wait(), now)
        elif part.finished and part.asked_to_end is None:
            part.asked_to_end = now
            ask(part.process)
        elif part.asked_to_end is not None and now - part.asked_to_end > KILL_AFTER_SECONDS:
            signal_group(part.process.pid, signal.SIGKILL)
        else:
            trim(self._home / "log" / f"{part.name}.log")

    def _start(self, part: NodeProcess, now: float) -> None:
        try:
            part.process = self._table.spawn(
                part.name,
                part.command,
                environment=environment(os.environ, self._home, self._bind, part.name, self._pod),
                cwd=self._home,
                log=self._home / "log" / f"{part.name}.log",
            )
        except OSError as error:
            part.quick_failures += 1
            part.next_start = now + restart_pause(part.quick_failures)
            part.note = f"cannot start: {error.strerror}"
            return
        part.started, part.asked_to_end, part.note = now, None, ""
        get_logger().info("process started", name=part.name, pid=part.process.pid)

    def _ended(self, part: NodeProcess, code: int, now: float) -> None:
        assert part.process is not None
        self._table.forget(part.process.pid)
        part.process, part.last_exit = None, code
        said = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        get_logger().info("process ended", name=part.name, how=said)
        if part.finished:
            part.note = said
            return
        if part.asked_to_end is not None:  # for a restart
            part.restarts += 1
            part.next_start = now
            return
        if code == 0:
            part.finished, part.note = True, "done (exit code 0)"
            return
        part.quick_failures = 1 if now - part.started >= HEALTHY_AFTER_SECONDS else part.quick_failures + 1
        part.restarts += 1
        pause = restart_pause(part.quick_failures)
        part.next_start = now + pause
        part.note = f"{said}; restarting in {pause:.0f} s; its output is in log/{part.name}.log"


def has_ended(process: Popen[bytes]) -> bool:
    """Whether a process has ended. It is not waited for here (as `poll` does): until then no other process or session can have its number."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def ask(process: Popen[bytes]) -> None:
    """Ask a process to end, without waiting for one that has (as `send_signal` does)."""
    if process.returncode is None:
        os.kill(process.pid, signal.SIGTERM)


def tail(path: Path, characters: int = MAX_LOG_CHARACTERS) -> str:
    """The newest characters of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - characters))
            return file.read(characters).decode(errors="replace")[-characters:]
    except OSError:
        return ""


def trim(path: Path) -> None:
    """Cut a log that became too long. Its process holds it open for appending, so it is cut in place."""
    try:
        if path.stat().st_size <= MAX_LOG_BYTES:
            return
        with path.open("r+b") as file:
            file.seek(-MAX_LOG_BYTES // 2, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.truncate(0)
            file.write(kept.split(b"\n", 1)[-1])
    except OSError:
        return
