"""One container as a process: start, probes, restarts with growing pauses, a log file.

Its pod calls `RunningContainer.tick(now)` a few times a second; nothing here blocks. Restart pauses are shorter than a kubelet's (at once, then
1 s doubling to 30 s, forgotten after a minute of health); a kubelet starts at 10 s and ends at 5 min: a person is watching this machine, and no
registry or node is hurt by a quick retry.
"""

import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.retries import doubled
from shoal_operator.local.expand import command_line
from shoal_operator.local.probes import Probe, ProbeState, check, parse_probe
from shoal_operator.local.processes import ProcessTable, group_alive, signal_group

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_AFTER_SECONDS = 60.0
MAX_LOG_BYTES = 32 << 20
"""A log above this is cut to its newer half."""

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def restart_pause(quick_failures: int) -> float:
    """Seconds before the next start, after this many ends in a row without a minute of health between them."""
    if quick_failures <= 1:
        return 0.0
    return doubled(quick_failures - 2, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True)
class ContainerView:
    """A container's visible state: state is one of Waiting, Running, Exited."""

    name: str
    state: str
    ready: bool
    restarts: int
    last_exit: int | None
    message: str
    pid: int | None


class RunningContainer:
    """A process of a pod and its successors."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        pod: str,
        address: str,
        home: Path,
        environment: Mapping[str, str],
        restart_policy: str,
        log: Path,
        table: ProcessTable,
        executor: Executor,
        final_exits: frozenset[int] = frozenset(),
    ) -> None:
        self.name: str = spec["name"]
        where = f"pod {pod}, container {self.name}"
        self._where = where
        self._command = command_line(spec, environment, where)
        self._environment = environment
        self._probes: dict[str, Probe] = {}
        for kind in PROBES:
            probe = parse_probe(spec.get(kind), f"{where}, {kind}")
            if probe is not None:
                self._probes[kind] = probe
        self._address = address
        self._home = home
        self._policy = restart_policy
        self._final_exits = final_exits | {0}
        self._log = log
        self._table = table
        self._executor = executor
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_session: int | None = None
        self._started = 0.0
        self._next_start = 0.0
        self._quick_failures = 0
        self._states: dict[str, ProbeState] = {}
        self._checks: dict[str, Future[str | None]] = {}
        self.restarts = 0
        self.last_exit: int | None = None
        self.finished = False
        self._message = ""

    def tick(self, now: float) -> None:
        """Advance: start if due, notice an end, act on probes. `now` is monotonic seconds."""
        if self._process is None:
            if not self.finished and now >= self._next_start and not self._left_over():
                self._start(now)
            return
        code = self._process.poll()
        if code is not None:
            self._ended(code, now)
            return
        self._probe(now)
        self._trim_log()

    @property
    def ready(self) -> bool:
        """Running, started up, and its readiness probe (if any) passes."""
        if self._process is None or not self._started_up:
            return False
        state = self._states.get("readinessProbe")
        return state is None or state.passing

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def terminate(self) -> None:
        """Ask it to end, without a restart."""
        self.finished = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it started, without a restart."""
        self.finished = True
        if self._process is not None:
            signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._forget()

    def gone(self) -> bool:
        """Whether none of its processes runs (valid after `terminate`)."""
        if self._process is None:
            return not self._left_over()
        if self._process.poll() is None:
            return False
        signal_group(self._process.pid, signal.SIGKILL)
        if group_alive(self._process.pid):
            return False
        self.last_exit = self._process.returncode
        self._forget()
        return True

    def view(self) -> ContainerView:
        state = "Running" if self._process is not None else ("Exited" if self.finished else "Waiting")
        failing = next((probe.message for probe in self._states.values() if probe.message and not probe.passing), "")
        return ContainerView(
            self.name, state, self.ready, self.restarts, self.last_exit, self._message or failing, self.pid
        )

    @property
    def _started_up(self) -> bool:
        state = self._states.get("startupProbe")
        return state is None or state.successes > 0

    def _start(self, now: float) -> None:
        try:
            self._process = self._table.spawn(
                self._where, self._command, environment=self._environment, cwd=self._home, log=self._log
            )
        except OSError as error:
            self._message = f"cannot start {self._command[0]}: {error.strerror}"
            self._quick_failures += 1
            self._next_start = now + max(FIRST_PAUSE_SECONDS, restart_pause(self._quick_failures))
            return
        self._message = ""
        self._started = now
        self._states = {kind: ProbeState(probe, now) for kind, probe in self._probes.items()}
        self._checks = {}

    def _ended(self, code: int, now: float) -> None:
        assert self._process is not None
        self._ended_session = self._process.pid
        self._forget()
        self.last_exit = code
        self._message = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if self._policy == "Never" or (self._policy == "OnFailure" and code in self._final_exits):
            self.finished = True
            return
        self._quick_failures = 1 if now - self._started >= HEALTHY_AFTER_SECONDS else self._quick_failures + 1
        self.restarts += 1
        self._next_start = now + restart_pause(self._quick_failures)

    def _left_over(self) -> bool:
        """Whether children of the process before still live; they are killed, as they would hold its port."""
        if self._ended_session is not None:
            signal_group(self._ended_session, signal.SIGKILL)
            if group_alive(self._ended_session):
                return True
            self._ended_session = None
        return False

    def _forget(self) -> None:
        assert self._process is not None
        self._table.forget(self._process.pid)
        self._process = None
        self._states = {}

    def _probe(self, now: float) -> None:
        for kind, check_running in list(self._checks.items()):
            if check_running.done():
                self._states[kind].record(check_running.result(), now)
                del self._checks[kind]
        for kind, state in self._states.items():
            if kind != "startupProbe" and not self._started_up:
                continue
            if kind == "startupProbe" and self._started_up:
                continue
            if kind not in self._checks and now >= state.next_due:
                self._checks[kind] = self._executor.submit(check, state.probe, self._address)
        for kind in ("startupProbe", "livenessProbe"):
            deciding = self._states.get(kind)
            if deciding is not None and deciding.failing:
                self._message = f"{kind} failed: {deciding.message}"
                self._restart_unhealthy()
                return

    def _restart_unhealthy(self) -> None:
        """As a kubelet does, but without the grace period: a hanging process rarely handles signals. `_ended` sees the exit on the next tick."""
        assert self._process is not None
        signal_group(self._process.pid, signal.SIGKILL)
        self._states = {}
        self._checks = {}

    def _trim_log(self) -> None:
        try:
            if self._log.stat().st_size <= MAX_LOG_BYTES:
                return
            kept = self._log.read_bytes()[-MAX_LOG_BYTES // 2 :]
        except FileNotFoundError:
            return
        # The process holds the file open for appending, so the file is cut in place rather than renamed.
        with self._log.open("r+b") as file:
            file.truncate(0)
            file.seek(0)
            file.write(kept.split(b"\n", 1)[-1])
