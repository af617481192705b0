"""Judges of texts in processes that can be killed: questions and replies as JSON lines, each question bounded in CPU time.

In: a module that is run as a process, and questions, from any thread. Out: the reply, or `NoReply` when the process took too long, needed too much
memory or ended, which is nobody's zero. The process writes `ready` and then one line a question; `lock_in` is for it to call before the first.
Called by `math.judge` and `harness.judge`.
"""

import contextlib
import json
import os
import queue
import resource
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.rewards.cpu_time import Took as Took
from shoal.rewards.cpu_time import cpu_seconds
from shoal.rewards.parent import ParentLine, ParentRefused, line
from shoal.rewards.sandbox.inside import lockdown

QUESTION_SECONDS = 5.0
"""Of CPU time. What takes longer is undecided on every machine, or on some: a row that is left out, no zero."""
MOST_WALLS = 8
"""A machine that gives a worker less than an eighth of a core for this long makes the question undecided."""
START_SECONDS = 120.0
"""The packages that judge take 1 to 3 s to load on an idle machine."""
QUESTIONS_A_WORKER = 5000
"""Then a fresh one: caches grow."""
TRIES = 2
MEMORY_BYTES = 2 << 30
"""Address space of a worker. sympy with its parser takes 0.4 GB of it; 9^9^9 has 370 million digits and does not fit."""


@dataclass(frozen=True)
class JudgeWorker:
    """The part that runs as a process: the module, its name in messages, and what to look for when it does not start."""

    module: str
    name: str
    hint: str


@dataclass(frozen=True)
class NoReply:
    """There is no judgement; `reason` says why, and is empty when the time was over."""

    reason: str = ""


class WorkerFailed(RuntimeError):
    """A worker process did not start or ended by itself."""


class _Process:
    """One process of a worker; `ask` may be called until it returns nothing."""

    def __init__(self, worker: JudgeWorker) -> None:
        self._worker = worker
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(import_paths()),
            "PYTHONHASHSEED": "0",  # sympy orders terms by hash in places
            "OMP_NUM_THREADS": "1",
            "LANG": "C.UTF-8",
        }
        self._process = subprocess.Popen(
            # -P: without the folder that it is started in, which has the node's key.
            [sys.executable, "-P", "-m", worker.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self._ready = False
        self._said = b""
        self._asked = 0
        self._loaded: set[str] = set()

    @property
    def worn(self) -> bool:
        return self._asked >= QUESTIONS_A_WORKER

    def ask(self, question: object, seconds: float, took: Took, loads: str | None = None) -> Any:
        """The reply, or None when there was none in time. WorkerFailed when the process is gone.

        `loads`: a question that must come first, once a process; it has the time of a start, which `took` does not count.
        """
        if not self._ready:
            if self._line(time.monotonic() + START_SECONDS) != b"ready":
                raise WorkerFailed(f"{self._worker.name} was not up after {START_SECONDS:.0f} s; {self._worker.hint}")
            self._ready = True
        if loads is not None and loads not in self._loaded:
            if self._reply(loads, START_SECONDS) is None:
                return None
            self._loaded.add(loads)
        self._asked += 1
        with took.counting(self._process.pid):
            return self._reply(question, seconds)

    def _reply(self, question: object, seconds: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError as error:
            raise WorkerFailed(f"{self._worker.name} ended by itself") from error
        began, had = time.monotonic(), cpu_seconds(self._process.pid)
        wait = seconds
        while (line := self._line(time.monotonic() + wait)) is None:
            wait = seconds - (cpu_seconds(self._process.pid) - had)
            if wait <= 0.1 * seconds or time.monotonic() >= began + MOST_WALLS * seconds:
                return None
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _line(self, until: float) -> bytes | None:
        """One line of the worker, None at the deadline. WorkerFailed at its end."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not self._said.endswith(b"\n"):
                left = until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                if not more:
                    raise WorkerFailed(f"{self._worker.name} ended by itself (code {self._process.wait()})")
                self._said += more
        line, self._said = self._said.strip(), b""
        return line


class Judges:
    """`workers` questions are answered at once (default: a core each, at most 4); one more waits to take a killed one's place."""

    def __init__(
        self, worker: JudgeWorker, workers: int | None = None, question_seconds: float = QUESTION_SECONDS
    ) -> None:
        self._worker = worker
        self._seconds = question_seconds
        self._free: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        """Places of the pool. None: its process could not be started; the question that takes it tries again."""
        self._lock = threading.Lock()
        self._closed = False
        self._all: set[_Process] = set()
        for _ in range((workers or min(4, len(os.sched_getaffinity(0)))) + 1):
            self._fill()

    def ask(self, question: object, took: Took | None = None, loads: str | None = None) -> Any | NoReply:
        """The reply to a question (JSON both); `loads` is asked before, once a process. Never raises for what the question contains.

        `took` counts the CPU time, of a question without a reply too.
        """
        took = took or Took()
        try:
            json.dumps(question)
        except (TypeError, ValueError, RecursionError) as error:  # of a data set in Parquet: dates, bytes
            return NoReply(f"the question is not JSON: {error}"[:300])
        if self._closed:
            return NoReply(f"{self._worker.name}: its pool is closed")
        failure = ""
        for _ in range(TRIES):
            process = self._free.get()
            try:
                process = process or self._started()
                reply = process.ask(question, self._seconds, took, loads)
            except (WorkerFailed, OSError) as error:  # OSError: the machine has no process or memory to spare
                failure = str(error)
                self._replace(process)
                continue
            except BaseException:  # whatever it was, the pool keeps its size: else `get` would wait forever one day
                self._replace(process)
                raise
            if reply is None:
                self._replace(process)
                return NoReply()
            if process.worn:
                self._replace(process)
            else:
                self._free.put(process)
            return reply
        return NoReply(failure)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            processes, self._all = self._all, set()
        for process in processes:
            process.close()

    def _started(self) -> _Process:
        """A new process. OSError when none is available, WorkerFailed when the pool is closed."""
        process = _Process(self._worker)
        with self._lock:
            if not self._closed:
                self._all.add(process)
                return process
        process.close()
        raise WorkerFailed(f"{self._worker.name}: its pool is closed")

    def _fill(self) -> None:
        """One more place, empty where no process can be started now: the question that takes it says why."""
        fresh = None
        try:
            fresh = self._started()
        except (WorkerFailed, OSError):
            pass
        finally:
            self._free.put(fresh)

    def _replace(self, process: _Process | None) -> None:
        """Another process in the place of one that is gone."""
        if process is None:
            self._free.put(None)
            return
        with self._lock:
            self._all.discard(process)
        try:
            process.close()
        finally:
            self._fill()


class AskedJudges:
    """Judges of mathematics for a process that is in a sandbox: its parent has them."""

    def __init__(self, line: ParentLine) -> None:
        self._line = line

    def ask(self, question: object, took: Took | None = None) -> Any | NoReply:
        """As of `Judges`. The parent counts the time (`calls`)."""
        try:
            return self._line.ask({"judge": question})
        except ParentRefused as error:
            return NoReply(str(error))

    def close(self) -> None:
        """Nothing is open."""


def judges_here(worker: JudgeWorker, workers: int | None, question_seconds: float) -> Judges | AskedJudges:
    """Judges of this process, or its parent's where it is in a sandbox."""
    parent = line()
    return Judges(worker, workers, question_seconds) if parent is None else AskedJudges(parent)


def import_paths() -> list[str]:
    """Where modules come from, without the folder that this process was started in, unless that is where ours lie."""
    here = os.getcwd()
    return [entry for entry in sys.path if entry and (entry != here or os.path.isdir(os.path.join(here, "shoal")))]


def lock_in(writable: Sequence[str] = ()) -> None:
    """Limits always; the walls where the kernel has them. An answer is a text and no program, so these are a second line of defence.

    Called by a worker once it has loaded what it needs. Modules may still be imported; files but Python's own
    and `writable`, sockets and processes are gone.
    """
    lockdown.limit(resource.RLIMIT_AS, MEMORY_BYTES)
    lockdown.limit(resource.RLIMIT_CORE, 0)
    lockdown.limit(resource.RLIMIT_FSIZE, 0)
    with contextlib.suppress(OSError):
        lockdown.no_new_privileges()
        libraries = [f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")]
        lockdown.only_these_files([*libraries, "/usr", *import_paths()], list(writable))
    with contextlib.suppress(OSError):
        lockdown.only_these_calls()
