"""What leases sized by their nodes' speed change: a fast node and one at a tenth of its speed, the product's decoding loop on clocks.

In: a `Sized`. Out: of each node the seconds between two files, tokens that came in no file, leases that ended without all of their groups, and the
share of slots that had a row. The sizes are by `orchestrator.work.sizing`: speed of what came before, tokens of a group known. What a lease leaves is
given out first. A killed node begins again at once, under its key. Line and scoring take the times of `killed`; checks take none.
"""

import math
import statistics
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.workers.clock_engine import BANDWIDTH, LIMIT_TOKENS, STRIDE, ClockEngine
from benchmarks.workers.fleet import GROUP
from benchmarks.workers.killed import Killed, Worker
from shoal.contracts.work import lease_seconds
from shoal.inference.batch import RunningLease
from shoal.inference.lease_desk import MOST_LEASES
from shoal.orchestrator.work import sizing

BEGINNING_SHARE = 0.25
"""Of the time, in which speeds are not known yet: it counts for nothing."""


@dataclass(frozen=True)
class Sized(Killed):
    """Two nodes whose leases have all `groups`, or as many as each is fast (`sized`); one is ten times `slower`."""

    mean: float = 1_000.0
    part_seconds: float | None = 60.0
    signal: str = "KILL"
    every_seconds: float = math.inf
    groups: int = 64
    leases: int = MOST_LEASES
    life: float = lease_seconds(LIMIT_TOKENS)
    sized: bool = False
    slower: float = 10.0


@dataclass
class _Draws:
    """What is left of draws, oldest first: (number, groups, whether nobody has begun them)."""

    setting: Sized
    left: list[tuple[int, list[int], bool]] = field(default_factory=list)
    count: int = 0

    def next(self, speed: sizing.Speed) -> tuple[int, list[int]]:
        if not self.left:
            self.left.append((self.count, list(range(self.setting.groups)), True))
            self.count += 1
        number, places, unbegun = self.left.pop(0)
        if not (unbegun and self.setting.sized and speed.seconds):
            return number, places
        seconds = sizing.seconds_between_files(self.setting.part_seconds or 0.0, self.setting.life, self.setting.leases)
        made, least = seconds * speed.tokens / speed.seconds, sizing.least_groups(GROUP, self.setting.leases)
        size = sizing.fitting([GROUP * self.setting.mean] * len(places), made, least)
        if places[size:]:
            self.left.insert(0, (number, places[size:], True))
        return number, places[:size]


class _Engine(ClockEngine):
    """A clock that counts the seconds of its slots that have rows."""

    row_seconds = 0.0

    def step(self) -> Any:
        began, rows = self.now, len(self.rows)
        ended = super().step()
        self.row_seconds += rows * (self.now - began)
        return ended


class _Node:
    """A node through all its processes, and its side of the orchestrator."""

    def __init__(self, setting: Sized, slower: float, draws: _Draws) -> None:
        self._setting, self._draws = setting, draws
        self.engine = _Engine(setting.slots, (setting.mean,), bandwidth=BANDWIDTH / slower)
        self.speed = sizing.Speed()
        self.came: list[float] = []
        self.kept_tokens = self.unfinished = 0
        self._begin()

    def _begin(self) -> None:
        self._worker = Worker(self._setting, self, self.engine)
        self._ends = self.engine.now + self._setting.every_seconds

    def next(self) -> tuple[int, list[int]]:
        return self._draws.next(self.speed)

    def leave(self, lease: RunningLease) -> None:
        self.unfinished += 1
        self._draws.left.append((lease.given.lease.submission, lease.places, False))

    def take(self, file: RunningLease, at: float) -> None:
        tokens = STRIDE * sum(len(made.tokens) for made in file.completions)
        self.speed = sizing.speed_after(self.speed, file.given.given, at, tokens)
        self.kept_tokens += tokens
        self.came.append(at)

    def turn(self) -> None:
        if self.engine.now >= self._ends:
            for lease in (*self._worker.loop.batch.leases, *(file for _, file in self._worker.files)):
                self.leave(lease)
            self.engine.abort(list(self.engine.rows))
            self._begin()
        self._worker.turn()

    @property
    def sums(self) -> tuple[float, ...]:
        return self.engine.now, self.engine.row_seconds, self.engine.tokens, self.kept_tokens, self.unfinished


def _until(nodes: list[_Node], seconds: float) -> list[tuple[float, ...]]:
    """Turn whoever's clock is behind; returns the sums of all."""
    while (node := min(nodes, key=lambda each: each.engine.now)).engine.now < seconds:
        node.turn()
    return [node.sums for node in nodes]


def played(setting: Sized, hours: float) -> dict[str, Any]:
    """What became of these hours, behind their beginning. Tokens of files that began before it count, so that a share may be a little below 0."""
    draws = _Draws(setting)
    nodes = [_Node(setting, setting.slower, draws), _Node(setting, 1.0, draws)]
    before, after = (_until(nodes, share * hours * 3600) for share in (BEGINNING_SHARE, 1.0))
    found = {}
    for name, node, old, new in zip(("slow", "fast"), nodes, before, after, strict=True):
        seconds, row_seconds, tokens, kept, unfinished = (now - then for then, now in zip(old, new, strict=True))
        came = [at for at in node.came if at >= old[0]]
        between = sorted(later - at for at, later in pairwise(came))
        found[name] = {
            "seconds_between_files_p50": statistics.median(between) if between else None,
            "seconds_between_files_p95": between[int(0.95 * len(between))] if between else None,
            "files": len(came),
            "tokens_a_second": kept / seconds,
            "tokens_lost_share": 1 - kept / tokens,
            "slot_occupancy": row_seconds / (seconds * setting.slots),
            "leases_not_finished": unfinished,
        }
    return found
