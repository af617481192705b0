"""Finds the folder of a run, and keeps two `shoal up` out of one.

A run lies in `<runs-dir>/<name>/`. `RunLock` is an advisory lock (flock) on `up.lock` in it: the kernel lets go of it when its holder dies, however
it dies. The file names the holder by process id and start time, so that `shoal down` signals that process and no later one with the same number.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import InputWrong
from shoal.text import plain

LOCK_FILE = "up.lock"
METRICS_FILE = "metrics.jsonl"
LIVE_FILE = "live.json"
"""The newest snapshot of a running `shoal up`, for whoever shows the run."""
MODEL_FOLDER = "model"
LOGS_FOLDER = "logs"


def find_run(run: str | None, runs_dir: Path) -> Path:
    """The folder of run `run`: a name under `runs_dir`, a path, or without one the only run there is. Raises `InputWrong`."""
    known = sorted(path.name for path in runs_dir.iterdir() if is_run(path)) if runs_dir.is_dir() else []
    if run is None:
        if len(known) == 1:
            return runs_dir / known[0]
        what = (
            f"say which run: {', '.join(known)}"
            if known
            else f"there is no run in {runs_dir}; start one with `shoal up -f FILE`"
        )
        raise InputWrong(plain(what, 400))
    for folder in (runs_dir / run, Path(run)):
        if is_run(folder):
            return folder
    there = (
        f"known runs: {', '.join(known)}"
        if known
        else "there is none; give --runs-dir, or start one with `shoal up -f FILE`"
    )
    raise InputWrong(plain(f"no run {run!r} in {runs_dir}; {there}", 400))


def is_run(folder: Path) -> bool:
    """Whether `shoal up` has worked in this folder."""
    return (folder / LOCK_FILE).is_file()


@dataclass(frozen=True)
class Holder:
    """The `shoal up` that holds a run: process id, and its start in clock ticks since boot."""

    pid: int
    start_ticks: int


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot (field 22 of /proc/PID/stat); None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rsplit(")", 1)[1].split()[19])


def holder_of(run_dir: Path) -> Holder | None:
    """The living `shoal up` of a run, or None. Reads only: a lock that nobody holds means that there is none."""
    try:
        handle = os.open(run_dir / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            named = json.loads(os.pread(handle, 1000, 0))
            holder = Holder(int(named["pid"]), int(named["start_ticks"]))
        except (ValueError, KeyError, TypeError):
            return None
        return holder if start_ticks(holder.pid) == holder.start_ticks else None
    finally:
        os.close(handle)
    return None


def still_prepares(run_dir: Path) -> bool:
    """Whether another process's `shoal up` works here and has no orchestrator yet: it makes the base model and the task table."""
    from shoal.report.access import has_orchestrator  # loads the store's library, which most verbs do not need

    holder = holder_of(run_dir)
    return holder is not None and holder.pid != os.getpid() and not has_orchestrator(run_dir)


def no_run_yet(run_dir: Path, why: object) -> str:
    """Why a run cannot be opened; of one that is going, that it is too early."""
    if not still_prepares(run_dir):
        return plain(why, 400)
    return plain(
        f"{run_dir}: `shoal up` still makes the run's base model and task table; there is nothing to read yet. Try again"
        " when it reports that the orchestrator is ready",
        400,
    )


class RunLock:
    """Held for as long as a `shoal up` lives."""

    def __init__(self, run_dir: Path) -> None:
        """Take the lock of `run_dir`, making the folder; raises `InputWrong` when another `shoal up` has it."""
        run_dir.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(run_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            holder = holder_of(run_dir)
            who = f"process {holder.pid}" if holder else "another process"
            raise InputWrong(
                f"{run_dir} is in use by `shoal up` ({who}); stop it with `shoal down {run_dir.name}`, or give another --runs-dir"
            ) from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}).encode(), 0)

    def release(self) -> None:
        os.close(self._handle)


def elsewhere(run: str | None, prometheus: str | None = None) -> bool:
    """Whether a run is to be reported from its store alone: an S3 URL, a copy of a store, or with readings of a Prometheus."""
    if prometheus is not None or (run or "").startswith("s3://"):
        return True
    return run is not None and Path(run).is_dir() and not is_run(Path(run))
