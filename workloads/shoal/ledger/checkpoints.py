"""Checkpoints of the ledger, and segments that make it quick to read. Called by the orchestrator's housekeeping.

A checkpoint is written at every multiple of `CHECKPOINT_ENTRIES`. It is also written over whatever is there when the ledger has grown and
`CHECKPOINT_SECONDS` have passed or the run is complete. It follows from the entries, so that several orchestrators write the same bytes and
create-if-absent settles who was first; one that is there with another history means that the ledger was rewritten under us, which is said loudly and
never overwritten. After a change of the orchestrator's key, the one over all segments is signed again: a start checks no signature below a checkpoint
by our own key, and 1,000,000 signatures take three minutes.
"""

from prometheus_client import Gauge

from shoal.contracts import keys
from shoal.contracts.roster import Roster
from shoal.contracts.signed import Signed, sign
from shoal.ledger.chain import BrokenChain, pack_segment
from shoal.ledger.entries import SEGMENT_ENTRIES, LedgerCheckpoint
from shoal.ledger.writer import LedgerWriter
from shoal.storage import find
from shoal.storage.parallel import in_parallel

CHECKPOINT_SECONDS = 60.0
"""The newest entries are under a checkpoint after a minute: short for a person, and no more than 1,440 small objects a day."""
MOST_AT_ONCE = 32
"""Checkpoints of one round, besides one segment: a long run that has none of them yet must not hold up the rest of the housekeeping."""

CHECKPOINTED = Gauge("shoal_ledger_checkpoint_entries", "Entries of the ledger that the newest checkpoint covers.")


class Checkpoints:
    """The checkpoints that one orchestrator has written. One thread calls."""

    def __init__(self, ledger: LedgerWriter, roster: Signed[Roster]) -> None:
        self._ledger = ledger
        self._roster = roster
        self._covered = 0
        self._covered_unix: float | None = None
        self._segments = 0
        self._there: set[str] = set()  # written before this process began

    def write_due(self, now_unix: float, *, complete: bool) -> int:
        """Write what is due, a round's worth at most; returns how many checkpoints. Raises `BrokenChain` when the store holds another history."""
        if self._covered_unix is None:
            self._publish_roster()
            self._there = {info.key for info in self._ledger.store.list(keys.CHECKPOINTS)}
            self._segments = len(self._ledger.store.list(keys.SEGMENTS))
            self._covered_unix = now_unix
        size = self._ledger.view.next_number
        old = now_unix - self._covered_unix >= CHECKPOINT_SECONDS
        wanted = self._ledger.take_checkpoints(current=size > self._covered and (old or complete))
        # After a restart all regular ones come again; of those that are there, comparing the newest compares what all of them cover.
        known = [each.size for each in wanted if keys.ledger_checkpoint(each.size) in self._there]
        compared = {size for size in known[:-1] if not self._vouches_for_segments(size)}
        wanted = [each for each in wanted if each.size not in compared]
        self._ledger.give_back(wanted[MOST_AT_ONCE:])
        wanted = wanted[:MOST_AT_ONCE]
        for position, checkpoint in enumerate(wanted):
            data = sign(checkpoint, self._ledger.key).to_json()
            key = keys.ledger_checkpoint(checkpoint.size)
            try:
                if not self._ledger.store.create(key, data):
                    signer = self._signer_of(key, checkpoint)
                    if signer != self._ledger.key.public and self._vouches_for_segments(checkpoint.size):
                        self._ledger.store.put(key, data)
            except BaseException:
                self._ledger.give_back(wanted[position:])
                raise
            self._covered, self._covered_unix = checkpoint.size, now_unix
            CHECKPOINTED.set(self._covered)
        self._write_segment()
        return len(wanted)

    def _signer_of(self, key: str, checkpoint: LedgerCheckpoint) -> str:
        """Which key of the orchestrator signed the stored checkpoint; raises `BrokenChain` when it is not this one."""
        try:
            stored = Signed[LedgerCheckpoint].from_json(self._ledger.store.get(key))
            if stored.document == checkpoint and self._ledger.is_orchestrator(stored.signer):
                return stored.signer
        except ValueError:
            pass
        raise BrokenChain(
            f"checkpoint {key} has another history than our {checkpoint.size} entries: the ledger or its checkpoints"
            " were changed; `shoal ledger verify` says which"
        )

    def _vouches_for_segments(self, size: int) -> bool:
        """Whether a start may read this checkpoint, by an earlier key as far as we know."""
        changed = bool(self._roster.document.changes_of("orchestrator"))
        return changed and size % SEGMENT_ENTRIES == 0 and size >= self._segments * SEGMENT_ENTRIES

    def _publish_roster(self) -> None:
        """The roster beside the ledger, so that a copy of the ledger is checked with the run's public key alone."""
        data = self._roster.to_json()
        if find(self._ledger.store, keys.ROSTER, bytes) != data:
            self._ledger.store.put(keys.ROSTER, data)

    def _write_segment(self) -> None:
        """The next segment, when a checkpoint covers its entries and it is not there yet."""
        if (self._segments + 1) * SEGMENT_ENTRIES > self._covered:
            return
        first = self._segments * SEGMENT_ENTRIES
        numbers = range(first, first + SEGMENT_ENTRIES)
        found = in_parallel(self._ledger.store.get, map(keys.ledger_entry, numbers))
        entries = [self._ledger.verified(*pair) for pair in zip(numbers, found, strict=True)]
        self._ledger.store.create(keys.ledger_segment(self._segments), pack_segment(entries))
        self._segments += 1
