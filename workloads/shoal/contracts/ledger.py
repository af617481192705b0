"""The ledger: an append-only, hash-chained list of signed entries in the object store.

Create-if-absent gives the order; each entry names the digest of the one before, so that nothing can be changed or left out unseen. Written by the
orchestrator; readable and checkable by anyone with read access.
"""

from typing import Annotated, Literal

from pydantic import Field

from shoal.contracts.base import Contract, NodeId, RunName, Sha256Hex

GENESIS = "0" * 64
"""`previous` of the first entry."""

EntryKind = Literal[
    "beacon-committed",  # step, digest = commitment, before the beacon is revealed
    "beacon-revealed",  # step, digest = commitment; nodes that joined after this entry may not serve the step
    "node-joined",  # node, detail = nonce of the invite, which is used up by this
    "node-dead",  # node
    "node-evicted",  # node, detail
    "version-published",  # version, digest = weights digest
    "accepted",  # node, step, submission, digest = file, tokens, groups, signal_groups
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
