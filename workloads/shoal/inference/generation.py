"""Decoding without a pause: the loop that keeps an engine's slots full with rows of several leases, and says why those are empty that are.

In: an engine, a desk that has the next lease ready, a clock. Out: whole leases to `finished`, others to `given_up`. It waits for nothing: tools
answer, files are scored and handed in beside it, leases are fetched ahead. Called by `worker`, a turn for each decoding step; `benchmarks.workers`
runs it on an engine that only has a clock.

Rows are of one version. When the desk has a newer one for the next lease it fetches none until the last row of the older is there: no lease that
comes later can keep a version from being loaded. What an emptying engine loses is known from the last time. While the run's step still accepts
its version, the next swap waits until it costs a small part of the time at most (`SWAP_SHARE`).

A journal (ADR 0140) is told once a second what rows have more. A worker that ends leaves them to the process that comes next.

In a run whose rows may be of several versions (ADR 0108) nothing waits for a newer one that the steps of all leases accept. The rows are taken out
of the engine at once and go on under it, with their prefixes computed again.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.contracts.protocol import StepInfo
from shoal.inference import metrics
from shoal.inference.batch import Batch, PlannedLease, Row, RunningLease
from shoal.inference.commitment import GENERATE_SECONDS
from shoal.inference.completions import Completion, Pauses, Request
from shoal.inference.weights import VersionOnDisk
from shoal.telemetry import BUSY_SECONDS

SWAP_SHARE = 0.1
"""Of the slots' time, lost to swaps at most while the older version is accepted. A run whose rows are short swaps at once for that: it loses
nothing."""
PART_LOOK_SECONDS = 1.0
"""Between looks for whole groups of a lease that are due."""
LATE_SECONDS = 900.0
"""After its end a lease is given up. The orchestrator's clock may be this far from ours (`transport.client`), and a file in time is never lost so."""


class Decoder(Protocol):
    """What of an engine is needed here."""

    sequences: int

    def start(self, request: Request, pauses: Pauses | None = None) -> str:
        """Let a request join; returns its name."""

    def step(self) -> list[tuple[str, Completion]]:
        """One decoding step; what has ended."""

    def abort(self, names: Collection[str]) -> None:
        """End these without a completion."""

    def cut(self) -> list[tuple[str, Completion]]:
        """Take out all that run, with what they have so far. Asked only where rows may be of several versions, or are kept."""

    def grown(self) -> list[tuple[str, Completion]]:
        """What running rows have more since this was asked last, up to whole proofs. Asked only where rows are kept."""


@dataclass(frozen=True)
class Wish:
    """A further lease is wanted. `empty`: nothing of the version in the engine is left to do; `may_wait`: another version need not be loaded yet;
    `held`: the leases that there are."""

    loaded: VersionOnDisk
    empty: bool
    may_wait: bool
    held: frozenset[str] = frozenset()


class Desk(Protocol):
    """Where leases come from."""

    info: StepInfo | None
    most: int
    shortage: str
    newest: VersionOnDisk | None
    """The newest version that the open step accepts. Looked at only where rows may be of several versions."""

    def want(self, wish: Wish | None) -> None:
        """Fetch a lease, or none. Returns at once."""

    def take(self) -> PlannedLease | None:
        """The lease that has come, if one has."""


class ToolDesk(Protocol):
    """Where paused rows are answered, beside decoding."""

    def ask(self, row: Row) -> None:
        """Run the tool for this row, some time soon."""

    def answers(self) -> list[tuple[Row, bool | Exception]]:
        """Rows that were answered since: whether each goes on, or what went wrong."""


class Keeper(Protocol):
    """Where rows are kept for the process that comes next (`journal_files.Journal`)."""

    def begin(self, lease: RunningLease) -> None:
        """A lease begins."""

    def has(self, lease: RunningLease) -> bool:
        """Whether its rows are kept."""

    def due(self, now: float) -> bool:
        """Whether it is time to add what rows have more."""

    def add(self, row: Row, new: Completion) -> None:
        """A running row has these tokens more."""

    def flush(self, now: float) -> None:
        """Write what was added, beside decoding."""


class Generation:
    """One engine and the leases that run in it."""

    def __init__(
        self,
        engine: Decoder,
        desk: Desk,
        tools: ToolDesk,
        loaded: VersionOnDisk,
        *,
        swap: Callable[[VersionOnDisk], None],
        finished: Callable[[RunningLease], None],
        given_up: Callable[[RunningLease, str, Exception | None], None],
        handing_in: Callable[[], Collection[str]],
        clock: Callable[[], float],
        several: bool = False,
        made: Callable[[Row, Completion], None] = lambda row, completion: None,
        keeper: Keeper | None = None,
    ) -> None:
        """`handing_in`: leases that are scored, written, uploaded or given back now. `clock` gives monotonic seconds. `several`: whether rows may be
        of several versions. `made` is told each row that is whole, at once. `keeper`: None where no rows are kept."""
        self._several = several
        self._keeper = keeper
        self.batch = Batch(engine.sequences, made)
        self.loaded = loaded
        self._engine = engine
        self._desk = desk
        self._tools = tools
        self._swap = swap
        self._finished = finished
        self._given_up = given_up
        self._handing_in = handing_in
        self._clock = clock
        self._last = clock()
        self._swapped = self._last
        self._emptying = self._last_emptying = 0.0  # slot-seconds lost to the version to come so far, and to the last
        self._leaves_at: float | None = None

    def leave(self) -> None:
        """Take no more leases; give up those that cannot be finished within the grace period, after handing in their whole groups."""
        if self._leaves_at is None:
            self._leaves_at = self._clock() + GENERATE_SECONDS
            self._desk.want(None)

    def put_down(self) -> bool:
        """Take all rows out, and leave them and their leases to the process that comes next; whole leases are handed in. False, and nothing is done,
        where not all are kept."""
        keeper = self._keeper
        self._give_up(self._clock())
        if keeper is None or not all(keeper.has(lease) for lease in self.batch.leases):
            return False
        self.leave()
        for row in self._cut("leaving"):
            if len(row.episode.tokens) > row.kept:
                keeper.add(row, row.episode.since(row.kept, self.batch.segment_tokens))
        self._hand_in()
        keeper.flush(self._clock())
        for lease in list(self.batch.leases):
            self.batch.drop(lease)
        return True

    def turn(self) -> bool:
        """Give up, begin and start what is due, then decode one step. False where nothing runs: somebody else must do something first."""
        now = self._clock()
        self._give_up(now)
        for row, answer in self._tools.answers():
            self._answered(row, answer)
        self._hand_in()
        self._hand_in_parts(now)
        if self._leaves_at is None:
            self._go_on_under_newer()
            self._begin()
        self._start(now)
        if self._leaves_at is None:
            self._desk.want(self._wish())
        running, cause = self.batch.running, self._cause()
        metrics.WAITING.set(self.batch.waiting)
        if not running:
            self._account(0, cause)
            return False
        began = self._clock()
        ended = self._engine.step()
        self.batch.stepped(self._clock() - began)
        self._ended(ended)
        self._keep()
        self._account(running, cause)
        self._hand_in()
        return True

    def _ended(self, ended: Sequence[tuple[str, Completion]]) -> None:
        version = self.loaded.version if self._several else None
        for name, completion in ended:
            metrics.TOKENS.inc(completion.sampled)
            row_at_call = self.batch.ended(name, completion, version)
            if row_at_call is not None:
                self._tools.ask(row_at_call)

    def _keep(self) -> None:
        """Tell the keeper now and then what rows have more."""
        now = self._clock()
        if self._keeper is None or not self._keeper.due(now):
            return
        for name, new in self._engine.grown():
            row = self.batch.row(name)
            if row is not None:
                self._keeper.add(row, new)
        self._keeper.flush(now)

    def _go_on_under_newer(self) -> None:
        """Load a newer version that every lease may have, and let the running rows go on under it at once: they have had slots already."""
        if not self._several or not self.batch.leases:
            return
        newest = self._desk.newest
        if newest is None or newest.version <= self.loaded.version:
            return
        windows = [lease.given.work.window for lease in self.batch.leases]
        if not all(oldest <= newest.version <= last for oldest, last in windows):
            return
        going = self._cut("swap")
        self._load(newest)
        for row in going:
            self.batch.started(row, self._engine.start(row.episode.request()))

    def _cut(self, why: str) -> list[Row]:
        """Take the running rows out of the engine. Those that may go on; what was dropped of them is lost by `why`."""
        cut, rows = self._engine.cut(), []
        self._ended([(name, made) for name, made in cut if made.finish_reason != "cut"])
        for name, made in cut:
            if made.finish_reason == "cut":
                metrics.TOKENS.inc(made.sampled)
                row, dropped = self.batch.cut(name, made, self.loaded.version)
                metrics.LOST.labels(why).inc(dropped)
                if row is not None:
                    rows.append(row)
        return rows

    def _give_up(self, now: float) -> None:
        for lease in self.batch.sealed(self._desk.info):
            self._drop(lease, "sealed")
        for lease in [each for each in self.batch.leases if each.spoiled]:
            self._drop(lease, "refused")
        late = [lease for lease in self.batch.leases if now > lease.given.ends + LATE_SECONDS]
        for lease in late:
            self._drop(lease, "late")
        for lease in [] if late else self.batch.too_late(now):
            self._leave_rest(lease, "late")
        if self._leaves_at is not None:
            for lease in self.batch.unfinishable(self._leaves_at - now):
                self._leave_rest(lease, "leaving")

    def _leave_rest(self, lease: RunningLease, reason: str) -> None:
        """Hand in the whole groups of a lease and leave the others to somebody else; give it back where there are none."""
        part = self.batch.split(lease)
        if part is None:
            self._drop(lease, reason)
            return
        self._lose(lease, reason)
        self._finished(part)  # which ends the lease; what is left is anybody's then

    def _hand_in_parts(self, now: float) -> None:
        """Hand in what is whole of leases that take long: a worker that is killed loses what it made since, and no more."""
        for lease in self.batch.leases:
            if lease.given.part_seconds is None or lease.parting or now < lease.next_part:
                continue
            part = self.batch.split(lease)
            lease.next_part = now + (PART_LOOK_SECONDS if part is None else lease.given.part_seconds)
            if part is not None:
                part.keeps_rest = True
                lease.parting = True
                self._finished(part)

    def _drop(self, lease: RunningLease, reason: str, error: Exception | None = None) -> None:
        self._lose(lease, reason)
        self._given_up(lease, reason, error)

    def _lose(self, lease: RunningLease, reason: str) -> None:
        running = self.batch.tokens_running(lease)
        metrics.TOKENS.inc(running)
        metrics.LOST.labels(reason).inc(lease.tokens + running)
        names = self.batch.drop(lease)
        if names:
            self._engine.abort(names)

    def _answered(self, row: Row, answer: bool | Exception) -> None:
        if isinstance(answer, Exception):
            if row.of in self.batch.leases:
                self._drop(row.of, "tool", answer)
        else:
            self.batch.answered(row, answer)

    def _begin(self) -> None:
        """Take the lease that has come, behind a swap if it is of another version. One that is here already was given again: it has more time.

        While rows run nothing is loaded. A lease that was fetched before those went on under weights too new for it goes back.
        """
        given = self._desk.take()
        if given is None or self._is_here(given):
            return
        fits = given.policy.is_same(self.loaded) or self._has_newer_for(given)
        if not fits and not self.batch.running:
            self._load(given.policy)
            fits = True
        lease = self.batch.begin(given)
        if not fits:
            self._drop(lease, "swap")
        elif self._keeper is not None:
            self._keeper.begin(lease)

    def _has_newer_for(self, given: PlannedLease) -> bool:
        """Whether rows go on under newer weights, and those came into the engine while this lease did."""
        return self._several and given.policy.version < self.loaded.version <= given.work.window[1]

    def _is_here(self, given: PlannedLease) -> bool:
        name = given.lease.lease
        for lease in self.batch.leases:
            if lease.given.lease.lease == name:
                lease.given = replace(lease.given, ends=given.ends)
                return True
        return name in self._handing_in()

    def _wish(self) -> Wish | None:
        held = frozenset((*(lease.given.lease.lease for lease in self.batch.leases), *self._handing_in()))
        if len(held) >= self._desk.most or not (self.batch.runs_short and self.batch.next_is_in_time()):
            return None
        return Wish(self.loaded, not self.batch.leases, self._may_wait(), held)

    def _load(self, policy: VersionOnDisk) -> None:
        self._account(0, "swap")
        self._swap(policy)
        self._account(0, "swap")
        self.loaded, self._swapped = policy, self._clock()
        self._last_emptying, self._emptying = self._emptying, 0.0

    def _may_wait(self) -> bool:
        cost = self._last_emptying / self.batch.slots
        return self._clock() - self._swapped < cost / SWAP_SHARE

    def _start(self, now: float) -> None:
        while (row := self.batch.next_row(now)) is not None:
            tools = row.tools
            pauses = tools.pauses if tools is not None and not tools.by_turns else None
            self.batch.started(row, self._engine.start(row.episode.request(tools), pauses))

    def _hand_in(self) -> None:
        for lease in self.batch.whole():
            self._finished(lease)

    def _cause(self) -> str:
        """Why the slots are empty that are."""
        handing_in = len(self._handing_in())
        if len(self.batch.leases) + handing_in >= self._desk.most:
            return "upload" if handing_in else "tail"
        return self._desk.shortage if self._leaves_at is None else "tail"

    def _account(self, running: int, cause: str) -> None:
        """Book the time since the last call."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        empty = seconds * (self.batch.slots - running)
        metrics.SLOT_SECONDS.labels("row").inc(seconds * running)
        metrics.SLOT_SECONDS.labels(cause).inc(empty)
        if cause == "swap":
            self._emptying += empty
        if running:
            BUSY_SECONDS.labels("generate").inc(seconds)
        else:
            metrics.ENGINE_IDLE_SECONDS.labels(cause).inc(seconds)
