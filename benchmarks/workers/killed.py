"""What is lost of the tokens when every worker is killed once a minute: the product's decoding loop on an engine that only has a clock.

In: a `Killed`. Out: the share of sampled tokens that came in no file. A worker is killed (`signal` KILL) or asked to leave (TERM) when its minute is
over; another one begins at once, first with the rests of leases that others left. With `kept` it goes on with the rows in their journal
(ADR 0140), and the last one finishes what it has. The store's line takes the times of `fleet`, and so does scoring,
which scores each row as it ends, one after the other.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from benchmarks.workers.clock_engine import LIMIT_TOKENS, STRIDE, ClockEngine
from benchmarks.workers.fleet import (
    GROUP,
    PREFILL_SECONDS,
    PUBLIC,
    SCORE_SECONDS,
    UPLINK_BYTES_A_SECOND,
    NoTools,
    _version,
    planned_row,
)
from shoal.contracts.protocol import LEAVE_SECONDS, Lease, StepInfo
from shoal.contracts.rollouts import SEGMENT_TOKENS
from shoal.contracts.work import LeasePart
from shoal.inference.batch import PlannedLease, Row, RunningLease
from shoal.inference.completions import Completion
from shoal.inference.generation import Generation, Wish
from shoal.inference.journal_files import EVERY_SECONDS
from shoal.inference.weights import VersionOnDisk
from shoal.planner.rates import FILE_BYTES_A_TOKEN

NODE = "0" * 64
SEEDS = 1_000
"""Between two draws; of large ones their last rows are as long as the next one's first."""


@dataclass(frozen=True)
class Killed:
    """`mean` tokens of a row, seconds after which groups are handed in (None: leases are handed in whole), and how the worker ends."""

    mean: float
    part_seconds: float | None
    signal: str
    every_seconds: float = 60.0
    slots: int = 64
    groups: int = 4
    leases: int = 2
    life: float = 3600.0
    """Seconds of a lease."""
    kept: bool = False
    """Whether the next worker has the journal of the one before."""
    stride: int = STRIDE
    """Tokens of a step of the clock. A second is one of 64, which is too coarse where what a second brings is at stake."""


@dataclass
class _Leases:
    """Leases by their number, with the groups that are not handed in yet."""

    groups: int
    stride: int = STRIDE
    left: dict[int, set[int]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    kept_tokens: int = 0

    def next(self) -> tuple[int, list[int]]:
        free = [number for number, left in self.left.items() if left and number not in self.held]
        number = min(free, default=len(self.left))
        self.held.add(number)
        return number, sorted(self.left.setdefault(number, set(range(self.groups))))

    def leave(self, lease: RunningLease) -> None:
        """What is left of this lease is for the next worker."""

    def take(self, file: RunningLease, at: float) -> None:
        self.left[file.given.lease.submission] -= set(file.places)
        if not self.left[file.given.lease.submission]:
            self.held.discard(file.given.lease.submission)
        self.kept_tokens += self.stride * sum(len(made.tokens) for made in file.completions)


@dataclass
class Journal:
    """A journal in memory, of which a worker that is killed leaves what was written: by seed, strides of a row and whether it is whole."""

    rows: dict[int, tuple[int, bool]] = field(default_factory=dict)
    added: dict[int, tuple[int, bool]] = field(default_factory=dict)
    flushed: float = 0.0

    def begin(self, lease: RunningLease) -> None:
        """Rows are known by their seeds."""

    def has(self, lease: RunningLease) -> bool:
        return True

    def due(self, now: float) -> bool:
        return now - self.flushed >= EVERY_SECONDS

    def add(self, row: Row, new: Completion) -> None:
        row.kept += len(new.tokens)
        self.added[row.episode.row.request.seed] = row.kept, new.finish_reason != "cut"

    def whole(self, row: Row, made: Completion) -> None:
        """A row is whole."""
        if len(made.tokens) > row.kept:
            self.add(row, replace(made, tokens=made.tokens[row.kept :]))

    def flush(self, now: float) -> None:
        self.rows |= self.added
        self.added, self.flushed = {}, now

    def kept(self, given: PlannedLease) -> dict[int, Completion]:
        """What it has of a lease, by index."""
        self.added = {}
        found = {}
        for index, row in enumerate(given.planned):
            strides, whole = self.rows.get(row.request.seed, (0, False))
            if strides:
                found[index] = Completion([0] * strides, [], "stop" if whole else "cut", b"")
        return found


class Leases(Protocol):
    """Gives leases out, as (number, groups), and takes files in."""

    def next(self) -> tuple[int, list[int]]: ...
    def leave(self, lease: RunningLease) -> None: ...
    def take(self, file: RunningLease, at: float) -> None: ...


class Worker:
    """One worker until its end; it is its own desk."""

    info: StepInfo | None = None
    newest: VersionOnDisk | None = None
    shortage = "no-lease"

    def __init__(self, setting: Killed, leases: Leases, engine: ClockEngine, journal: Journal | None = None) -> None:
        self._setting, self._leases, self.engine = setting, leases, engine
        self.most = setting.leases
        self._wanted, self._count = False, 0
        self.files: list[tuple[float, RunningLease]] = []
        self._line_free = self._scored_at = engine.now
        self.loop = Generation(
            self.engine, self, NoTools(), _version(0), swap=lambda version: None, finished=self._finished,
            given_up=lambda lease, reason, error: leases.leave(lease),
            handing_in=lambda: [file.given.lease.lease for _, file in self.files], clock=lambda: self.engine.now,
            made=self._made, keeper=journal,
        )  # fmt: skip
        self._journal = journal
        self.loop.batch.segment_tokens = max(1, SEGMENT_TOKENS // setting.stride)

    def want(self, wish: Wish | None) -> None:
        self._wanted = wish is not None

    def take(self) -> PlannedLease | None:
        if not self._wanted:
            return None
        return self._planned(*self._leases.next())

    def go_on(self, number: int, places: list[int]) -> None:
        """Begin with a lease that the worker before had."""
        assert self._journal is not None
        given = self._planned(number, places)
        self.loop.batch.begin(given, self._journal.kept(given))

    def _planned(self, number: int, places: list[int]) -> PlannedLease:
        self._count += 1
        part = LeasePart(node=NODE, submission=number, groups=places)
        lease = Lease(lease=f"{self._count:032x}", node=NODE, step=0, submission=number, expires_unix=0.0, part=part)
        limit = LIMIT_TOKENS // self._setting.stride
        rows = [planned_row(SEEDS * number + GROUP * place + row, row) for place in places for row in range(GROUP)]
        rows = [replace(row, request=replace(row.request, max_tokens=limit)) for row in rows]
        now, life = self.engine.now, self._setting.life
        return PlannedLease(
            lease,
            PUBLIC.codec.decode(0),
            PUBLIC,
            _version(0),
            rows,
            None,
            now,
            now + life,
            life,
            self._setting.part_seconds,
        )

    def _made(self, row: Row, completion: Completion) -> None:
        if self._journal is not None:
            self._journal.whole(row, completion)
        rows = self._setting.groups * GROUP
        self._scored_at = max(self.engine.now, self._scored_at) + SCORE_SECONDS / rows

    def _finished(self, file: RunningLease) -> None:
        sent = file.tokens * self._setting.stride * FILE_BYTES_A_TOKEN / UPLINK_BYTES_A_SECOND
        self._line_free = max(self.engine.now, self._scored_at, self._line_free) + sent
        self.files.append((self._line_free, file))
        if file.rest is not None and not file.keeps_rest:
            self._leases.leave(file.rest)

    def _deliver(self, now: float) -> None:
        for at, file in [each for each in self.files if each[0] <= now]:
            self.files.remove((at, file))
            self._leases.take(file, at)
            if file.rest is not None:
                file.rest.parting = False

    def turn(self) -> None:
        self._deliver(self.engine.now)
        if not self.loop.turn():
            self.engine.now += 0.5

    def run(self) -> None:
        ends = self.engine.now + self._setting.every_seconds
        while self.engine.now < ends:
            self.turn()
        if self._setting.signal == "TERM":
            leaves = self.engine.now + LEAVE_SECONDS
            if not self.loop.put_down():
                self.loop.leave()
            while self.loop.turn():
                pass
            self._deliver(leaves)

    def finish(self) -> None:
        """Take no more, and go on until all is handed in."""
        self.most = 0
        while self.loop.batch.leases or self.files:
            self.turn()


def lost_share(setting: Killed, hours: float) -> float:
    """Share of the tokens of all workers of these hours that no file brought."""
    leases, tokens, now = _Leases(setting.groups, setting.stride), 0, 0.0
    journal = Journal() if setting.kept else None
    over = False
    while not over:
        over = now >= hours * 3600
        if over and journal is None:
            break
        clock = ClockEngine(
            setting.slots,
            (setting.mean,),
            stride=setting.stride,
            limit=LIMIT_TOKENS // setting.stride,
            now=now,
            prefill_seconds=PREFILL_SECONDS if setting.kept else 0.0,
        )
        worker = Worker(setting, leases, clock, journal)
        for number in sorted(leases.held):
            worker.go_on(number, sorted(leases.left[number]))
        if over:
            worker.finish()
        else:
            worker.run()
        if journal is None:
            leases.held.clear()
        tokens, now = tokens + worker.engine.tokens, worker.engine.now
    return 1 - leases.kept_tokens / tokens
