"""Appending to the ledger: create-if-absent gives the order, every entry is signed and names the digest of the one before.

Several orchestrators may append at once (a rolling update): the loser of a number reads what the winner wrote, folds it in and tries the next number.
`append` is idempotent by `ledger_view.identity`: because a writer has read every entry before its own, a fact is never recorded twice. Called by the
orchestrator's services; `load` by `recovery` at start.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shoal.contracts import keys
from shoal.contracts.canonical import BadSignature, Signed, sign
from shoal.contracts.identity import PrivateKey
from shoal.contracts.ledger import EntryKind, LedgerEntry
from shoal.protocol.ledger_view import BrokenChain, LedgerView, identity
from shoal.storage import NotFound, Store

READERS = 16
"""Parallel reads at start: entries are small, so the time is the store's latency."""
MAX_LOST_RACES = 1000
"""Each lost race is another writer's progress; a thousand in a row mean that something else is wrong."""


class LedgerWriter:
    """The ledger of one run: `view` is what it says so far. Safe to use from several threads."""

    def __init__(self, store: Store, run: str, key: PrivateKey, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._lock = threading.Lock()
        self.view = LedgerView(run)

    def load(self) -> None:
        """Read and verify every entry that is there; raises `BrokenChain` when one is missing, changed or not ours."""
        with self._lock:
            numbers = [info.key for info in self._store.list(keys.LEDGER)]
            with ThreadPoolExecutor(READERS) as readers:
                for number, data in enumerate(
                    readers.map(self._store.get, numbers[self.view.next_number :]), self.view.next_number
                ):
                    self.view.apply(self._verified(number, data))

    def catch_up(self) -> None:
        """Fold in what other writers appended meanwhile."""
        with self._lock:
            while self._absorb_next():
                pass

    def append(self, kind: EntryKind, **fields: Any) -> LedgerEntry | None:
        """Record a fact; returns its entry, or None when the ledger has it already."""
        with self._lock:
            for _ in range(MAX_LOST_RACES):
                entry = LedgerEntry(
                    number=self.view.next_number,
                    previous=self.view.head,
                    run=self.view.run,
                    kind=kind,
                    unix=self._clock(),
                    **fields,
                )
                if identity(entry) in self.view.identities:
                    return None
                if self._store.create(keys.ledger_entry(entry.number), sign(entry, self._key).to_json()):
                    self.view.apply(entry)
                    return entry
                if not self._absorb_next():
                    raise BrokenChain(f"ledger entry {entry.number} is there and is not: the store contradicts itself")
            raise BrokenChain(f"lost {MAX_LOST_RACES} races for a ledger number in a row")

    def _absorb_next(self) -> bool:
        number = self.view.next_number
        try:
            data = self._store.get(keys.ledger_entry(number))
        except NotFound:
            return False
        self.view.apply(self._verified(number, data))
        return True

    def _verified(self, number: int, data: bytes) -> LedgerEntry:
        try:
            return Signed[LedgerEntry].from_json(data).verified(self._key.public)
        except (BadSignature, ValueError) as error:
            raise BrokenChain(
                f"ledger entry {number} is not one that this run's orchestrator signed: {error};"
                " restore the ledger from a copy, or start the run anew under another prefix"
            ) from error
