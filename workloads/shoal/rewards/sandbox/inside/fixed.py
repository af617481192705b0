"""The same clock and the same random numbers for a program on every machine, so that two honest machines see it give one answer.

The clock begins at a fixed time and moves by a tick with each reading, and by its length with each sleep. Unseeded generators are seeded with 0, and
`os.urandom` gives a fixed stream. `time.monotonic` stays real, because the standard library waits by it. A program that means to can still find the
kernel's clock; validators therefore never hold a difference between two machines against a node (`validation.checks.reward`).

Standard library only, and little of it, because it runs inside the sandbox before each program. Called by `guest`.
"""

import itertools
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

START_NS = 1_735_689_600_000_000_000
"""2025-01-01T00:00:00Z."""
TICK_NS = 100_000
"""A loop that waits for one second to pass ends after 10,000 readings."""


def fix() -> None:
    """Replace this process's clock and sources of random numbers, before the program imports anything."""
    _fix_clock()
    _fix_random()


def _fix_clock() -> None:
    readings, slept = itertools.count(1), [0]
    real_sleep, functions = time.sleep, dict(vars(time))

    def elapsed_ns() -> int:
        return next(readings) * TICK_NS + slept[0]

    def now_ns() -> int:
        return START_NS + elapsed_ns()

    def now() -> float:
        return now_ns() / 1e9

    def sleep(seconds: "Any") -> None:
        real_sleep(seconds)
        slept[0] += int(seconds * 1e9)

    def clock_gettime_ns(clock: int) -> int:
        return now_ns() if clock == time.CLOCK_REALTIME else elapsed_ns()

    def at_now(name: str) -> "Any":
        return lambda seconds=None: functions[name](now() if seconds is None else seconds)

    time.time_ns, time.time, time.sleep = now_ns, now, sleep
    time.perf_counter_ns = time.process_time_ns = time.thread_time_ns = elapsed_ns
    time.perf_counter = time.process_time = time.thread_time = lambda: elapsed_ns() / 1e9
    time.clock_gettime_ns = clock_gettime_ns
    time.clock_gettime = lambda clock: clock_gettime_ns(clock) / 1e9
    time.gmtime, time.localtime, time.ctime = at_now("gmtime"), at_now("localtime"), at_now("ctime")
    time.asctime = lambda moment=None: functions["asctime"](time.localtime() if moment is None else moment)
    time.strftime = lambda form, moment=None: functions["strftime"](
        form, time.localtime() if moment is None else moment
    )
    for name in (
        "_datetime",
        "_zoneinfo",
    ):  # `datetime` then asks `time`, and not the kernel; the second is built on the first
        sys.modules[name] = None  # type: ignore[assignment]  # how an import is made to fail


def _fix_random() -> None:
    import _random

    class SeededRandom(_random.Random):
        def seed(self, number: object = None, /) -> None:
            super().seed(0 if number is None else number)

    stream = _random.Random(0)

    def urandom(size: int, flags: int = 0) -> bytes:
        return stream.getrandbits(8 * size).to_bytes(size, "little") if size else b""

    _random.Random = SeededRandom  # type: ignore[misc]  # `random` makes its own class from this one
    os.urandom = os.getrandom = urandom
