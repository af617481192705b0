"""A process in a sandbox that answers questions until it is ended: frames of bytes over pipes, each bounded in length and time.

In: the module that serves inside (`inside.host` starts it), and questions, one at a time. Out: its answers, or `ServiceFailed`, after which it is
closed and another takes its place. The walls are those of a program (`isolation`), and no file can be written. Between questions all of its threads
are stopped, so that it computes only in time that counts. Called by `environments.apart`.
"""

import atexit
import marshal
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shoal.rewards.cpu_time import Took, cpu_seconds
from shoal.rewards.parent import CALL, CALL_BYTES
from shoal.rewards.sandbox.inside.guest import READY
from shoal.rewards.sandbox.isolation import (
    FIRST_UID,
    Isolation,
    SandboxPlace,
    choose,
    command,
    copy_guest,
    environment,
    readable_by_all,
)
from shoal.rewards.sandbox.pool import POOL_COUNT, POOLS_APART, trial

HOST = "from shoal.rewards.sandbox.inside.host import main; main()"
FIRST_SERVICE_UID = FIRST_UID + POOL_COUNT * POOLS_APART
"""Above the users of programs; the last is below 65534 (nobody)."""
SERVICE_UIDS = 60
START_SECONDS = 60.0
"""Python, and the walls; on an idle machine 50 ms."""
QUICK_SECONDS = 0.25
"""A process that answers sooner is not asked for its CPU time, which takes as long as a small answer."""
LOOK_SECONDS = 2.0
"""Shorter times say little, in the kernel's ticks of 10 ms."""
MOST_WALLS = 8
ABOUT_ALL = 0.9
AWAKE_SHARE = 0.03
"""As of programs (`process`): a process that had this share of the wall time computes, and a busy machine decides nothing."""
MEMORY_BYTES = 2 << 30
"""Address space of one process."""
LIMITS = {"RLIMIT_AS": MEMORY_BYTES, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 256}
MOST_THREADS = 256
"""Of all processes of one user, where that is not the machine's owner."""
CHUNK = 1 << 16


class ServiceFailed(RuntimeError):
    """No answer; the message says what the process did. It has been ended, unless it `ended_by_itself`."""

    def __init__(self, message: str, ended_by_itself: bool = False) -> None:
        super().__init__(message)
        self.ended_by_itself = ended_by_itself


@dataclass(frozen=True)
class ServedModule:
    """What runs inside: the module with `serve`, its arguments (of `marshal`'s types), and where modules are.

    `places`: top-level modules and packages. `path`: folders with further ones. All of them can be read, and nothing else of the machine's owner.
    """

    module: str
    arguments: Mapping[str, Any]
    places: Mapping[str, str]
    path: tuple[str, ...]


class Service:
    """One process. `ask` from one thread at a time, `close` always.

    NoIsolation where the machine has no walls, ServiceFailed when it does not start.
    """

    def __init__(self, served: ServedModule) -> None:
        try:
            self._begin(served)
        except OSError as error:  # of memory, processes, files or disk
            raise ServiceFailed(f"could not start a process: {error}", ended_by_itself=True) from None

    def _begin(self, served: ServedModule) -> None:
        isolation = isolation_here()
        place = SandboxPlace(
            uid=FIRST_SERVICE_UID + os.getpid() % SERVICE_UIDS,
            guest=_guest(os.getpid()),
            folder=Path("/"),
            readable=outermost([*served.places.values(), *served.path]),
            entry=HOST,
            writes=False,
        )
        if isolation.kind == "landlock" and isolation.own_user:
            for path in map(Path, place.readable):
                if not readable_by_all(path if path.is_dir() else path.parent):
                    raise ServiceFailed(
                        f"its sandbox ({isolation.describe()}) cannot read {path}: let every user read it and pass through the folders above"
                    )
        # The process ends with the thread that starts it, which therefore lasts.
        self._process = _starter(os.getpid()).submit(_started, isolation, place).result()
        start = {
            "limits": LIMITS | ({"RLIMIT_NPROC": MOST_THREADS} if isolation.own_user else {}),
            "places": dict(served.places),
            "path": list(served.path),
            "module": served.module,
            "arguments": dict(served.arguments),
        }
        patience = _Patience(self._process.pid, START_SECONDS)
        try:
            said = self._read(1, patience)
            if said != READY:
                raise ServiceFailed(f"its sandbox did not start ({isolation.describe()}): {self._last_words()}")
            self._send(marshal.dumps(start), patience)
        except (ServiceFailed, OSError):
            self.close()
            raise

    def ask(
        self,
        question: bytes,
        most_bytes: int,
        seconds: float,
        calls: Callable[[bytes], bytes] | None = None,
        took: Took | None = None,
    ) -> bytes:
        """The answer to one question. An empty question waits for what the process says by itself.

        `seconds` is CPU time; a process that sleeps has as much on the wall clock. `calls` replies to a call back of the process, whose time stands
        still meanwhile; without it there may be none.
        ServiceFailed for an answer that is too late or above `most_bytes`. `took` counts the process's CPU time, without an answer too.
        """
        patience = _Patience(self._process.pid, seconds)
        try:
            with (took or Took()).counting(self._process.pid):
                return self._answer(question, most_bytes, patience, calls)
        except ServiceFailed:
            self.close()
            raise

    def _answer(
        self, question: bytes, most_bytes: int, patience: "_Patience", calls: Callable[[bytes], bytes] | None
    ) -> bytes:
        self._signal(signal.SIGCONT)
        if question:
            self._send(question, patience)
        while (length := int.from_bytes(self._read(4, patience), "big")) & CALL:
            self._reply(length ^ CALL, patience, calls)
        if length > most_bytes:
            raise ServiceFailed(f"gave an answer of {length} bytes; allowed: {most_bytes}")
        answer = self._read(length, patience)
        self._signal(signal.SIGSTOP)
        return answer

    @property
    def quiet(self) -> bool:
        """Whether the process waits for a question, and has said nothing that nobody asked for."""
        assert self._process.stdout is not None
        watched = select.poll()
        watched.register(self._process.stdout.fileno(), select.POLLIN)
        return not watched.poll(0)

    def close(self) -> None:
        """End the process with all that it has."""
        process = self._process
        if process.returncode is None:
            self._signal(signal.SIGKILL)  # ends a stopped one too
            process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        """To all of its group, which is bubblewrap and what it started, or the process alone. Nothing inside can leave the group."""
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _reply(self, length: int, patience: "_Patience", calls: Callable[[bytes], bytes] | None) -> None:
        if calls is None:
            raise ServiceFailed("called back while no question was open")
        if length > CALL_BYTES:
            raise ServiceFailed(f"called back with {length} bytes; allowed: {CALL_BYTES}")
        call = self._read(length, patience)
        with patience.paused():
            reply = calls(call)
        self._send(reply, patience)

    def _send(self, frame: bytes, patience: "_Patience") -> None:
        assert self._process.stdin is not None
        left = memoryview(len(frame).to_bytes(4, "big") + frame)
        descriptor = self._process.stdin.fileno()
        while left:
            try:
                left = left[os.write(descriptor, left[:CHUNK]) :]
            except BlockingIOError:
                _wait(descriptor, select.POLLOUT, patience)
            except BrokenPipeError:
                raise ServiceFailed(self._how_it_ended(), ended_by_itself=True) from None

    def _read(self, count: int, patience: "_Patience") -> bytes:
        assert self._process.stdout is not None
        data, descriptor = bytearray(), self._process.stdout.fileno()
        while len(data) < count:
            try:
                more = os.read(descriptor, min(count - len(data), CHUNK))
            except BlockingIOError:
                _wait(descriptor, select.POLLIN, patience)
                continue
            if not more:
                raise ServiceFailed(self._how_it_ended(), ended_by_itself=True)
            data += more
        return bytes(data)

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipes"
        return f"ended by itself (code {code})"

    def _last_words(self) -> str:
        assert self._process.stdout is not None
        try:
            return os.read(self._process.stdout.fileno(), 4096).decode(errors="replace").strip() or "it said nothing"
        except BlockingIOError:
            return "it said nothing"


class _Patience:
    """How long an answer may take: `seconds` of CPU time, and no more on the wall clock for a process that does not compute."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._began = time.monotonic()
        self._asked, self._until = self._began, self._began + min(QUICK_SECONDS, seconds)
        self._had: float | None = None
        self._seen = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in here does not count."""
        began = time.monotonic()
        yield
        away = time.monotonic() - began
        self._began, self._asked, self._until = self._began + away, self._asked + away, self._until + away

    def left(self) -> float:
        """Seconds until this must be asked again. ServiceFailed when the time is over; a busy machine's process that computes gets more."""
        now = time.monotonic()
        if now < self._until:
            return self._until - now
        used = cpu_seconds(self._pid)
        if self._had is None:
            self._had = self._seen = used
        elif used - self._had >= ABOUT_ALL * self._seconds or now >= self._began + MOST_WALLS * self._seconds:
            raise ServiceFailed(f"gave no answer within {self._seconds:g} s of CPU time")
        elif used - self._seen < AWAKE_SHARE * (now - self._asked):
            raise ServiceFailed(f"gave no answer within {self._seconds:g} s, and did not compute")
        self._seen, self._asked = used, now
        self._until = now + max(LOOK_SECONDS, self._seconds - (used - self._had))
        return self._until - now


def _wait(descriptor: int, event: int, patience: _Patience) -> None:
    watched = select.poll()
    watched.register(descriptor, event)
    while not watched.poll(patience.left() * 1000):
        pass


@cache
def isolation_here() -> Isolation:
    """The best isolation of this machine. NoIsolation when there is none, and its admin has not allowed that."""
    return choose(trial)


def outermost(paths: list[str]) -> tuple[str, ...]:
    """Paths that lie below none of the others, nor below `/usr`, which is readable anyway."""
    kept = {
        path
        for path in paths
        if not any(str(parent) in paths or str(parent) == "/usr" for parent in Path(path).parents)
    }
    return tuple(sorted(kept))


def _started(isolation: Isolation, place: SandboxPlace) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        command(isolation, place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(isolation, place),
        start_new_session=True,
        bufsize=0,
    )
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return process


@cache
def _starter(pid: int) -> ThreadPoolExecutor:
    """Of this process, not of one that it was forked from."""
    return ThreadPoolExecutor(1, thread_name_prefix="service-start")


@cache
def _guest(pid: int) -> Path:
    """The modules with which a sandbox begins, in a folder that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-service-"))
    folder.chmod(0o711)
    copy_guest(folder / "guest")

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder / "guest"
