"""Waits with a deadline that say what they wait for, and the process-wide stop signal.

A silent hang is what users of such systems complain about most: here every wait is logged when it becomes long, is a metric, and ends.
"""

import ctypes
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from shoal.retries import Backoff
from shoal.telemetry.health import Liveness
from shoal.telemetry.metrics import WAITING

Value = TypeVar("Value")

STOP = threading.Event()
"""Set when the process was asked to stop (SIGTERM, SIGINT). Loops look at it; waits end on it."""
SAY_AFTER_SECONDS = 10.0
SAY_EVERY_SECONDS = 50.0
"""A wait is said again when it has doubled, at the latest after this time: once a minute somebody can see it."""


class Deadline(TimeoutError):
    """Something did not happen in time; the message says what, and how long was waited."""


class Stopped(Exception):
    """The process was asked to stop while it waited."""


def install_signals() -> None:
    """Make SIGTERM and SIGINT set `STOP`. Called once, from the main thread of an entry point."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: STOP.set())


PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent ends."""


def end_with_torchrun() -> None:
    """Be killed when torchrun is, in a process that it started. These have sessions of their own, and one that outlived a kill -9 would keep its
    port and work beside its successor."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tell_torchrun(reason: str) -> None:
    """Have torchrun repeat why this process ends: its own report of two kilobytes comes last, and a pod's status keeps no more than that."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": reason, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(file).write_text(json.dumps({"message": message}))


def wait_for(
    what: str,
    poll: Callable[[], Value | None],
    *,
    deadline_seconds: float,
    interval_seconds: float = 0.5,
    stop: threading.Event | None = STOP,
    liveness: Liveness | None = None,
) -> Value:
    """Call `poll` until it gives something other than None, and return that.

    Raises `Deadline` after `deadline_seconds`, `Stopped` when `stop` is set.
    `what` is a fixed phrase ("batch of the next step"): it names the metric.
    `liveness` is kept alive while waiting, because a wait that is bounded and reported is progress enough.
    """
    log = structlog.get_logger()
    started = time.monotonic()
    next_word = SAY_AFTER_SECONDS
    try:
        while True:
            value = poll()
            if value is not None:
                return value
            waited = time.monotonic() - started
            WAITING.labels(what).set(waited)
            if liveness is not None:
                liveness.progress()
            if waited >= deadline_seconds:
                raise Deadline(f"waited {waited:.0f} s for {what}: the deadline is {deadline_seconds:.0f} s")
            if waited >= next_word:
                log.info("waiting", for_what=what, waited_seconds=round(waited), deadline_seconds=deadline_seconds)
                next_word = min(2 * next_word, next_word + SAY_EVERY_SECONDS)
            if stop is None:
                time.sleep(interval_seconds)
            elif stop.wait(interval_seconds):
                raise Stopped(f"asked to stop while waiting for {what}")
    finally:
        WAITING.labels(what).set(0)


def until_stopped(
    what: str,
    turn: Callable[[], float],
    failures: tuple[type[BaseException], ...],
    first_seconds: float,
    longest_seconds: float,
) -> None:
    """Call `turn` until `STOP` is set; it returns the seconds until the next turn.

    After one of `failures`, which is logged with `what`, the wait grows from `first_seconds` to `longest_seconds`. Other errors go through. Waits
    differ by a fifth, so that processes that began together do not ask together.
    """
    backoff = Backoff(first_seconds, longest_seconds)
    while not STOP.is_set():
        try:
            pause = turn()
            backoff.reset()
        except failures as error:
            pause = backoff.next()
            reason = f"{type(error).__name__}: {error}"
            structlog.get_logger().warning("a turn failed, trying again", what=what, pause_seconds=pause, reason=reason)
        STOP.wait(pause * random.uniform(0.8, 1.2))
