"""Checks a ledger as a stranger would, who trusts nothing but the run's public key. Pure: whoever calls reads the bytes.

Comes in: the signed roster, checkpoints, and every entry's bytes in order. Goes out: `AuditReport` with everything that is wrong, what each node
contributed, and proofs. What is checked: the roster's signature, the chain, every entry's signature, every checkpoint's signature, root and head,
that the end is not missing, that beacons were committed to before they were revealed, that only nodes that had joined are credited.
`document_problem` compares an entry with the document that it names, `findings_problem` a reject with the findings that it takes. A slashed node's
credit counts for nobody.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shoal.contracts.canonical import BadSignature, Signed, document_digest
from shoal.contracts.identity import Roster
from shoal.contracts.ledger import ConsistencyProof, InclusionProof, LedgerCheckpoint, LedgerEntry
from shoal.contracts.ledger_chain import BrokenChain, Chain, entry_leaf, identity
from shoal.contracts.merkle import consistency_path, continues, includes, inclusion_path
from shoal.contracts.seeds import beacon_commitment
from shoal.contracts.steps import StepBatch
from shoal.contracts.verdicts import NEVER_ALONE, Opinion, Verdict, findings_needed
from shoal.contracts.weights import WeightsManifest

OfRun = TypeVar("OfRun", LedgerEntry, LedgerCheckpoint)


class BadLedger(ValueError):
    """What cannot be believed, in words: where, and what is wrong with it."""


@dataclass
class NodeTotals:
    """What the ledger says of one node."""

    joined: bool = False
    dead: bool = False
    evicted: bool = False
    slashed: bool = False  # evicted for a rejected file, which no admin takes back
    files_accepted: int = 0
    files_rejected: int = 0
    groups: int = 0
    tokens: int = 0

    def credit(self, probation_files: int = 0) -> int:
        """Tokens that count: none of a node that was slashed, and none before so many of its files were accepted."""
        return 0 if self.evicted or self.files_accepted < probation_files else self.tokens


@dataclass
class AuditReport:
    """What was found. The ledger is good when `problems` is empty."""

    run: str
    entries: int = 0
    checkpoints: int = 0
    covered: int = 0
    documents: int = 0
    repeated_rejects: int = 0  # of which all the findings were there that they take
    kinds: Counter[str] = field(default_factory=Counter)
    nodes: dict[str, NodeTotals] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(node.tokens for node in self.nodes.values())

    @property
    def forfeited(self) -> int:
        """Tokens of slashed nodes: nobody's credit."""
        return sum(node.tokens for node in self.nodes.values() if node.evicted)


def trusted_roster(signed: Signed[Roster], run_key: str) -> Roster:
    """The roster, signed by the run's key; raises `BadLedger`."""
    try:
        return signed.verified(run_key)
    except BadSignature as error:
        raise BadLedger(f"{error}: this is not the roster of the run with that key") from error


def read_checkpoint(data: bytes, roster: Roster, where: str) -> LedgerCheckpoint:
    """A checkpoint that the run's orchestrator signed; raises `BadLedger` naming `where`."""
    return _signed_by_orchestrator(Signed[LedgerCheckpoint].from_json, data, roster, where)


def _signed_by_orchestrator(parse: Callable[[bytes], Signed[OfRun]], data: bytes, roster: Roster, where: str) -> OfRun:
    try:
        document = parse(data).verified(roster.keys["orchestrator"])
    except (BadSignature, ValueError, KeyError) as error:
        raise BadLedger(
            f"{where} is not signed by this run's orchestrator, or not readable: {_first_line(error)}"
        ) from error
    if document.run != roster.run:
        raise BadLedger(f"{where} is of run {document.run!r}, this is {roster.run!r}")
    return document


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class Audit:
    """One pass over a ledger. `checkpoints` are good ones by size, from the store or kept by the reader; they are compared on the way."""

    def __init__(self, roster: Roster, checkpoints: Mapping[int, Sequence[LedgerCheckpoint]]) -> None:
        self.report = AuditReport(roster.run, checkpoints=sum(map(len, checkpoints.values())))
        self.leaves: list[bytes] = []
        self.entries: list[LedgerEntry] = []
        self._roster = roster
        self._checkpoints = checkpoints
        self._chain = Chain(roster.run)
        self._seen: set[object] = set()
        self._committed: dict[int, str] = {}

    def take(self, data: bytes) -> LedgerEntry:
        """Check and fold the next entry; raises `BadLedger` at what makes every later entry worthless."""
        number = self._chain.next_number
        entry = _signed_by_orchestrator(Signed[LedgerEntry].from_json, data, self._roster, f"entry {number}")
        try:
            self._chain.follow(entry)
        except BrokenChain as error:
            raise BadLedger(f"entry {number}: {error}") from error
        self.leaves.append(entry_leaf(entry))
        self.entries.append(entry)
        self.report.entries = self._chain.next_number
        self.report.kinds[entry.kind] += 1
        for checkpoint in self._checkpoints.get(self._chain.next_number, ()):
            ours = self._chain.checkpoint()
            if (checkpoint.root, checkpoint.head) == (ours.root, ours.head):
                self.report.covered = checkpoint.size
            else:
                self.report.problems.append(
                    f"checkpoint over {checkpoint.size} entries: its root is {checkpoint.root[:16]}..., that of the entries is"
                    f" {ours.root[:16]}...: what it signed is not what lies here"
                )
        fact = identity(entry)
        if fact is None or fact not in self._seen:  # a second record of the same fact changes nothing
            self._seen.add(fact)
            self._fold(entry)
        return entry

    def finish(self) -> AuditReport:
        """After the last entry: whether the ledger was cut off."""
        beyond = max((size for size in self._checkpoints if size > self.report.entries), default=None)
        if beyond is not None:
            self.report.problems.append(
                f"the ledger has {self.report.entries} entries, and a signed checkpoint covers {beyond}: its end is missing"
            )
        return self.report

    def _fold(self, entry: LedgerEntry) -> None:
        problems, step, digest = self.report.problems, entry.step if entry.step is not None else -1, entry.digest or ""
        match entry.kind:
            case "beacon-committed":
                self._committed[step] = digest
            case "beacon-revealed":
                if self._committed.get(step) != digest:
                    problems.append(
                        f"entry {entry.number}: the beacon of step {step} is not the one committed to before"
                    )
            case _:
                pass
        if entry.node is None:
            return
        totals = self.report.nodes.setdefault(entry.node, NodeTotals())
        match entry.kind:
            case "node-joined":
                totals.joined, totals.dead = True, False
            case "node-dead":
                totals.dead = True
            case "node-evicted":
                totals.slashed = totals.evicted = True
                if not totals.files_rejected:
                    problems.append(
                        f"entry {entry.number}: node {entry.node[:16]}... is evicted, and no file of it was rejected before"
                    )
            case "node-banned":
                totals.evicted = True
            case "node-unbanned":
                totals.evicted = totals.slashed
            case "accepted":
                totals.files_accepted += 1
                totals.groups += entry.groups or 0
                totals.tokens += entry.tokens or 0
            case "rejected":
                totals.files_rejected += 1
            case _:
                pass
        if entry.kind in ("accepted", "rejected") and not totals.joined:
            problems.append(f"entry {entry.number}: a file of node {entry.node[:16]}..., which never joined")

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
        if not includes(entry_leaf(entry), entry.number, top.size, path, bytes.fromhex(top.root)):
            raise BadLedger(
                f"entry {entry.number} is not in the tree over {top.size} entries that the checkpoint signs"
            )
        return roster
    old, new = good(proof.old, "the older checkpoint"), good(proof.new, "the newer checkpoint")
    if not continues(old.size, bytes.fromhex(old.root), new.size, bytes.fromhex(new.root), path):
        raise BadLedger(
            f"the tree over {new.size} entries does not continue the one over {old.size}: entries were rewritten"
        )
    return roster


def document_key_parts(entry: LedgerEntry) -> tuple[str, str | int, str] | None:
    """Which document an entry names: `("verdict", node, file)`, `("batch", step, "")`, `("weights", version, "")`; None for none."""
    if entry.kind in ("accepted", "rejected") and entry.node is not None and entry.digest is not None:
        return ("verdict", entry.node, entry.digest)
    if entry.kind == "batch-sealed" and entry.step is not None:
        return ("batch", entry.step, "")
    if entry.kind == "version-published" and entry.version is not None:
        return ("weights", entry.version, "")
    return None


def document_problem(entry: LedgerEntry, data: bytes | None, roster: Roster, commitment: str | None) -> str | None:
    """What is wrong between an entry and the document that it names; None when they agree. `commitment`: to the beacon of the entry's step."""
    where = f"entry {entry.number} ({entry.kind})"
    if data is None:
        return f"{where}: the document that it names is not there"
    try:
        if entry.kind == "batch-sealed":
            return _batch_problem(entry, data, commitment, where)
        if entry.kind == "version-published":
            manifest = Signed[WeightsManifest].from_json(data).verified(roster.keys["trainer"])
            same = (manifest.version, manifest.sha256) == (entry.version, entry.digest)
            return None if same else f"{where}: the sealed weights are others than those that were announced"
        verdict = Signed[Verdict].from_json(data).verified(roster.keys["validator"])
    except (BadSignature, ValueError, KeyError) as error:
        return f"{where}: its document is not signed by the role that makes it, or not readable: {_first_line(error)}"
    told = (entry.node, entry.step, entry.submission, entry.digest, f"{verdict.outcome}ed")
    if told != (verdict.node, verdict.step, verdict.submission, verdict.sha256, entry.kind):
        return f"{where}: the validator's verdict is on another file, or says {verdict.outcome}"
    if entry.kind == "accepted" and entry.tokens != verdict.completion_tokens:
        return f"{where}: {entry.tokens} tokens are credited, the validator counted {verdict.completion_tokens}"
    return None


def rejects_to_repeat(entry: LedgerEntry, data: bytes | None, slash_votes: int) -> Signed[Verdict] | None:
    """The verdict behind a `rejected` entry that takes more than one finding; None for any other, and for what `document_problem` finds wrong."""
    if entry.kind != "rejected" or data is None:
        return None
    try:
        signed = Signed[Verdict].from_json(data)
    except ValueError:
        return None
    return signed if findings_needed(signed.document, slash_votes) > 1 else None


def findings_problem(
    entry: LedgerEntry, verdict: Verdict, opinions: Sequence[bytes | None], roster: Roster, slash_votes: int
) -> str | None:
    """What is missing of the findings that a reject takes, given the recorded one and the file's `opinions/`; None when they are all there.

    A finding counts once, for the file and reason of the recorded one, with a validator's signature; with more than one vote, and for `NEVER_ALONE`,
    also once a validator, by the name that was signed.
    """
    found = {document_digest(verdict): verdict.validator}
    for data in opinions:
        try:
            other = Opinion.from_json(data or b"").verdict.verified(roster.keys["validator"])
        except (BadSignature, ValueError, KeyError):
            continue
        same = ("run", "node", "lease", "step", "submission", "sha256", "outcome", "reason")
        if all(getattr(other, name) == getattr(verdict, name) for name in same):
            found[document_digest(other)] = other.validator
    needed = findings_needed(verdict, slash_votes)
    by_others = slash_votes > 1 or verdict.reason in NEVER_ALONE
    there = len(set(found.values())) if by_others else len(found)
    if there >= needed:
        return None
    by = f"{needed} validators" if by_others else "a second check"
    return (
        f"entry {entry.number} ({entry.kind}): a reject for {verdict.reason} takes the same finding by {by}, and the signed findings"
        f" under verdicts/ and opinions/ are {there} of {needed}"
    )


def _batch_problem(entry: LedgerEntry, data: bytes, commitment: str | None, where: str) -> str | None:
    if hashlib.sha256(data).hexdigest() != entry.digest:
        return f"{where}: the batch of step {entry.step} is not the one that was sealed"
    batch = StepBatch.from_json(data)
    if commitment is None or beacon_commitment(bytes.fromhex(batch.beacon)) != commitment:
        return f"{where}: the beacon of step {entry.step} is not the one committed to before"
    return None
