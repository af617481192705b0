"""Makes and checks the proofs of `shoal ledger`: kept checkpoints, inclusion of an entry, continuation of a kept checkpoint."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shoal.contracts import keys
from shoal.contracts.roster import Roster
from shoal.contracts.signed import Signed
from shoal.errors import InputWrong, RunFailed
from shoal.ledger.audit import Audit, BadLedger, check_proof, read_checkpoint, trusted_roster
from shoal.ledger.entries import ConsistencyProof, InclusionProof, LedgerCheckpoint, LedgerEntry
from shoal.ledger.reading import newest_roster, read_ledger
from shoal.ledger.source import LedgerSource, Trust
from shoal.ledger.text import entry_line
from shoal.report.ledger_sources import checked_key, read_join
from shoal.storage import NotFound
from shoal.text import Say, plain

LARGEST_PROOF_BYTES = 1 << 20
PROOF: TypeAdapter[InclusionProof | ConsistencyProof] = TypeAdapter(InclusionProof | ConsistencyProof)


def read_kept(path: Path, trust: Trust) -> LedgerCheckpoint:
    """A checkpoint that the reader kept, as the run's orchestrator signed it; raises `InputWrong`."""
    try:
        return read_checkpoint(_read(path), trusted_roster(trust.roster, trust.run_key), plain(path, 200))
    except BadLedger as error:
        raise InputWrong(plain(error, 400)) from None


def newest_checkpoint(source: LedgerSource, audit: Audit) -> Signed[LedgerCheckpoint]:
    """The newest checkpoint of the store that fits the entries; raises `InputWrong` while there is none, or only a kept one."""
    if not audit.report.covered:
        raise InputWrong("no checkpoint covers this ledger yet: the orchestrator writes one within a minute")
    name = keys.ledger_checkpoint(audit.report.covered)
    try:
        return Signed[LedgerCheckpoint].from_json(source.store.get(name))
    except NotFound:
        raise InputWrong(
            f"the checkpoint over {audit.report.covered} entries that was kept fits, but is not in the store: {name} was deleted"
            " or not copied, and no newer one is there; copy it, or wait for the next"
        ) from None


def prove_entry(source: LedgerSource, number: int, say: Say) -> InclusionProof:
    """Proof that an entry is under the newest checkpoint."""
    return prove_from(source, _good(source, say), number)


def prove_from(source: LedgerSource, audit: Audit, number: int) -> InclusionProof:
    """The same from a ledger that was read; raises `InputWrong` for an entry under no checkpoint, `RunFailed` for a bad ledger."""
    if audit.report.problems:
        raise RunFailed(plain(audit.report.problems[0], 500))
    top = newest_checkpoint(source, audit)
    if number >= top.document.size:
        raise InputWrong(
            f"entry {number} is not under a checkpoint: {audit.report.entries} entries are there, {top.document.size} are covered"
        )
    entry = Signed[LedgerEntry].from_json(source.store.get(keys.ledger_entry(number)))
    return InclusionProof(
        roster=_roster(source), entry=entry, path=audit.inclusion(number, top.document.size), checkpoint=top
    )


def prove_since(source: LedgerSource, since: Path, say: Say) -> ConsistencyProof:
    """Proof that the newest checkpoint continues one that was kept; raises `RunFailed` when it does not."""
    kept = read_kept(since, source.trust)
    audit = _good(source, say, kept)
    top = newest_checkpoint(source, audit)
    old = Signed[LedgerCheckpoint].from_json(_read(since))
    path = audit.consistency(kept.size, top.document.size)
    return ConsistencyProof(roster=_roster(source), old=old, new=top, path=path)


def check_file(path: Path, run_key: str | None, join: Path | None) -> str:
    """Check a proof without any ledger; returns what it proves in words, raises `RunFailed` when it proves nothing."""
    if run_key is None and join is None:
        raise InputWrong(
            "to check a proof give --run-key HEX or --join FILE: a key that the proof itself names proves nothing"
        )
    key = checked_key(run_key) if run_key is not None else read_join(join or Path()).run_key
    try:
        proof = PROOF.validate_json(_read(path))
    except ValidationError:
        raise InputWrong(f"{plain(path, 200)} is not a proof of `shoal ledger proof`") from None
    try:
        check_proof(proof, key)
    except BadLedger as error:
        raise RunFailed(plain(error, 500)) from None
    if isinstance(proof, InclusionProof):
        size = proof.checkpoint.document.size
        return (
            f"proven: this entry of run {proof.entry.document.run} is one of the {size} under the checkpoint\n"
            + entry_line(proof.entry.document)
        )
    old, new = proof.old.document, proof.new.document
    return f"proven: the ledger of run {new.run} with {new.size} entries continues the one with {old.size}"


def _roster(source: LedgerSource) -> Signed[Roster]:
    return newest_roster(source.store, source.trust)[0]


def _good(source: LedgerSource, say: Say, *kept: LedgerCheckpoint) -> Audit:
    audit = read_ledger(source, say, kept=kept)
    if audit.report.problems:
        raise RunFailed(plain(audit.report.problems[0], 500))
    return audit


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_PROOF_BYTES + 1)
    except OSError as error:
        raise InputWrong(f"cannot read {plain(path, 200)}: {error.strerror}") from None
    if len(data) > LARGEST_PROOF_BYTES:
        raise InputWrong(f"{plain(path, 200)} is larger than a proof can be")
    return data
