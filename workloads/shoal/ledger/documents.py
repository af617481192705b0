"""Compares entries of the ledger with the documents that they name: verdicts, batches, weights, and the findings that a reject takes. Pure.

Comes in: an entry and the bytes of its document, as whoever calls has read them. Goes out: what is wrong between the two, in words, or None. Beside
`ledger_audit`, which checks the ledger by itself.
"""

import hashlib
from collections.abc import Sequence

from shoal.contracts import keys as names
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.steps import StepBatch
from shoal.contracts.verdicts import NEVER_ALONE, Opinion, Verdict, findings_needed, votes_of
from shoal.contracts.weights import WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.ledger.audit import first_line
from shoal.ledger.entries import Accepted, BatchSealed, Fact, LedgerEntry, Rejected, VersionPublished
from shoal.ledger.succession import Succession
from shoal.sampling.draw import beacon_commitment


def document_key(fact: Fact) -> str | None:
    """Where the document lies that a fact names; None for one that names none."""
    match fact:
        case Accepted(node=node, file=file) | Rejected(node=node, file=file):
            return names.verdict(node, file)
        case BatchSealed(step=step):
            return names.step_batch(step)
        case VersionPublished(version=version):
            return names.version_weights(version)
        case _:
            return None


def document_problem(entry: LedgerEntry, data: bytes | None, keys: Succession, commitment: str | None) -> str | None:
    """A contradiction between an entry and the document that it names; None when they agree. `commitment`: to the beacon of the entry's step."""
    where = f"entry {entry.number} ({entry.kind})"
    if data is None:
        return f"{where}: the document that it names does not exist"
    try:
        match entry.fact:
            case BatchSealed() as fact:
                problem = _batch_problem(entry.run, fact, data, commitment)
            case VersionPublished(version=version, weights=weights):
                manifest = Signed[WeightsManifest].from_json(data).verified(keys.believed("trainer", entry))
                same = (manifest.version, manifest.sha256) == (version, weights)
                problem = None if same else "the sealed weights differ from the announced ones"
            case Accepted() | Rejected() as fact:
                verdict = Signed[Verdict].from_json(data).verified(keys.believed("validator", entry))
                problem = _verdict_problem(entry.run, fact, verdict)
            case _:
                problem = None
    except (BadSignature, ValueError, KeyError) as error:
        return f"{where}: its document is not signed by the role that makes it, or not readable: {first_line(error)}"
    return problem and f"{where}: {problem}"


def _verdict_problem(run: str, fact: Accepted | Rejected, verdict: Verdict) -> str | None:
    told = (run, fact.node, fact.step, fact.submission, fact.file, f"{verdict.outcome}ed")
    if told != (verdict.run, verdict.node, verdict.step, verdict.submission, verdict.sha256, fact.kind):
        return f"the validator's verdict is on another file, or says {verdict.outcome}"
    if isinstance(fact, Rejected) and not fact.finding.startswith(f"{verdict.reason}:"):
        return f"its reason differs from the validator's, which is {verdict.reason}"
    if isinstance(fact, Accepted) and fact.tokens != verdict.completion_tokens:
        return f"{fact.tokens} tokens are credited, the validator counted {verdict.completion_tokens}"
    if (fact.compute if isinstance(fact, Accepted) else None) != verdict.compute:
        return "its compute differs from the validator's count"
    if isinstance(fact, Accepted) and (fact.left_out or []) != verdict.left_out:
        return f"it leaves out rows {fact.left_out or []}, the validator {verdict.left_out}"
    if isinstance(fact, Accepted) and fact.part != verdict.part:
        return "it is of another part of its lease than the validator's verdict"
    if isinstance(fact, Accepted) and fact.looked_at not in (None, verdict.looked_at):
        return f"it says that {fact.looked_at} tokens were looked at, the validator {verdict.looked_at}"
    if isinstance(fact, Accepted) and (fact.claimed_rows or 0) != verdict.claimed_rows:
        return f"it says that {fact.claimed_rows or 0} rows were not scored again, the validator {verdict.claimed_rows}"
    return None


def rejects_to_repeat(entry: LedgerEntry, data: bytes | None, slash_votes: int) -> Signed[Verdict] | None:
    """The verdict behind a `rejected` entry that takes more than one finding; None for any other, and for what `document_problem` finds wrong."""
    if not isinstance(entry.fact, Rejected) or data is None:
        return None
    try:
        signed = Signed[Verdict].from_json(data)
    except ValueError:
        return None
    return signed if findings_needed(signed.document, slash_votes) > 1 else None


def findings_problem(
    entry: LedgerEntry, verdict: Verdict, opinions: Sequence[bytes | None], keys: Succession, slash_votes: int
) -> str | None:
    """The findings that a reject lacks, given the recorded one and the file's `opinions/`; None when they are all there.

    A finding counts once, for the file and reason of the recorded one, with a validator's signature; with more than one vote, and for `NEVER_ALONE`,
    also once a validator: by its name and by the key of its card, if it has one.
    """
    found = {document_digest(verdict): verdict.voter}
    for data in opinions:
        try:
            other = Opinion.from_json(data or b"").verdict.verified(keys.believed("validator", entry))
        except (BadSignature, ValueError, KeyError):
            continue
        same = ("run", "node", "lease", "step", "submission", "sha256", "outcome", "reason")
        if all(getattr(other, name) == getattr(verdict, name) for name in same):
            found[document_digest(other)] = other.voter
    needed = findings_needed(verdict, slash_votes)
    by_others = slash_votes > 1 or verdict.reason in NEVER_ALONE
    there = votes_of(found.values()) if by_others else len(found)
    if there >= needed:
        return None
    by = f"{needed} validators" if by_others else "a second check"
    return (
        f"entry {entry.number} ({entry.kind}): a reject for {verdict.reason} takes the same finding by {by}, and the signed findings"
        f" under verdicts/ and opinions/ are {there} of {needed}"
    )


def _batch_problem(run: str, fact: BatchSealed, data: bytes, commitment: str | None) -> str | None:
    if hashlib.sha256(data).hexdigest() != fact.batch:
        return f"the batch of step {fact.step} is not the one that was sealed"
    batch = StepBatch.from_json(data)
    if (batch.run, batch.step) != (run, fact.step):
        return f"the batch is of step {batch.step} of run {batch.run!r}"
    if commitment is None or beacon_commitment(bytes.fromhex(batch.beacon)) != commitment:
        return f"the beacon of step {fact.step} is not the committed one"
    return None
