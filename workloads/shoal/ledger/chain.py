"""What makes entries a ledger: each follows from the one before, and a Merkle tree over all of them is what checkpoints sign. Pure.

Comes in: entries in order. Goes out: the head of the chain, the root of the tree, checkpoints, and what counts as the same fact told twice. Used by
the orchestrator, who writes the ledger, and by `ledger_audit`, with which anyone checks it: both fold the same way.
"""

import hashlib
from collections.abc import Hashable, Iterable

import zstandard

from shoal.contracts.signed import Signed
from shoal.crypto.canonical import canonical_bytes, document_digest
from shoal.ledger.entries import (
    CHECKPOINT_ENTRIES,
    GENESIS,
    SEGMENT_ENTRIES,
    Accepted,
    BatchSealed,
    BeaconCommitted,
    BeaconRevealed,
    DatasetPublished,
    Fact,
    KeysChanged,
    LedgerCheckpoint,
    LedgerEntry,
    MalformedFact,
    NodeBanned,
    NodeDead,
    NodeEvicted,
    NodeInvited,
    NodeJoined,
    NodeUnbanned,
    Rejected,
    RunDeclared,
    TermsChanged,
    VersionPublished,
)
from shoal.ledger.merkle import Frontier, leaf_hash

ZSTD_LEVEL = 6
"""Segments are written once; digests and keys, which are most of them, do not get smaller at higher levels."""
LARGEST_SEGMENT_BYTES = SEGMENT_ENTRIES * 16_384
"""An entry with a full `detail` (4,000 characters, each up to 12 bytes in JSON escapes) is rare; a segment of them all is not a segment of ours."""


class BrokenChain(RuntimeError):
    """An entry does not follow from the one before: the ledger was changed or a piece is missing."""


def entry_leaf(entry: LedgerEntry) -> bytes:
    """The entry's leaf in the Merkle tree: the hash of its canonical bytes, 32 bytes."""
    return leaf_hash(canonical_bytes(entry))


def identity(fact: Fact) -> Hashable | None:
    """The identity of a fact that can happen only once; None for what may happen again (a node's death)."""
    match fact:
        case RunDeclared():
            return fact.kind
        case TermsChanged():
            return (fact.kind, fact.replaces)
        case KeysChanged():
            return (fact.kind, document_digest(fact.keys.document))
        case BeaconCommitted() | BeaconRevealed() | BatchSealed():
            return (fact.kind, fact.step)
        case VersionPublished():
            return (fact.kind, fact.version)
        case DatasetPublished():
            return (fact.kind, fact.name)
        case NodeInvited() | NodeJoined():
            return (fact.kind, fact.node, fact.nonce)
        case NodeEvicted():
            return (fact.kind, fact.node)
        case Accepted() | Rejected():
            # One file has one outcome, so both kinds share one identity.
            return ("settled", fact.node, fact.file)
        case NodeDead() | NodeBanned() | NodeUnbanned() | MalformedFact():
            return None


class Chain:
    """Head and tree of a ledger so far."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.next_number = 0
        self.head = GENESIS
        self.tree = Frontier()
        self._last_unix = 0.0
        self.regular: dict[int, LedgerCheckpoint] = {}
        """Checkpoints at multiples of `CHECKPOINT_ENTRIES`, by size. Whoever has written or compared one may take it out."""

    def follow(self, entry: LedgerEntry, canonical: bytes | None = None) -> bytes:
        """Take the next entry, and its canonical bytes where the caller has them; returns its leaf, 32 bytes. Raises `BrokenChain` when it is not
        the next one of this run."""
        if entry.run != self.run or entry.number != self.next_number or entry.previous != self.head:
            raise BrokenChain(
                f"ledger entry {entry.number} of run {entry.run!r} does not follow entry {self.next_number - 1} of {self.run!r}"
                f" (its previous is {entry.previous[:12]}..., expected {self.head[:12]}...)"
            )
        data = canonical or canonical_bytes(entry)
        self.head, leaf = hashlib.sha256(data).hexdigest(), leaf_hash(data)
        self.tree.append(leaf)
        self.next_number += 1
        self._last_unix = entry.unix
        if self.next_number % CHECKPOINT_ENTRIES == 0:
            self.regular[self.next_number] = self.checkpoint()
        return leaf

    def checkpoint(self) -> LedgerCheckpoint:
        """The checkpoint over all entries so far; raises ValueError while there is none."""
        return LedgerCheckpoint(
            run=self.run,
            size=self.next_number,
            root=self.tree.root().hex(),
            head=self.head,
            unix=self._last_unix,
        )


def pack_segment(entries: Iterable[Signed[LedgerEntry]]) -> bytes:
    """A segment's bytes: signed entries as JSON lines, compressed."""
    lines = b"".join(signed.to_json() + b"\n" for signed in entries)
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(lines)


def unpack_segment(data: bytes, number: int) -> list[Signed[LedgerEntry]]:
    """The entries of segment `number`, their signatures not checked; raises ValueError when they are not whole."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > LARGEST_SEGMENT_BYTES:
            raise ValueError(f"it unpacks to {size} bytes; at most {LARGEST_SEGMENT_BYTES} are allowed")
        lines = zstandard.ZstdDecompressor().decompress(data, max_output_size=LARGEST_SEGMENT_BYTES).splitlines()
        entries = [Signed[LedgerEntry].from_json(line) for line in lines]
    except (zstandard.ZstdError, ValueError) as error:
        raise ValueError(f"segment {number} of the ledger is not readable: {str(error)[:200]}") from error
    first = number * SEGMENT_ENTRIES
    if [signed.document.number for signed in entries] != list(range(first, first + SEGMENT_ENTRIES)):
        raise ValueError(
            f"segment {number} of the ledger does not hold entries {first} to {first + SEGMENT_ENTRIES - 1}"
        )
    return entries
