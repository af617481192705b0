"""A copy of a small run's store with its ledger, for tests of `shoal ledger`, and ways to change it."""

import hashlib
from pathlib import Path

from ledger_samples import altered, fact
from samples import NODE, ORCHESTRATOR_KEY, ROLE_KEYS, ROSTER, RUN
from shoal.contracts import keys
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.weights import WeightsManifest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.checkpoints import Checkpoints
from shoal.ledger.entries import LedgerEntry
from shoal.ledger.writer import LedgerWriter
from shoal.sampling.draw import beacon_commitment
from shoal.storage.store import Store, open_folder

HONEST, CHEAT = NODE, "c" * 64
FILES = {HONEST: "1" * 64, CHEAT: "2" * 64}
ESCAPES = "\x1b[2J\u202eevil"
BEACON = bytes(range(32))


def verdict(node: str, submission: int, tokens: int, *, accepted: bool) -> Verdict:
    fields = {"run": RUN, "node": node, "lease": "ab" * 16, "step": 0, "submission": submission, "sha256": FILES[node]}
    if not accepted:
        return Verdict(**fields, outcome="reject", reason="sampling", evidence=ESCAPES)
    return Verdict(
        **fields, outcome="accept", policy_version=0, rows=1, completion_tokens=tokens,
        rewards=[RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)],
    )  # fmt: skip


def make_copy(folder: Path) -> Path:
    """A copy of a small run's store: two nodes, one of them slashed after a file of it was accepted."""
    folder.mkdir()
    store = open_folder(folder, "", deadline_seconds=2)
    writer = LedgerWriter(store, RUN, ORCHESTRATOR_KEY, clock=lambda: 1_795_000_000.0)
    checkpoints = Checkpoints(writer, ROSTER)
    writer.append(fact("beacon-committed", step=0, digest=beacon_commitment(BEACON)))
    weights = WeightsManifest(
        run=RUN, version=0, model="tiny", sha256="3" * 64, open_digest="4" * 64, shards=["5" * 64]
    )
    store.put(keys.version_weights(0), sign(weights, ROLE_KEYS["trainer"]).to_json())
    writer.append(fact("version-published", version=0, digest="3" * 64))
    for number, node in enumerate((HONEST, CHEAT)):
        writer.append(fact("node-joined", node=node, detail=f"{number:032d}"))
    writer.append(fact("beacon-revealed", step=0, digest=beacon_commitment(BEACON)))
    checkpoints.write_due(0.0, complete=True)
    signed = sign(verdict(HONEST, 0, 700, accepted=True), ROLE_KEYS["validator"])
    store.put(keys.verdict(HONEST, FILES[HONEST]), signed.to_json())
    accept(writer, HONEST, 700)
    batch = StepBatch(
        run=RUN, step=0, beacon=BEACON.hex(), groups=1, groups_dropped=0,
        files=[BatchFile(node=HONEST, submission=0, sha256=FILES[HONEST], policy_version=0, rows=1, prompt_indices=[1])],
    )  # fmt: skip
    store.put(keys.step_batch(0), batch.to_json())

    writer.append(fact("batch-sealed", step=0, digest=hashlib.sha256(batch.to_json()).hexdigest(), groups=1))
    rejected = sign(verdict(CHEAT, 0, 0, accepted=False), ROLE_KEYS["validator"])
    store.put(keys.verdict(CHEAT, FILES[CHEAT]), rejected.to_json())
    writer.append(
        fact("accepted", node=CHEAT, step=0, submission=1, digest="9" * 64, tokens=300, groups=1, signal_groups=1)
    )
    earlier = verdict(CHEAT, 1, 300, accepted=True).model_copy(update={"sha256": "9" * 64})
    store.put(keys.verdict(CHEAT, "9" * 64), sign(earlier, ROLE_KEYS["validator"]).to_json())
    writer.append(fact(
        "rejected", node=CHEAT, step=0, submission=0, digest=FILES[CHEAT], detail=f"sampling: {ESCAPES}"
    ))  # fmt: skip
    writer.append(fact("node-evicted", node=CHEAT, detail="file was rejected"))
    checkpoints.write_due(1.0, complete=True)
    return folder


def accept(writer: LedgerWriter, node: str, tokens: int) -> None:
    writer.append(
        fact("accepted", node=node, step=0, submission=0, digest=FILES[node], tokens=tokens, groups=2, signal_groups=1)
    )


def store_of(copy: Path) -> Store:
    return open_folder(copy, "", deadline_seconds=2)


def entry_of(copy: Path, number: int) -> Signed[LedgerEntry]:
    return Signed[LedgerEntry].from_json(store_of(copy).get(keys.ledger_entry(number)))


def changed(copy: Path, number: int, signer: PrivateKey = ORCHESTRATOR_KEY, **changes: object) -> None:
    entry = altered(entry_of(copy, number).document, **changes)
    store_of(copy).put(keys.ledger_entry(number), sign(entry, signer).to_json())


def rewrite_from(copy: Path, number: int, **changes: object) -> None:
    """The orchestrator itself rewrites its history: every later entry is chained and signed again."""
    store = store_of(copy)
    writer = LedgerWriter(store, RUN, ORCHESTRATOR_KEY)
    entries = [entry_of(copy, each).document for each in range(10)]
    for each in range(10):
        store.delete(keys.ledger_entry(each))
    for entry in entries:
        writer.append(altered(entry, **(changes if entry.number == number else {})).fact)
