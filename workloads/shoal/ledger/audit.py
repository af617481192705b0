"""Checks a ledger as a stranger would, who trusts nothing but the run's public key. Pure: whoever calls reads the bytes.

Comes in: the signed roster, checkpoints, and every entry's bytes in order. Goes out: `AuditReport` with everything that is wrong, what each node
contributed, and proofs. What is checked: the roster's signature, the chain, every entry's signature, every
checkpoint's signature, root and head; that the end is not missing, that beacons were committed to before they were revealed; that only nodes that
had joined are credited; that the run is declared as its owner's and members were invited (ledgers from before there were such entries are good
without: `undeclared`), that compute follows from its figures. A slashed node's credit counts for nobody. What entries name is compared by
`ledger_documents`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeVar

from shoal.contracts.compute import compute_of
from shoal.contracts.roster import Roster, verified_roster
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.work import WorkKind, kind_of, may_share_beacon
from shoal.crypto.canonical import document_digest
from shoal.ledger.chain import BrokenChain, Chain, entry_leaf, identity
from shoal.ledger.entries import (
    Accepted,
    BatchSealed,
    BeaconCommitted,
    BeaconRevealed,
    ConsistencyProof,
    DatasetPublished,
    DeclaredTerms,
    InclusionProof,
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
from shoal.ledger.facts import RunTerms
from shoal.ledger.merkle import consistency_path, continues, includes, inclusion_path
from shoal.ledger.succession import Succession, checkpoint_signer_problem

OfRun = TypeVar("OfRun", LedgerEntry, LedgerCheckpoint)

SETTLING_SECONDS = 600.0
"""After a change of the terms a reject may still be by those before: its findings were made when they held."""


class BadLedger(ValueError):
    """Findings, in words: where, and what is wrong with it."""


@dataclass
class NodeTotals:
    """The ledger's totals of one node."""

    joined: bool = False
    dead: bool = False
    evicted: bool = False
    slashed: bool = False  # evicted for a rejected file, which no admin takes back
    files_accepted: int = 0
    files_rejected: int = 0
    groups: int = 0
    tokens: int = 0
    flops: float = 0.0  # of the files that say so
    left_out: int = 0  # rows that accepted files go without
    looked_at: int = 0  # tokens of the rows in which such a row could be seen
    proven: bool = False  # at some time as many files were accepted as the terms of that time asked for

    def credit(self, probation_files: int | None = None) -> int:
        """Tokens that count: none of a node that was slashed, and none before this many of its files were accepted; None: as the ledger's terms
        say."""
        counts = self.proven if probation_files is None else self.files_accepted >= probation_files
        return self.tokens if counts and not self.evicted else 0

    def credited_flops(self, probation_files: int | None = None) -> float:
        """Their floating-point operations."""
        return self.flops if self.credit(probation_files) else 0.0


@dataclass(frozen=True)
class WithoutRows:
    """An accepted file that goes without some rows: the entry, and its node's rows left out and tokens looked at up to it."""

    number: int
    node: str
    rows: int
    tokens: int


@dataclass
class AuditReport:
    """The result of an audit. The ledger is good when `problems` is empty."""

    run: str
    entries: int = 0
    checkpoints: int = 0
    covered: int = 0
    undeclared: int = 0  # entries before the first that declares the run: all of them where none does
    key_changes: int = 0
    documents: int = 0
    claimed_rows: int = 0  # of accepted files, whose rewards no validator scored again
    repeated_rejects: int = 0  # whose findings are all there
    terms: list[DeclaredTerms] = field(default_factory=list)  # as entries declare them, the last ones in force
    kinds: Counter[str] = field(default_factory=Counter)
    nodes: dict[str, NodeTotals] = field(default_factory=dict)
    without_rows: list[WithoutRows] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(node.tokens for node in self.nodes.values())

    @property
    def flops(self) -> float:
        return sum(node.flops for node in self.nodes.values())

    @property
    def in_force(self) -> RunTerms | None:
        """The run's terms as the ledger has them last; None: it does not say."""
        return self.terms[-1].terms if self.terms else None

    def slash_votes_at(self, entry: LedgerEntry) -> int | None:
        """Validators that had to agree on a reject by the terms of its time, where the ledger says so."""
        before = [each for each in self.terms if each.number < entry.number]
        # Of terms that ended long before, none counts; of several that changed within minutes, the mildest. A date long after that of an entry which
        # follows is none to go by: it keeps nothing in force.
        ended = takewhile(lambda later: abs(entry.unix - later.unix) > SETTLING_SECONDS, before[1:])
        return min((each.terms.slash_votes for each in before[len(list(ended)) :]), default=None)

    @property
    def forfeited(self) -> int:
        """Tokens of slashed nodes: nobody's credit."""
        return sum(node.tokens for node in self.nodes.values() if node.evicted)


def trusted_roster(signed: Signed[Roster], run_key: str) -> Roster:
    """The roster, signed by the run's key; raises `BadLedger`."""
    try:
        return verified_roster(signed, run_key)
    except BadSignature as error:
        raise BadLedger(f"{error}: this is not the roster of the run with that key") from error


def read_checkpoint(data: bytes, roster: Roster, where: str) -> LedgerCheckpoint:
    """A checkpoint that the run's orchestrator signed; raises `BadLedger` naming `where`."""
    return _signed_by_orchestrator(Signed[LedgerCheckpoint].from_json, data, roster, where)


def _signed_by_orchestrator(parse: Callable[[bytes], Signed[OfRun]], data: bytes, roster: Roster, where: str) -> OfRun:
    try:
        signed = parse(data)
        earlier = signed.signer in roster.former(
            "orchestrator"
        )  # what it may still say is for whoever reads the ledger
        document = signed.verified(signed.signer if earlier else roster.keys["orchestrator"])
    except (BadSignature, ValueError, KeyError) as error:
        raise _not_signed(where, error) from error
    if document.run != roster.run:
        raise BadLedger(f"{where} is of run {document.run!r}, this is {roster.run!r}")
    return document


def _not_signed(where: str, error: Exception) -> BadLedger:
    return BadLedger(f"{where} is not signed by this run's orchestrator, or not readable: {first_line(error)}")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class Audit:
    """One pass over a ledger. `checkpoints` are good ones by size, from the store or kept by the reader; they are compared on the way."""

    def __init__(
        self, roster: Roster, checkpoints: Mapping[int, Sequence[LedgerCheckpoint]], run_key: str | None = None
    ) -> None:
        """`run_key`: the run's first; a declaration must name it as the run's owner, and changes of keys must follow from it."""
        self.keys = Succession(roster, run_key)
        self.report = AuditReport(roster.run, checkpoints=sum(map(len, checkpoints.values())))
        self.leaves: list[bytes] = []
        self._run_key = run_key
        self._checkpoints = checkpoints
        self._chain = Chain(roster.run)
        self._seen: set[bytes] = set()  # digests: a tuple of two keys takes five times the memory
        self._committed: dict[int, str] = {}
        self._keys_changed = -1  # number of the last entry that did
        self._shared: list[int] = []  # numbers of those that the slices of an evaluation share
        self._invited: set[tuple[str, str]] = set()  # (node, nonce)

    @property
    def roster(self) -> Roster:
        """The roster that everything was checked with."""
        return self.keys.newest

    def take(self, data: bytes) -> LedgerEntry:
        """Check and fold the next entry; raises `BadLedger` at what makes every later entry worthless."""
        number = self._chain.next_number
        try:
            entry, canonical = self.keys.check_canonical(Signed[LedgerEntry].from_json(data))
        except (BadSignature, ValueError, KeyError) as error:
            raise _not_signed(f"entry {number}", error) from error
        try:
            self.leaves.append(self._chain.follow(entry, canonical))
        except BrokenChain as error:
            raise BadLedger(f"entry {number}: {error}") from error
        self.report.entries = self._chain.next_number
        self.report.kinds[entry.kind] += 1
        for checkpoint in self._checkpoints.get(self._chain.next_number, ()):
            ours = self._chain.checkpoint()
            if (checkpoint.root, checkpoint.head) == (ours.root, ours.head):
                self.report.covered = checkpoint.size
            else:
                self.report.problems.append(
                    f"checkpoint over {checkpoint.size} entries: its root is {checkpoint.root[:16]}..., that of the entries is"
                    f" {ours.root[:16]}...: the signed entries are not the stored ones"
                )
        name = identity(entry.fact)
        seen = b"" if name is None else hashlib.sha256(repr(name).encode()).digest()
        if name is None or seen not in self._seen:  # a second record of the same fact changes nothing
            self._seen.add(seen)
            self._fold(entry)
        self.report.undeclared += not self.report.terms
        return entry

    def finish(self) -> AuditReport:
        """After the last entry: whether the ledger was cut off."""
        beyond = max((size for size in self._checkpoints if size > self.report.entries), default=None)
        if beyond is not None:
            self.report.problems.append(
                f"the ledger has {self.report.entries} entries, and a signed checkpoint covers {beyond}: its end is missing"
            )
        if behind := self.keys.behind():
            self.report.problems.append(f"the ledger lacks a change of keys: {behind}")
        elif (
            self.report.terms
            and self.report.terms[-1].number > self._keys_changed
            and self.report.terms[-1].roster != document_digest(self.keys.newest)
        ):
            self.report.problems.append(
                f"entry {self.report.terms[-1].number}: it declares another roster than the one that the run's key signed"
            )
        return self.report

    def _fold(self, entry: LedgerEntry) -> None:
        problems, where = self.report.problems, f"entry {entry.number}"
        match entry.fact:
            case MalformedFact() as fact:  # what names no document is compared with none: it counts for nothing
                problems.append(f"{where} ({fact.kind}): {fact.problem}")
            case RunDeclared() | TermsChanged() as fact:
                self._declare(fact, entry)
            case KeysChanged(keys=changed):
                self.report.key_changes = changed.document.generation - 1
                self._keys_changed = entry.number  # the next declaration is about the new roster
            case BeaconCommitted(step=step, commitment=commitment):
                self._committed[step] = commitment
                if kind_of(step) is WorkKind.EVALUATION:
                    self._shared.append(step)
            case BeaconRevealed(step=step, commitment=commitment):
                if self._committed.get(step) != commitment:
                    problems.append(f"{where}: the beacon of step {step} is not the committed one")
            case BatchSealed(step=step):
                if step not in self._committed:
                    problems.append(f"{where}: the batch of step {step} was sealed before its beacon was committed to")
            case NodeInvited(node=node, nonce=nonce):  # no node of the run yet: whoever has a key may be invited
                if not self.report.terms:
                    problems.append(f"{where} (node-invited): no earlier entry declares the run")
                self._invited.add((node, nonce))
            case NodeJoined(node=node, nonce=nonce):
                totals = self._totals(node)
                totals.joined, totals.dead = True, False
                if self.report.in_force is not None:  # where they ask for nothing
                    self._prove(totals)
                if self.report.terms and (node, nonce) not in self._invited:
                    problems.append(f"{where}: node {node[:16]}... joined with an invite that the ledger does not have")
            case NodeDead(node=node):
                self._totals(node).dead = True
            case NodeEvicted(node=node):
                totals = self._totals(node)
                totals.slashed = totals.evicted = True
                if not totals.files_rejected:
                    problems.append(f"{where}: node {node[:16]}... is evicted, and no file of it was rejected before")
            case NodeBanned(node=node):
                self._totals(node).evicted = True
            case NodeUnbanned(node=node):
                totals = self._totals(node)
                totals.evicted = totals.slashed
            case Accepted() as file:
                self._accept(file, where)
                if file.left_out:
                    totals = self._totals(file.node)
                    totals.left_out += len(file.left_out)
                    self.report.without_rows.append(
                        WithoutRows(entry.number, file.node, totals.left_out, totals.looked_at)
                    )
            case Rejected(node=node):
                totals = self._totals(node)
                totals.files_rejected += 1
                self._require_joined(totals, node, where)
            case VersionPublished() | DatasetPublished():
                pass  # only their documents say more

    def _totals(self, node: str) -> NodeTotals:
        return self.report.nodes.setdefault(node, NodeTotals())

    def _accept(self, file: Accepted, where: str) -> None:
        totals, problems = self._totals(file.node), self.report.problems
        if not self._is_fixed(file.step):
            problems.append(f"{where}: a file of step {file.step} was accepted before its beacon was committed to")
        totals.files_accepted += 1
        totals.groups += file.groups
        totals.tokens += file.tokens
        self.report.claimed_rows += file.claimed_rows or 0
        totals.looked_at += file.tokens if file.looked_at is None else file.looked_at
        self._prove(totals)
        if (said := file.compute) is not None:
            totals.flops += said.flops
            if said != compute_of(said.parameters, said.prompt_tokens, file.tokens):
                problems.append(
                    f"{where} (accepted): {said.flops:g} operations do not follow from its parameters and tokens"
                )
        self._require_joined(totals, file.node, where)

    def _require_joined(self, totals: NodeTotals, node: str, where: str) -> None:
        if not totals.joined:
            self.report.problems.append(f"{where}: a file of node {node[:16]}..., which never joined")

    def _is_fixed(self, step: int) -> bool:
        """Whether the beacon of a step is committed to; slices of an evaluation share that of their version's first."""
        return step in self._committed or any(may_share_beacon(step, other) for other in self._shared)

    def _declare(self, fact: RunDeclared | TermsChanged, entry: LedgerEntry) -> None:
        """Whose run it is, and its terms from here on."""
        where, last = f"entry {entry.number} ({fact.kind})", self.report.terms[-1] if self.report.terms else None
        problems, owner = self.report.problems, fact.terms.owner
        replaces = fact.replaces if isinstance(fact, TermsChanged) else None
        if self._run_key is not None and owner != self._run_key:
            problems.append(f"{where}: the run is declared as that of key {owner[:16]}..., not of the run's key")
        if replaces is not None and last is None:
            problems.append(f"{where}: terms change, and no earlier entry declares the run")
        elif last is not None and replaces != last.number:
            problems.append(
                f"{where}: it replaces the terms of entry {replaces}, those in force are of entry {last.number}"
            )
        self.report.terms.append(DeclaredTerms(entry.number, entry.unix, fact.roster, fact.terms))
        for totals in self.report.nodes.values():
            self._prove(totals)

    def _prove(self, totals: NodeTotals) -> None:
        """A node that has shown as much as the terms of some time ask for has shown it, whatever later ones ask for."""
        terms = self.report.in_force
        totals.proven |= terms is None or totals.files_accepted >= terms.probation_files

    def commitment(self, step: int) -> str | None:
        """The commitment to the beacon of a step, or None before it."""
        return self._committed.get(step)

    def inclusion(self, number: int, size: int) -> list[str]:
        """Path of entry `number` in the tree over the first `size` entries."""
        return [each.hex() for each in inclusion_path(self.leaves[:size], number)]

    def consistency(self, old: int, new: int) -> list[str]:
        """Path from the tree over the first `old` entries to that over the first `new`."""
        return [each.hex() for each in consistency_path(self.leaves[:new], old)]


def check_proof(proof: InclusionProof | ConsistencyProof, run_key: str) -> Roster:
    """Check a proof with nothing but the run's public key; returns the roster, raises `BadLedger`."""
    roster = trusted_roster(proof.roster, run_key)

    def good(signed: Signed[OfRun], what: str) -> OfRun:
        return _signed_by_orchestrator(lambda _: signed, b"", roster, what)

    path = [bytes.fromhex(each) for each in proof.path]
    if isinstance(proof, InclusionProof):
        entry, top = good(proof.entry, "the entry"), good(proof.checkpoint, "the checkpoint")
        _require_good_signer(proof.checkpoint, roster)
        if not includes(entry_leaf(entry), entry.number, top.size, path, bytes.fromhex(top.root)):
            raise BadLedger(
                f"entry {entry.number} is not in the tree over {top.size} entries that the checkpoint signs"
            )
        return roster
    old, new = good(proof.old, "the older checkpoint"), good(proof.new, "the newer checkpoint")
    _require_good_signer(proof.new, roster)
    if not continues(old.size, bytes.fromhex(old.root), new.size, bytes.fromhex(new.root), path):
        raise BadLedger(
            f"the tree over {new.size} entries does not continue the one over {old.size}: entries were rewritten"
        )
    return roster


def _require_good_signer(top: Signed[LedgerCheckpoint], roster: Roster) -> None:
    if problem := checkpoint_signer_problem(top, roster):
        raise BadLedger(f"the checkpoint over {top.document.size} entries proves nothing: {problem}")
