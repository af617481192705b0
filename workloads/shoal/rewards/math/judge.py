"""Equality of mathematical answers, decided in bounded time: text and numbers here, all else in worker processes that can be killed.

In: two answers as text, from any thread. Out: a `Verdict`, or `Undecided` when sympy took too long, needed too much memory or failed, which is
nobody's zero. One judge a process (`shared_judge`). Called by `environments.math`.
"""

import atexit
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from shoal.rewards.cpu_time import cpu_seconds
from shoal.rewards.math.compare import Decided, compare

QUESTION_SECONDS = 5.0
"""Of CPU time. An honest pair takes 5 to 300 ms. What takes longer is undecided on every machine, or on some: a row that is left out, no zero."""
MOST_WALLS = 8
"""A machine that gives a worker less than an eighth of a core for so long makes the question undecided."""
START_SECONDS = 120.0
"""sympy and the grammar take 3 s to load on an idle machine."""
QUESTIONS_A_WORKER = 5000
"""Then a fresh one: sympy's caches grow."""
TRIES = 2


@dataclass(frozen=True)
class Verdict:
    equal: bool
    detail: str


@dataclass(frozen=True)
class Undecided:
    """Judging failed; `reason` says how."""

    reason: str


class WorkerFailed(RuntimeError):
    """A worker process did not start or ended by itself."""


class _Worker:
    """One process of `worker`; `ask` may be called until it returns nothing."""

    def __init__(self) -> None:
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "PYTHONHASHSEED": "0",  # sympy orders terms by hash in places
            "OMP_NUM_THREADS": "1",
            "LANG": "C.UTF-8",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal.rewards.math.worker"],
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

    @property
    def worn(self) -> bool:
        return self._asked >= QUESTIONS_A_WORKER

    def ask(self, pairs: tuple[tuple[str, str], ...], seconds: float) -> tuple[str, str] | None:
        """Verdict and detail, or None when there was none in time. WorkerFailed when the process is gone."""
        if not self._ready:
            if self._line(time.monotonic() + START_SECONDS) != b"ready":
                raise WorkerFailed(f"a math worker was not up after {START_SECONDS:.0f} s; is math-verify installed?")
            self._ready = True
        self._asked += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(pairs).encode() + b"\n")
        except BrokenPipeError as error:
            raise WorkerFailed("a math worker ended by itself") from error
        began, had = time.monotonic(), cpu_seconds(self._process.pid)
        wait = seconds
        while (line := self._line(time.monotonic() + wait)) is None:
            wait = seconds - (cpu_seconds(self._process.pid) - had)
            if wait <= 0.1 * seconds or time.monotonic() >= began + MOST_WALLS * seconds:
                return None
        verdict, detail = json.loads(line)
        return str(verdict), str(detail)

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
                    raise WorkerFailed(f"a math worker ended by itself (code {self._process.wait()})")
                self._said += more
        line, self._said = self._said.strip(), b""
        return line


class MathJudge:
    """`workers` questions are answered at once (default: a core each, at most 4); one more waits to take a killed one's place."""

    def __init__(self, workers: int | None = None, question_seconds: float = QUESTION_SECONDS) -> None:
        self._seconds = question_seconds
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._all: set[_Worker] = set()
        for _ in range((workers or min(4, len(os.sched_getaffinity(0)))) + 1):
            self._start()

    def equal(self, gold: str, answer: str) -> Verdict | Undecided:
        """Whether `answer` says the same as `gold`. Any strings are allowed; never raises for what they contain."""
        found = compare(gold, answer)
        if isinstance(found, Decided):
            return Verdict(found.equal, found.detail)
        failure = ""
        for _ in range(TRIES):
            worker = self._free.get()
            try:
                reply = worker.ask(found.pairs, self._seconds)
            except WorkerFailed as error:
                failure = str(error)
                self._replace(worker)
                continue
            if reply is None:
                self._replace(worker)
                return Undecided(f"sympy did not decide within {self._seconds:.0f} s of CPU time")
            if worker.worn:
                self._replace(worker)
            else:
                self._free.put(worker)
            return _judged(*reply)
        return Undecided(failure)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            workers, self._all = self._all, set()
        for worker in workers:
            worker.close()

    def _start(self) -> None:
        worker = _Worker()
        with self._lock:
            self._all.add(worker)
        self._free.put(worker)

    def _replace(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.close()
        if not self._closed:
            self._start()


def _judged(verdict: str, detail: str) -> Verdict | Undecided:
    """An answer that cannot be read is wrong; a gold answer that cannot be read, or an error, decides nothing."""
    if verdict in ("equal", "unequal"):
        return Verdict(verdict == "equal", detail)
    return Undecided(detail)


_shared: tuple[int, MathJudge] | None = None
_shared_lock = threading.Lock()


def shared_judge() -> MathJudge:
    """The judge of this process, made at first use."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared[0] != os.getpid():  # after a fork the parent's workers are the parent's
            judge = MathJudge()
            atexit.register(judge.close)
            _shared = (os.getpid(), judge)
        return _shared[1]
