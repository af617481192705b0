"""Gathers what the page shows of one run: the store's documents, the checked ledger and the newest snapshot, read again in a thread of its own.

In: a `LedgerSource` (store and whom to trust) and a function that gives the newest `Snapshot`. Out: `Seen`, replaced as a whole, and a revision that
grows when something changed. Nothing is read while nobody looks.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from shoal.contracts import keys
from shoal.contracts.vine import VineSettings
from shoal.errors import InputWrong
from shoal.ledger.audit import Audit
from shoal.ledger.entries import LedgerEntry
from shoal.ledger.reading import read_ledger
from shoal.ledger.source import LedgerSource
from shoal.report.facts import StoreFacts, StoreReader
from shoal.report.snapshot import Snapshot
from shoal.report.times import StoreTimes, read_times
from shoal.report.view import SnapshotHistory
from shoal.storage import StoreUnavailable
from shoal.telemetry import Liveness
from shoal.text import plain

SNAPSHOT_SECONDS = 1.0
STORE_SECONDS = 3.0
LEDGER_SECONDS = 10.0
PAUSE_FACTOR = 10.0
"""A reading that took long is repeated after ten times as long: a store with a million objects is not listed all day."""
UNWATCHED_SECONDS = 60.0
"""Reading goes on for this long after the last request."""
STUCK_SECONDS = 1800.0
"""A reading that takes longer hangs: the longest is that of a whole ledger, and each call of the store has a deadline of its own."""


@dataclass(frozen=True)
class Seen:
    """One gathering. `audit` is None until the ledger was read; `problem` says in words why something is missing."""

    snapshot: Snapshot
    facts: StoreFacts
    times: StoreTimes
    history: SnapshotHistory
    audit: Audit | None = None
    entries: Sequence[LedgerEntry] = ()
    """Those that `audit` has checked: all of them, about 1 KiB each."""
    audited_unix: float = 0.0
    problem: str = ""
    ledger_problem: str = ""
    vine: VineSettings | None = None
    """Of a run with continuations whose configuration is known."""


@dataclass
class _Turn:
    """When a source is read next."""

    seconds: float
    next: float = 0.0

    def due(self, now: float) -> bool:
        return now >= self.next

    def done(self, started: float, now: float) -> None:
        self.next = now + max(self.seconds, PAUSE_FACTOR * (now - started))


@dataclass
class _Turns:
    snapshot: _Turn = field(default_factory=lambda: _Turn(SNAPSHOT_SECONDS))
    store: _Turn = field(default_factory=lambda: _Turn(STORE_SECONDS))
    ledger: _Turn = field(default_factory=lambda: _Turn(LEDGER_SECONDS))


class RunWatch:
    """Watches one run until `stop`. `seen` and `revision` may be read from any thread."""

    def __init__(
        self, source: LedgerSource, snapshot: Callable[[], Snapshot], *, vine: VineSettings | None = None
    ) -> None:
        self.source = source
        self._snapshot = snapshot
        self._reader = StoreReader(source.store, ledger=False)
        self._turns = _Turns()
        self._ended = threading.Event()
        self.liveness = Liveness(STUCK_SECONDS)
        self._wanted_until = 0.0
        self._stored = -1
        self.revision = 0
        self.seen = Seen(snapshot(), StoreFacts(kind=source.store.kind), StoreTimes(), SnapshotHistory(), vine=vine)
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)

    def start(self) -> None:
        self.touch()
        self.read_once()
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def touch(self) -> None:
        """Somebody looks: go on reading."""
        self._wanted_until = time.monotonic() + UNWATCHED_SECONDS

    def read_once(self) -> None:
        """Read what is due."""
        for turn, read in (
            (self._turns.snapshot, self._read_snapshot),
            (self._turns.store, self._read_store),
            (self._turns.ledger, self._read_ledger),
        ):
            started = time.monotonic()
            if turn.due(started):
                changed = read()
                turn.done(started, time.monotonic())
                self.revision += bool(changed)

    def _loop(self) -> None:
        while not self._ended.wait(SNAPSHOT_SECONDS):
            self.liveness.progress()
            if time.monotonic() < self._wanted_until:
                try:
                    self.read_once()
                except Exception:  # a page that shows old figures is better than none, and the log says why
                    structlog.get_logger().exception("could not read the run")

    def _read_snapshot(self) -> bool:
        found = self._snapshot()
        changed = found != self.seen.snapshot
        self.seen.history.add(found)
        self.seen = replace(self.seen, snapshot=found)
        return changed

    def _read_store(self) -> bool:
        try:
            facts = self._reader.read()
            times = read_times(self.source.store)
        except StoreUnavailable as error:
            self.seen = replace(self.seen, problem=plain(error, 300))
            return True
        before = self.seen
        before.history.seed(facts.steps)
        self.seen = replace(before, facts=facts, times=times, problem="")
        return (facts, times, before.problem) != (before.facts, before.times, "")

    def _read_ledger(self) -> bool:
        """The whole ledger, checked as a stranger would, when it has grown."""
        try:
            stored = len(self.source.store.list(keys.LEDGER)) + len(self.source.store.list(keys.CHECKPOINTS))
            if self.seen.audit is not None and stored == self._stored:
                return False
            entries: list[LedgerEntry] = []
            audit = read_ledger(self.source, lambda _: None, each=entries.append)
        except (StoreUnavailable, InputWrong) as error:
            self.seen = replace(self.seen, ledger_problem=plain(error, 300))
            return True
        self._stored = stored
        self.seen = replace(self.seen, audit=audit, entries=entries, audited_unix=time.time(), ledger_problem="")
        return True
