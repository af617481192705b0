"""A pool of sandboxes that wait for programs: each is used once, and the next is up before it is asked for.

Starting a sandbox takes about 20 ms of CPU time, most of it Python's own; done ahead, a small program is judged in a few. In: programs, from any
thread. Out: outcomes. One pool a process (`shared_pool`); environments that judge programs call it.

In a cluster a validator's programs run in runner pods (`use_runners`, `remote`), which have such a pool and no credentials: `ProgramPool` is what
both have in common.
"""

import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from prometheus_client import Gauge

from shoal import telemetry
from shoal.rewards.parent import line
from shoal.rewards.per_process import OnePerProcess
from shoal.rewards.sandbox.asked import AskedPool
from shoal.rewards.sandbox.isolation import FIRST_UID, Isolation, SandboxPlace, choose, copy_guest
from shoal.rewards.sandbox.process import START_SECONDS, Box
from shoal.rewards.sandbox.program import Limits, Outcome, Program, SandboxFailed
from shoal.rewards.sandbox.slots import slots_here

TRIES = 3
"""A sandbox that fails to start is followed by another; three in a row are no accident."""
POOLS_APART = 64
"""Users a pool has for itself; pools of other processes start elsewhere in the range."""
POOL_COUNT = 23
START_PAUSE_SECONDS = 0.5


class SandboxPool:
    """`slots` programs run at once (default: what this container has room for); as many sandboxes again wait. Each has a user of its own, so that
    `POOLS_APART` users are the limit of both."""

    def __init__(self, isolation: Isolation, slots: int | None = None) -> None:
        self.isolation = isolation
        self.slots = min(slots or slots_here(), POOLS_APART // 2)
        self._running = threading.BoundedSemaphore(self.slots)
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-sandbox-"))
        self._folder.chmod(
            0o711
        )  # another user passes through to its own folder and to the guest, and sees nothing else
        copy_guest(self._folder / "guest")
        first = FIRST_UID + os.getpid() % POOL_COUNT * POOLS_APART
        self._numbers = deque(range(first, first + POOLS_APART))
        self._idle: deque[Box] = deque()
        self._changed = threading.Condition()
        self._failure: OSError | None = None
        self._closed = False
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="sandbox-run")
        # bwrap ends with the thread that started it (PR_SET_PDEATHSIG), so all are started by one that lasts.
        self._starter = threading.Thread(target=self._keep_some_waiting, name="sandbox-start", daemon=True)
        self._starter.start()

    def run(self, program: Program) -> Outcome:
        """Run one program to its end. SandboxFailed when no sandbox was available, which says nothing about the program."""
        with self._running:
            problem: Exception | None = None
            for _ in range(TRIES):
                box = self._next()
                try:
                    return box.run(program)
                except (SandboxFailed, OSError) as error:
                    problem = error
                finally:
                    self._done(box)
            raise SandboxFailed(f"{TRIES} sandboxes in a row did not start ({self.isolation.describe()}): {problem}")

    def run_all(self, programs: Sequence[Program]) -> list[Outcome]:
        """Outcomes in the order of the programs, as many at once as there are slots."""
        return list(self._threads.map(self.run, programs))

    def close(self) -> None:
        """End every sandbox that waits, and remove the pool's folder. Programs that run are waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._starter.join(START_SECONDS)
        self._threads.shutdown()
        while self._idle:
            self._idle.popleft().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _next(self) -> Box:
        with self._changed:
            if not self._changed.wait_for(lambda: self._idle or self._closed or self._failure, START_SECONDS):
                raise SandboxFailed(f"no sandbox was started within {START_SECONDS:.0f} s")
            if self._closed:
                raise SandboxFailed("the pool of sandboxes is closed")
            if not self._idle:
                failure, self._failure = self._failure, None
                raise SandboxFailed(f"a sandbox cannot be started: {failure}")
            box = self._idle.popleft()
            self._changed.notify_all()
            return box

    def _done(self, box: Box) -> None:
        box.close()
        with self._changed:
            self._numbers.append(box.place.uid)

    def _keep_some_waiting(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._idle) < self.slots)
                if self._closed:
                    return
                number = self._numbers.popleft()
            try:
                place = SandboxPlace(uid=number, guest=self._folder / "guest", folder=self._folder / f"box-{number}")
                box = Box(self.isolation, place)
            except OSError as error:
                with self._changed:
                    self._numbers.append(number)
                    self._failure = error
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closed, START_PAUSE_SECONDS)
                continue
            with self._changed:
                self._failure = None
                self._idle.append(box)
                self._changed.notify_all()


def trial(isolation: Isolation) -> str | None:
    """Run one small program; None when all is well, else what is wrong. How `choose` tells what works."""
    pool = SandboxPool(isolation, slots=1)
    try:
        return trial_in(pool)
    finally:
        pool.close()


def trial_in(pool: SandboxPool) -> str | None:
    """Run one small program in a pool; None when all is well, else what is wrong."""
    try:
        outcome = pool.run(Program("print(input()[::-1])", stdin=b"eno\n", limits=Limits()))
    except SandboxFailed as error:
        return str(error)
    return None if outcome.stdout == b"one\n" else f"a trial program {outcome.reason()}"


class ProgramPool(Protocol):
    """The interface of a runner of programs for an environment: sandboxes of this process, or runner pods."""

    slots: int

    def run(self, program: Program) -> Outcome: ...

    def run_all(self, programs: Sequence[Program]) -> list[Outcome]: ...

    def close(self) -> None: ...


ISOLATION = Gauge(
    "shoal_sandbox_isolation_info", "1 for the isolation of the programs that this process judges.", ["isolation"]
)


def open_pool(slots: int | None = None) -> SandboxPool:
    """A pool under the best isolation of this machine, which is reported. NoIsolation when there is none and the admin has not allowed that."""
    pool = SandboxPool(choose(trial), slots)
    ISOLATION.labels(pool.isolation.kind).set(1)
    telemetry.get_logger().info(
        "judging programs in sandboxes",
        isolation=pool.isolation.describe(),
        weaker_because=list(pool.isolation.weaker_because),
        slots=pool.slots,
    )
    return pool


_runners: tuple[str, ...] = ()


def use_runners(urls: Sequence[str]) -> None:
    """From now on this process has its programs judged by runners at these URLs, and in sandboxes of its own if there are none.

    Called once at start, with what the configuration says.
    """
    global _runners
    _runners = tuple(urls)
    _shared.forget()


def shared_pool() -> ProgramPool:
    """The pool of this process, made at first use; in a sandbox, the parent's. NoIsolation when programs are judged here, and this machine cannot."""
    if (parent := line()) is not None:
        return AskedPool(parent)
    return _shared.get()


def _runner_pool() -> ProgramPool:
    from shoal.rewards.sandbox.remote import RunnerPool  # the HTTP client, which few processes need

    ISOLATION.labels("runner").set(1)
    telemetry.get_logger().info("judging programs in runner pods", runners=list(_runners))
    return RunnerPool(_runners)


_shared: OnePerProcess[ProgramPool] = OnePerProcess(lambda: _runner_pool() if _runners else open_pool())
