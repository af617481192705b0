"""Is an installed environment fit for a run, and how fast is it? What `shoal env check` and `shoal env bench` do.

The environment runs in processes of its own (`probe`), twice with different hash seeds, under limits of time and memory: what hangs, dies, needs too
much or answers differently is a fault, not an accident of ours. In: a name. Out: a `EnvironmentReport`.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MEMORY_BYTES = 2 << 30
"""Resident, of the process that scores; workers and validators have the rest of their pod for the model."""
HARD_MEMORY_BYTES = 8 << 30
"""Address space: ends a process before it takes the machine with it."""
DEFAULT_SECONDS = 300.0
LOOK_MILLISECONDS = 100
HASH_SEEDS = ("1", "2")
"""An order that rests on hashes is the usual reason for two machines that do not agree."""


@dataclass(frozen=True)
class EnvironmentReport:
    """`faults` is empty when all is well; `facts` are `probe`'s."""

    name: str
    faults: tuple[str, ...]
    facts: dict[str, Any]
    peak_bytes: int


def check(name: str, count: int, seed: int, seconds: float = DEFAULT_SECONDS) -> EnvironmentReport:
    """Try `count` tasks of an environment; `seconds` is the time for each of two passes."""
    faults: list[str] = []
    passes: list[dict[str, Any]] = []
    peak = 0
    for hash_seed in HASH_SEEDS:
        facts, fault, used = _one_pass(name, count, seed, seconds, hash_seed)
        peak = max(peak, used)
        if fault is not None:
            faults.append(fault)
            break
        passes.append(facts)
        faults += [fault for fault in facts["faults"] if fault not in faults]
        if facts["faults"]:
            break
    for key, what in (("digest", "digest"), ("tasks_digest", "tasks"), ("scores_digest", "scores")):
        if len({facts.get(key) for facts in passes}) > 1:
            faults.append(
                f"two processes have different {what}: look for sets, hashes, clocks and random numbers without a seed"
            )
    if peak > MEMORY_BYTES:
        faults.append(f"scoring took {peak >> 20} MiB of memory; allowed: {MEMORY_BYTES >> 20}")
    return EnvironmentReport(name, tuple(faults), passes[0] if passes else {}, peak)


def bench(name: str, count: int, seed: int, seconds: float) -> EnvironmentReport:
    """Time `count` tasks of an environment for `seconds`, in a process of its own; `facts` are those of `probe.measured`."""
    facts, fault, peak = _one_pass(name, count, seed, seconds + DEFAULT_SECONDS, HASH_SEEDS[0], str(seconds))
    faults = (fault,) if fault is not None else ((facts["broken"],) if facts["broken"] else ())
    return EnvironmentReport(name, faults, facts, peak)


def _one_pass(
    name: str, count: int, seed: int, seconds: float, hash_seed: str, *more: str
) -> tuple[dict[str, Any], str | None, int]:
    said, complaint = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - they go with this call
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.environments.probe", name, str(count), str(seed), *more],
        stdout=said,
        stderr=complaint,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        start_new_session=True,
    )
    resource.prlimit(process.pid, resource.RLIMIT_AS, (HARD_MEMORY_BYTES, HARD_MEMORY_BYTES))
    watched = select.poll()
    ended = os.pidfd_open(process.pid)
    watched.register(ended, select.POLLIN)
    ends, in_time, peak = time.monotonic() + seconds, False, 0
    while not in_time and time.monotonic() < ends:
        peak = max(peak, _peak_bytes(process.pid))
        in_time = bool(watched.poll(LOOK_MILLISECONDS))
    os.close(ended)
    if not in_time:
        os.killpg(process.pid, signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # The kernel counts what the process was before its program was loaded too: a copy of this one.
    if used.ru_maxrss * 1024 > _peak_bytes(os.getpid()):
        peak = used.ru_maxrss * 1024
    if not in_time:
        return {}, f"{count} tasks were not scored within {seconds:.0f} s: scoring must be bounded in time", peak
    if process.returncode != 0:
        last = _text(complaint).strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return {}, f"the check failed: {last[0][:500]}", peak
    return json.loads(_text(said).splitlines()[-1]), None, peak


def _peak_bytes(pid: int) -> int:
    """Most memory that a process had resident since its program was loaded (proc(5), VmHWM); 0 for one that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
