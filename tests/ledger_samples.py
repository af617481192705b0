"""Samples of what the ledger says in fields of its own; part of `samples`, which gives the run's key, a node and its hardware."""

from types import SimpleNamespace

from shoal.contracts.base import Contract
from shoal.contracts.compute import compute_of
from shoal.contracts.protocol import Hardware
from shoal.ledger.entries import GENESIS, EntryKind, Fact, LedgerEntry
from shoal.ledger.facts import DeclaredPool, InvitedNode, RunTerms

DIGEST = "0123456789abcdef" * 4
NOW = 1_795_000_000.0
COMPUTE = compute_of(parameters=1000, prompt_tokens=20, completion_tokens=4)


def fact(kind: EntryKind, **fields: object) -> Fact:
    """A fact, well-formed or not, from the fields of the signed document."""
    own = {"number": 0, "previous": GENESIS, "run": "r", "unix": NOW}
    return LedgerEntry.model_validate({**own, "kind": kind, **fields}).fact


def flat(entry: LedgerEntry) -> SimpleNamespace:
    """An entry with the fields of its signed document, None for each that it does not say."""
    later = {name: getattr(entry.fact, name, None) for name in ("terms", "replaces", "invited", "compute", "keys")}
    return SimpleNamespace(**{**entry.model_dump(), **later})


def altered(entry: LedgerEntry, **changes: object) -> LedgerEntry:
    """The entry with other fields in its signed document."""
    return LedgerEntry.model_validate({**entry.model_dump(), **changes})


def terms_by(owner: str) -> RunTerms:
    """Terms of a run with this public key."""
    return RunTerms(
        owner=owner,
        domain="reinforcement-learning",
        model_id="arithmetic-tiny",
        probation_files=10,
        slash_votes=2,
        slashing="Evict",
        pools=[DeclaredPool(name="workers", open=True, listed=2, codes=1)],
        pool_count=1,
        pools_digest=DIGEST,
    )


def ledger_samples(run: str, owner: str, node: str, hardware: Hardware) -> list[Contract]:
    """One document of each kind, and an entry of each kind."""
    terms = terms_by(owner)
    invited = InvitedNode(
        pool="workers", expires_unix=int(NOW) + 120, registered_unix=NOW, software_version="0.1", hardware=hardware
    )

    def entry(**fields: object) -> LedgerEntry:
        return LedgerEntry.model_validate({"number": 9, "previous": GENESIS, "run": run, "unix": NOW, **fields})

    return [
        *terms.pools, terms, invited, COMPUTE,
        entry(kind="run-declared", digest=DIGEST, terms=terms),
        entry(kind="terms-changed", digest=DIGEST, terms=terms, replaces=0),
        entry(kind="node-invited", node=node, detail="ab" * 16, digest=DIGEST, invited=invited),
        entry(kind="accepted", node=node, step=7, submission=2, digest=DIGEST, tokens=4, groups=1, compute=COMPUTE),
        entry(kind="rejected", node=node, step=7, submission=2, digest=DIGEST, detail="sampling: row 3"),
        entry(kind="beacon-committed", step=7, digest=DIGEST),
        entry(kind="beacon-revealed", step=7, digest=DIGEST),
        entry(kind="batch-sealed", step=7, digest=DIGEST, groups=2),
        entry(kind="version-published", version=7, digest=DIGEST),
        entry(kind="dataset-published", digest=DIGEST, detail="traces"),
        entry(kind="node-joined", node=node, detail="ab" * 16),
        entry(kind="node-dead", node=node),
        entry(kind="node-evicted", node=node, detail="file was rejected"),
        entry(kind="node-banned", node=node, detail="ten keys on one machine"),
        entry(kind="node-unbanned", node=node),
    ]  # fmt: skip
