"""Appending to the ledger: create-if-absent gives the order, every entry is signed and names the digest of the one before.

Several orchestrators may append at once (a rolling update): the loser of a number reads what the winner wrote, folds it in and tries the next number.
`append` is idempotent by `ledger_chain.identity`: because a writer has read every entry before its own, a fact is never recorded twice. Called by the
orchestrator's services; `load` by `recovery` at start. Checkpoints and segments are written by `ledger_checkpoints`.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from shoal.contracts import keys
from shoal.contracts.signed import BadSignature, Signed, sign
from shoal.crypto.keys import PrivateKey
from shoal.ledger.chain import BrokenChain, entry_leaf, identity, unpack_segment
from shoal.ledger.entries import SEGMENT_ENTRIES, Fact, KeysChanged, LedgerCheckpoint, LedgerEntry
from shoal.ledger.merkle import Frontier
from shoal.ledger.succession import Succession
from shoal.ledger.view import LedgerView
from shoal.storage import NotFound, ObjectInfo, Store, find
from shoal.storage.parallel import READERS
from shoal.telemetry import get_logger

REMEDY = "restore the ledger from a copy, or start the run again under another prefix"
MAX_LOST_RACES = 1000
"""Each lost race is another writer's progress; a thousand in a row mean that something else is wrong."""


class LedgerWriter:
    """The ledger of one run: `view` is what it says so far. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        run: str,
        key: PrivateKey,
        clock: Callable[[], float] = time.time,
        succession: Succession | None = None,
    ) -> None:
        """`succession`: the keys that entries of this run may be signed with; None: only ours, from the first entry on."""
        self.store = store
        self.key = key
        self._succession = succession
        self._clock = clock
        self._lock = threading.Lock()
        self.view = LedgerView(run)

    def load(self) -> None:
        """Read and verify every entry that is there; raises `BrokenChain` when one is missing, changed or not ours.

        Entries of segments that a signed checkpoint of ours vouches for are taken from there, a thousand with one read; all others one by one, by
        their numbers: a folder's list may lack entries that another orchestrator wrote meanwhile, and have later ones.
        """
        with self._lock, ThreadPoolExecutor(READERS) as readers:
            end = last_listed(self.store.list(keys.LEDGER)) + 1
            for entry in self._vouched(readers):
                self.view.apply(entry)
            rest = range(self.view.next_number, end)
            for number, data in zip(rest, readers.map(self._bytes_of, rest), strict=True):
                self.view.apply(self._followed(number, data))

    def catch_up(self) -> None:
        """Fold in what other writers appended meanwhile."""
        with self._lock:
            while self._absorb_next():
                pass

    def append(self, fact: Fact) -> LedgerEntry | None:
        """Record a fact; returns its entry, or None when the ledger has it already. Raises `BrokenChain` once another key took our key's place."""
        with self._lock:
            for _ in range(MAX_LOST_RACES):
                if identity(fact) in self.view.identities:
                    return None
                self._require_our_turn(fact)
                entry = LedgerEntry(
                    number=self.view.next_number,
                    previous=self.view.head,
                    run=self.view.run,
                    fact=fact,
                    unix=self._clock(),
                )
                signed = sign(entry, self.key)
                if self.store.create(keys.ledger_entry(entry.number), signed.to_json()):
                    self._follow(entry.number, signed)
                    self.view.apply(entry)
                    return entry
                if not self._absorb_next():
                    raise BrokenChain(
                        f"ledger entry {entry.number} exists and does not exist: the store contradicts itself"
                    )
            raise BrokenChain(f"lost {MAX_LOST_RACES} races for a ledger number in a row")

    def take_checkpoints(self, *, current: bool) -> list[LedgerCheckpoint]:
        """Regular checkpoints that nobody took yet, oldest first, and with `current` one over all entries so far."""
        with self._lock:
            chain = self.view.chain
            taken, chain.regular = chain.regular, {}
            if current and chain.next_number > 0:
                taken[chain.next_number] = chain.checkpoint()
            return [taken[size] for size in sorted(taken)]

    def give_back(self, checkpoints: list[LedgerCheckpoint]) -> None:
        """Checkpoints that could not be written, for the next time."""
        with self._lock:
            self.view.chain.regular.update({each.size: each for each in checkpoints})

    def verified(self, number: int, data: bytes) -> Signed[LedgerEntry]:
        """An entry as it lies in the store, its signature checked; raises `BrokenChain`."""
        try:
            signed = Signed[LedgerEntry].from_json(data)
            signed.verified(signed.signer if self.is_orchestrator(signed.signer) else self.key.public)
        except (BadSignature, ValueError) as error:
            raise _not_ours(number, error) from error
        return signed

    def _followed(self, number: int, data: bytes) -> LedgerEntry:
        """The next entry as it lies in the store, signed with the key that held then; raises `BrokenChain`."""
        try:
            signed = Signed[LedgerEntry].from_json(data)
        except ValueError as error:
            raise _not_ours(number, error) from error
        return self._follow(number, signed)

    def _follow(self, number: int, signed: Signed[LedgerEntry]) -> LedgerEntry:
        try:
            return signed.verified(self.key.public) if self._succession is None else self._succession.check(signed)
        except BadSignature as error:
            raise _not_ours(number, error) from error

    def _bytes_of(self, number: int) -> bytes:
        try:
            return self.store.get(keys.ledger_entry(number))
        except NotFound:
            raise BrokenChain(f"ledger entry {number} is not there, and later ones are; {REMEDY}") from None

    def is_orchestrator(self, key: str) -> bool:
        """Whether a key is ours, or was the orchestrator's before."""
        return key == self.key.public or (self._succession is not None and self._succession.is_orchestrator(key))

    def _require_our_turn(self, fact: Fact) -> None:
        if self._succession is None or self._succession.current == self.key.public or isinstance(fact, KeysChanged):
            return
        raise BrokenChain(
            f"the ledger is written with key {self._succession.current[:12]}... by now, ours is {self.key.public[:12]}...:"
            " this orchestrator was replaced and may stop"
        )

    def _absorb_next(self) -> bool:
        number = self.view.next_number
        data = find(self.store, keys.ledger_entry(number), bytes)
        if data is None:
            return False
        self.view.apply(self._followed(number, data))
        return True

    def _vouched(self, readers: ThreadPoolExecutor) -> list[LedgerEntry]:
        """Entries of all segments, if a checkpoint that we signed covers exactly them; else none, and the entries themselves are read."""
        names = [info.key for info in self.store.list(keys.SEGMENTS)]
        if self.view.next_number > 0 or not names:
            return []
        try:
            if names != [keys.ledger_segment(number) for number in range(len(names))]:
                raise ValueError("a segment is missing")
            entries: list[LedgerEntry] = []
            tree = Frontier()
            stored = Signed[LedgerCheckpoint].from_json(
                self.store.get(keys.ledger_checkpoint(len(names) * SEGMENT_ENTRIES))
            )
            # A checkpoint by an earlier key vouches for nothing: that key may have leaked. Then every entry's signature is checked.
            ours = stored.signer == self.key.public
            if not self.is_orchestrator(stored.signer):
                raise BadSignature(
                    f"the checkpoint is signed by {stored.signer[:12]}..., which is not the orchestrator's"
                )
            checkpoint = stored.verified(stored.signer)
            along = self._succession.again() if self._succession is not None else None
            for number, data in enumerate(readers.map(self.store.get, names)):
                for signed in unpack_segment(data, number):
                    if along is not None and (not ours or isinstance(signed.document.fact, KeysChanged)):
                        along.check(signed)
                    entries.append(signed.document)
                    tree.append(entry_leaf(signed.document))
            if (checkpoint.run, checkpoint.size, checkpoint.root) != (self.view.run, len(entries), tree.root().hex()):
                raise ValueError(f"segments do not match the checkpoint over {len(entries)} entries")
        except (NotFound, BadSignature, ValueError) as error:
            get_logger().warning("ledger segments are not used; reading every entry", problem=str(error)[:300])
            return []
        self._succession = along
        return entries


def last_listed(entries: Iterable[ObjectInfo]) -> int:
    """The highest number of a ledger's listing, -1 for none; raises `BrokenChain` at a key that is none of an entry."""
    last = -1
    for info in entries:
        number = keys.parse_ledger_entry(info.key)
        if number is None:
            raise BrokenChain(f"{info.key} is no entry of a ledger: move it away")
        last = max(last, number)
    return last


def _not_ours(number: int, error: Exception) -> BrokenChain:
    return BrokenChain(f"ledger entry {number} is not one that this run's orchestrator signed: {error}; {REMEDY}")
