"""The ledger: an append-only, hash-chained list of signed entries in the object store.

Create-if-absent gives the order; each entry names the digest of the one before, so that nothing can be changed or left out unseen. Written by the
orchestrator; readable and checkable by anyone with read access. Checkpoints sign how far the ledger had come, and short proofs lead from one entry,
or from an older checkpoint, to a checkpoint (docs/ledger.md); `ledger_audit` checks all of it.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from shoal.contracts.base import Contract, NodeId, RunName, Sha256Hex
from shoal.contracts.compute import Compute
from shoal.contracts.roster import Roster
from shoal.contracts.signed import Signed
from shoal.ledger.facts import InvitedNode, RunTerms
from shoal.ledger.merkle import LONGEST_PATH

CHECKPOINT_ENTRIES = 256
"""A checkpoint is written whenever the ledger is a multiple of this long, and in between when it has grown and time has passed."""
SEGMENT_ENTRIES = 1024
"""Entries in one object of `segments/`: one read in place of a thousand. A multiple of `CHECKPOINT_ENTRIES`, so that a checkpoint vouches for it."""

GENESIS = "0" * 64
"""`previous` of the first entry."""

EntryKind = Literal[
    "run-declared",  # digest = of the roster, terms; opens a ledger, and goes into an older one that has none
    "terms-changed",  # digest = of the roster, terms, replaces = number of the entry whose terms end with this one
    "node-invited",  # node, detail = nonce of the invite, digest = of its registration, invited; see docs/ledger.md for which
    "beacon-committed",  # step, digest = commitment, before the beacon is revealed
    "beacon-revealed",  # step, digest = commitment; nodes that joined after this entry may not serve the step
    "node-joined",  # node, detail = nonce of the invite, which is used up by this
    "node-dead",  # node
    "node-evicted",  # node, detail: found out by validators, for good
    "node-banned",  # node, detail: by an admin, with the reason
    "node-unbanned",  # node, detail: takes a ban back, never an eviction
    "version-published",  # version, digest = weights digest
    "accepted",  # node, step, submission, digest = file, tokens, groups, signal_groups, compute
    "rejected",  # node, step, submission, digest = file, detail = reason and evidence
    "dataset-published",  # digest = SHA-256 of card.json, detail = name; of a run of mode Generate
    "batch-sealed",  # step, digest = SHA-256 of batch.json
]


class LedgerEntry(Contract):
    number: int = Field(ge=0)
    previous: Sha256Hex = Field(description="digest of the entry before (`canonical.document_digest`), or GENESIS")
    run: RunName
    kind: EntryKind
    unix: float
    node: NodeId | None = None
    step: int | None = Field(default=None, ge=0)
    submission: int | None = Field(default=None, ge=0)
    version: int | None = Field(default=None, ge=0)
    digest: Sha256Hex | None = None
    tokens: int | None = Field(default=None, ge=0)
    groups: int | None = Field(default=None, ge=0)
    signal_groups: int | None = None
    detail: Annotated[str, Field(max_length=4000)] = ""
    terms: RunTerms | None = None
    replaces: int | None = Field(default=None, ge=0)
    invited: InvitedNode | None = None
    compute: Compute | None = Field(default=None, description="None: judged before validators counted it")

    @model_serializer(mode="wrap")
    def _as_it_was_signed(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Fields that came later are left out where there are none: digests and signatures of older entries still fit."""
        document: dict[str, Any] = dump(self)
        for name in ("terms", "replaces", "invited", "compute"):
            if document.get(name) is None:
                document.pop(name, None)
        return document


class LedgerCheckpoint(Contract):
    """How far a ledger had come, signed by its orchestrator. It follows from the entries alone, so that several writers write the same bytes."""

    run: RunName
    size: int = Field(ge=1, description="entries covered: numbers 0 to size - 1")
    root: Sha256Hex = Field(description="Merkle root (RFC 9162) over the canonical bytes of these entries")
    head: Sha256Hex = Field(description="digest of the last of them, which the next one names as `previous`")
    unix: float = Field(description="of the last of them")


Path = Annotated[list[Sha256Hex], Field(max_length=LONGEST_PATH)]


class InclusionProof(Contract):
    """One entry is in the ledger that a checkpoint covers. Checked with the run's public key and nothing else."""

    kind: Literal["inclusion"] = "inclusion"
    roster: Signed[Roster]
    entry: Signed[LedgerEntry]
    path: Path
    checkpoint: Signed[LedgerCheckpoint]


class ConsistencyProof(Contract):
    """The ledger of a later checkpoint begins with that of an earlier one: nothing was changed or taken away between the two."""

    kind: Literal["consistency"] = "consistency"
    roster: Signed[Roster]
    old: Signed[LedgerCheckpoint]
    new: Signed[LedgerCheckpoint]
    path: Path
