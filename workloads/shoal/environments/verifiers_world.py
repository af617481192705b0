"""The same clock and random numbers for every question that code of others answers, in a process that is kept between questions.

Programs get theirs before Python imports anything (`rewards.sandbox.inside.fixed`). Here pydantic and numpy, which need the C clock, are there first.
So what a package finds is replaced when it is imported behind them. The process changes for good: only sandboxes call this.
What reads the kernel's clock nevertheless differs between two runs, and then no difference is held against a node (`runs_programs`).
"""

import asyncio
import datetime
import os
import random
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from shoal.rewards.sandbox.inside.fixed import START_NS, TICK_NS

Found = TypeVar("Found")
_clock = {"ns": START_NS}
_stream = random.Random(0)
_REAL_DATETIME = datetime.datetime


def now_ns() -> int:
    """Nanoseconds since 1970 on the fixed clock, which each look moves by a tick."""
    _clock["ns"] += TICK_NS
    return _clock["ns"]


def now() -> float:
    """The same in seconds."""
    return now_ns() / 1e9


class _HasReal(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _REAL_DATETIME)


class SettledDatetime(_REAL_DATETIME, metaclass=_HasReal):
    """`datetime.datetime` by the fixed clock. What it makes are plain ones."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return _REAL_DATETIME(*given, **named)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _REAL_DATETIME.fromtimestamp(now(), tz)

    @classmethod
    def today(cls) -> Any:
        return cls.now()

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.datetime_schema()


class SettledRandom(random.Random):
    """Seeded with 0 where nobody gives a seed."""

    def seed(self, a: Any = None, version: int = 2) -> None:
        super().seed(0 if a is None else a, version)


def settle() -> None:
    """Replace the clock and unseeded random numbers of this process. Once, before a package is imported."""
    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", now),
        (time, "time_ns", now_ns),
        (datetime, "datetime", SettledDatetime),
        (random, "Random", SettledRandom),
        (random, "_urandom", _stream.randbytes),
        (os, "urandom", _stream.randbytes),
    ]
    if (numpy := sys.modules.get("numpy")) is not None:
        generator = numpy.random.default_rng
        replaced.append((numpy.random, "default_rng", lambda seed=None: generator(0 if seed is None else seed)))
    for module, name, value in replaced:
        setattr(module, name, value)


def begin() -> None:
    """The clock and all shared sources of random numbers as at the first question."""
    _clock["ns"] = START_NS
    _stream.seed(0)
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)


class _PipeEnd:
    """One end of a pipe, with what an event loop asks of a socket."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._descriptor

    def recv(self, size: int) -> bytes:
        return os.read(self._descriptor, size)

    def send(self, data: bytes) -> int:
        return os.write(self._descriptor, data)

    def close(self) -> None:
        os.close(self._descriptor)


class LoopWithoutSockets(asyncio.SelectorEventLoop):
    """An event loop for a process that may make no sockets: it wakes itself by a pipe."""

    def _make_self_pipe(self) -> None:
        read, write = os.pipe()
        this: Any = self
        this._ssock, this._csock = _PipeEnd(read), _PipeEnd(write)
        this._internal_fds += 1
        this._add_reader(read, this._read_from_self)


def run(work: Coroutine[Any, Any, Found]) -> Found:
    """`asyncio.run` without sockets."""
    with asyncio.Runner(loop_factory=LoopWithoutSockets) as runner:
        return runner.run(work)
