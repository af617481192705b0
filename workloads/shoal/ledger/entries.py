"""The ledger: an append-only, hash-chained list of signed entries in the object store.

Create-if-absent gives the order; each entry names the digest of the one before, so that nothing can be changed or left out unseen. Written by the
orchestrator; readable and checkable by anyone with read access. Checkpoints sign how far the ledger had come, and short proofs lead from one entry,
or from an older checkpoint, to a checkpoint (docs/ledger.md); `ledger_audit` checks all of it.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from shoal.contracts.base import Contract, NodeId, RunName, Sha256Hex, unset
from shoal.contracts.compute import Compute
from shoal.contracts.roster import Roster
from shoal.contracts.signed import Signed
from shoal.contracts.work import LeasePart
from shoal.ledger.facts import InvitedNode, RunTerms
from shoal.ledger.merkle import LONGEST_PATH

CHECKPOINT_ENTRIES = 256
"""A checkpoint is written whenever the ledger is a multiple of this long, and in between when it has grown and time has passed."""
SEGMENT_ENTRIES = 1024
"""Entries in one object of `segments/`: one read instead of a thousand. A multiple of `CHECKPOINT_ENTRIES`, so that a checkpoint vouches for it."""

GENESIS = "0" * 64
"""`previous` of the first entry."""

EntryKind = Literal[
    "run-declared",
    "terms-changed",
    "keys-changed",
    "node-invited",
    "beacon-committed",
    "beacon-revealed",
    "node-joined",
    "node-dead",
    "node-evicted",
    "node-banned",
    "node-unbanned",
    "version-published",
    "accepted",
    "rejected",
    "dataset-published",
    "batch-sealed",
]

Count = Annotated[int, Field(ge=0)]
Detail = Annotated[str, Field(max_length=4000)]
SaidDetail = Annotated[str, Field(min_length=1, max_length=4000)]

SIGNED_NAMES = dict.fromkeys(("roster", "registration", "commitment", "weights", "file", "card", "batch"), "digest") | (
    dict.fromkeys(("nonce", "reason", "finding", "name"), "detail")
)
"""Fields of facts that the signed document names otherwise: a digest is `digest` there whatever it is of, and words are `detail`."""
ABSENT: dict[str, Any] = {
    **dict.fromkeys(("node", "step", "submission", "version", "digest", "tokens", "groups", "signal_groups")),
    "detail": "",
}
"""Fields that every signed entry has, in their order, and their values where its kind does not say them. Later fields are left out instead."""


class _Fact(Contract):
    """The fact that one entry records. Fields with a default may be absent."""

    model_config = ConfigDict(
        alias_generator=lambda name: SIGNED_NAMES.get(name, name),
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class _Declaration(_Fact):
    roster: Sha256Hex
    terms: RunTerms


class _OfNode(_Fact):
    node: NodeId


class _OfFile(_OfNode):
    step: Count
    submission: Count
    file: Sha256Hex


class RunDeclared(_Declaration):
    """Opens a ledger, and goes into an older one that has none."""

    kind: Literal["run-declared"] = "run-declared"


class TermsChanged(_Declaration):
    """Other terms hold from here on."""

    kind: Literal["terms-changed"] = "terms-changed"
    replaces: Count = Field(description="number of the entry whose terms end with this one")


class KeysChanged(_Fact):
    """A key of the run took another's place: the newest roster, which holds all such changes. The orchestrator of that roster signs the entry."""

    kind: Literal["keys-changed"] = "keys-changed"
    keys: Signed[Roster]


class NodeInvited(_OfNode):
    """Discovery or an admin invited a node; docs/ledger.md says which invites are noted."""

    kind: Literal["node-invited"] = "node-invited"
    nonce: SaidDetail
    invited: InvitedNode
    registration: Sha256Hex | None = None


class BeaconCommitted(_Fact):
    """The beacon of a step is fixed, and not yet revealed."""

    kind: Literal["beacon-committed"] = "beacon-committed"
    step: Count
    commitment: Sha256Hex


class BeaconRevealed(_Fact):
    """The beacon of a step is known: nodes that join after this entry may not serve the step."""

    kind: Literal["beacon-revealed"] = "beacon-revealed"
    step: Count
    commitment: Sha256Hex


class NodeJoined(_OfNode):
    """A node joined, which uses up its invite."""

    kind: Literal["node-joined"] = "node-joined"
    nonce: SaidDetail = Field(description="of the invite")


class NodeDead(_OfNode):
    """A node fell silent."""

    kind: Literal["node-dead"] = "node-dead"


class NodeEvicted(_OfNode):
    """Validators found a node out: it is excluded for good."""

    kind: Literal["node-evicted"] = "node-evicted"
    reason: SaidDetail


class NodeBanned(_OfNode):
    """An admin excluded a node."""

    kind: Literal["node-banned"] = "node-banned"
    reason: Detail = ""


class NodeUnbanned(_OfNode):
    """An admin took a ban back. An eviction stands."""

    kind: Literal["node-unbanned"] = "node-unbanned"
    reason: Detail = ""


class VersionPublished(_Fact):
    """The trainer announced a version."""

    kind: Literal["version-published"] = "version-published"
    version: Count
    weights: Sha256Hex


class Accepted(_OfFile):
    """Validators accepted a file."""

    kind: Literal["accepted"] = "accepted"
    tokens: Count
    groups: Count
    signal_groups: int | None = None
    compute: Compute | None = Field(default=None, description="None: judged before validators counted it")
    left_out: list[Count] | None = Field(
        default=None,
        min_length=1,
        exclude_if=unset,
        description="rows that the file is accepted without, ascending: `tokens` and `compute` do not count them",
    )
    looked_at: Count | None = Field(
        default=None,
        exclude_if=unset,
        description="tokens of the rows that validators looked at, in proportion to the rows; absent: all `tokens`",
    )
    part: LeasePart | None = Field(
        default=None,
        exclude_if=unset,
        description="of a lease that was handed in in parts: its groups count once files with all of them are accepted",
    )
    claimed_rows: Count | None = Field(
        default=None,
        exclude_if=unset,
        description="rows whose reward is the worker's own, which no validator can score again; absent: none",
    )

    @property
    def counted_groups(self) -> int:
        """Groups that count towards the step; 0 where the entry does not say."""
        return self.signal_groups or 0


class Rejected(_OfFile):
    """Validators rejected a file."""

    kind: Literal["rejected"] = "rejected"
    finding: SaidDetail = Field(description="the validator's reason, a colon, the evidence")

    @property
    def reason(self) -> str:
        return self.finding.split(":", 1)[0]


class DatasetPublished(_Fact):
    """A run of mode Generate wrote its data set."""

    kind: Literal["dataset-published"] = "dataset-published"
    card: Sha256Hex = Field(description="SHA-256 of card.json")
    name: SaidDetail


class BatchSealed(_Fact):
    """The batch of a step is fixed."""

    kind: Literal["batch-sealed"] = "batch-sealed"
    step: Count
    batch: Sha256Hex = Field(description="SHA-256 of batch.json")
    groups: Count | None = None


class MalformedFact(Contract):
    """An entry of a known kind that lacks what its kind must say, or says what its kind cannot. It counts for nothing."""

    kind: EntryKind
    node: NodeId | None = None
    step: Count | None = None
    submission: Count | None = None
    version: Count | None = None
    digest: Sha256Hex | None = None
    tokens: Count | None = None
    groups: Count | None = None
    signal_groups: int | None = None
    detail: Detail = ""
    terms: RunTerms | None = None
    replaces: Count | None = None
    invited: InvitedNode | None = None
    compute: Compute | None = None
    left_out: list[Count] | None = None
    looked_at: Count | None = None
    part: LeasePart | None = None
    claimed_rows: Count | None = None
    keys: Signed[Roster] | None = None

    @property
    def problem(self) -> str:
        """Its faults, by the names of the signed document."""
        fields = {field.alias: field.is_required() for field in WELL_FORMED[self.kind].model_fields.values()}
        lacks = [name or "" for name, required in fields.items() if required and name not in self.model_fields_set]
        if lacks:
            return f"it lacks its {' and '.join(lacks)}"
        surplus = [name for name in type(self).model_fields if name in self.model_fields_set - fields.keys()]
        return f"it has {' and '.join(surplus)}, which entries of this kind never have"


WellFormedFact = (
    RunDeclared | TermsChanged | KeysChanged | NodeInvited | BeaconCommitted | BeaconRevealed | NodeJoined | NodeDead | NodeEvicted
    | NodeBanned | NodeUnbanned | VersionPublished | Accepted | Rejected | DatasetPublished | BatchSealed
)  # fmt: skip
WELL_FORMED: dict[str, type[_Fact]] = {each.model_fields["kind"].default: each for each in get_args(WellFormedFact)}
Fact = WellFormedFact | MalformedFact


class LedgerEntry(Contract):
    """A place in the chain, and the fact that is recorded there. The signed document is flat: it has the fact's fields beside the entry's own."""

    number: int = Field(ge=0)
    previous: Sha256Hex = Field(description="digest of the entry before (`canonical.document_digest`), or GENESIS")
    run: RunName
    fact: Annotated[
        Annotated[WellFormedFact, Field(discriminator="kind")] | MalformedFact, Field(union_mode="left_to_right")
    ]
    unix: float

    @property
    def kind(self) -> EntryKind:
        return self.fact.kind

    @property
    def node(self) -> NodeId | None:
        """The node that the fact is about, if it is about one."""
        return self.fact.node if isinstance(self.fact, _OfNode | MalformedFact) else None

    @model_validator(mode="before")
    @classmethod
    def _from_signed(cls, data: Any) -> Any:
        """Gather the fact's fields from a flat document; an absent one is null there, or an empty `detail`."""
        if not isinstance(data, dict) or isinstance(data.get("fact"), Contract):
            return data
        own = {name: data[name] for name in ("number", "previous", "run", "unix") if name in data}
        said = {name: value for name, value in data.items() if name not in own and value is not None}
        if said.get("detail") == "":
            del said["detail"]
        MalformedFact.model_validate(said)  # refuses a wrong field by its name in the signed document
        return {**own, "fact": said}

    @model_serializer(mode="wrap")
    def _as_signed(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The flat document. Its fields that came later are left out where there are none, so that older signatures still fit."""
        document: dict[str, Any] = dump(self)
        said = {name: value for name, value in document["fact"].items() if value is not None}
        own = {"kind" if name == "fact" else name: value for name, value in document.items()}
        return own | ABSENT | said


@dataclass(frozen=True)
class DeclaredTerms:
    """The run's terms as one entry declares them."""

    number: int
    unix: float
    roster: Sha256Hex
    terms: RunTerms


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
