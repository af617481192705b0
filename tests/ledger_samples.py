"""Samples of what the ledger says in fields of its own; part of `samples`, which gives the run's key, a node and its hardware."""

from shoal.contracts.base import Contract
from shoal.contracts.compute import compute_of
from shoal.contracts.protocol import Hardware
from shoal.ledger.entries import GENESIS, LedgerEntry
from shoal.ledger.facts import DeclaredPool, InvitedNode, RunTerms

DIGEST = "0123456789abcdef" * 4
NOW = 1_795_000_000.0
COMPUTE = compute_of(parameters=1000, prompt_tokens=20, completion_tokens=4)


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
    """One document of each kind, and an entry that carries it."""
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
    ]  # fmt: skip
