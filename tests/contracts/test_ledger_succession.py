"""A ledger whose orchestrator's key was changed: it is checked along the succession, and every tampering with it is found."""

from collections.abc import Callable
from typing import Any

import pytest

from changed_keys import RunKeys
from samples import DIGEST, LEASE, NODE, NOW, RUN, key
from shoal.contracts.roster import ROLES
from shoal.contracts.signed import Signed, sign
from shoal.contracts.trust import OVERLAP_SECONDS
from shoal.contracts.verdicts import ValidatorCard, Verdict
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.ledger.audit import Audit, AuditReport, BadLedger, check_proof
from shoal.ledger.documents import document_problem
from shoal.ledger.entries import (
    GENESIS,
    Accepted,
    BeaconCommitted,
    Fact,
    InclusionProof,
    KeysChanged,
    LedgerEntry,
    VersionPublished,
)


class Story:
    """A ledger as its orchestrators wrote it."""

    def __init__(self) -> None:
        self.keys = RunKeys(RUN, key(1), {role: key(20 + n) for n, role in enumerate(ROLES)}, fixed=key(2))
        self.entries: list[Signed[LedgerEntry]] = []
        self.unix = NOW

    def write(self, fact: Fact, signer: PrivateKey | None = None) -> LedgerEntry:
        self.unix += 1
        previous = document_digest(self.entries[-1].document) if self.entries else GENESIS
        entry = LedgerEntry(number=len(self.entries), previous=previous, run=RUN, fact=fact, unix=self.unix)
        self.entries.append(sign(entry, signer or self.keys.roles["orchestrator"]))
        return entry

    def change(self, holder: Any, *, leaked: bool = False) -> LedgerEntry:
        self.keys.change(holder, self.unix, leaked=leaked)
        return self.write(KeysChanged(keys=self.keys.roster))

    def read(self, entries: list[Signed[LedgerEntry]] | None = None) -> tuple[Audit, AuditReport]:
        audit = Audit(self.keys.roster.document, {}, key(1).public)
        for each in entries if entries is not None else self.entries:
            audit.take(each.to_json())
        return audit, audit.finish()


@pytest.fixture
def story() -> Story:
    """Three entries before each change, all three by other keys; then two more."""
    made = Story()
    for step in range(3):
        made.write(BeaconCommitted(step=step, commitment=DIGEST))
    made.change("orchestrator")
    made.write(BeaconCommitted(step=3, commitment=DIGEST))
    made.change("run", leaked=True)
    made.change("orchestrator", leaked=True)
    made.write(BeaconCommitted(step=4, commitment=DIGEST))
    return made


def found(action: Callable[[], Any]) -> str:
    with pytest.raises(BadLedger) as caught:
        action()
    return str(caught.value)


def test_the_ledger_is_good_along_its_keys(story: Story) -> None:
    _, report = story.read()
    assert report.problems == []
    assert report.key_changes == 3
    assert report.entries == 8


def test_an_entry_by_an_earlier_key_is_found(story: Story) -> None:
    old = story.keys.former["orchestrator"]
    for number, signer in ((4, old[0]), (7, old[0]), (7, old[1]), (1, story.keys.roles["orchestrator"])):
        forged = [*story.entries]
        forged[number] = sign(forged[number].document, signer)
        assert found(lambda forged=forged: story.read(forged)).startswith(
            f"entry {number} is not signed by this run's orch"
        )


def test_a_ledger_without_its_last_change_is_found(story: Story) -> None:
    thief = Story()
    thief.keys.roles = {**thief.keys.roles}
    entries = story.entries[:6]  # the run key's leak is known, the orchestrator's not
    _, report = story.read(entries)
    assert report.problems == [
        "the ledger lacks a change of keys: the roster has 3 changes of keys, the ledger 2: its orchestrator has not recorded the newest"
    ]


def test_a_change_that_the_run_key_did_not_sign_is_found(story: Story) -> None:
    thief = RunKeys(RUN, key(9), dict(story.keys.roles))
    thief.change("orchestrator", story.unix, new=key(50))
    entries = story.entries[:3]
    last = entries[-1].document
    fact = KeysChanged(keys=thief.roster)
    entry = LedgerEntry(number=3, previous=document_digest(last), run=RUN, fact=fact, unix=last.unix)
    assert "no change of the run key leads there" in found(lambda: story.read([*entries, sign(entry, key(50))]))


def test_an_older_roster_does_not_come_back(story: Story) -> None:
    first = story.entries[3].document.fact
    story.write(first)
    assert "not newer than that of an earlier entry" in found(story.read)


def test_a_changed_date_of_a_change_is_found(story: Story) -> None:
    entry = story.entries[3].document
    roster = entry.fact.keys.document
    [change] = roster.changes
    changes = [change.model_copy(update={"document": change.document.model_copy(update={"unix": NOW + 9000})})]
    keys = sign(roster.model_copy(update={"changes": changes}), key(1))
    forged = LedgerEntry.model_validate({**entry.model_dump(), "keys": keys})
    signer = story.keys.former["orchestrator"][1]
    text = found(lambda: story.read([*story.entries[:3], sign(forged, signer)]))
    assert "the signature of" in text
    assert "does not fit" in text


def test_a_proof_under_a_leaked_key_proves_nothing(story: Story) -> None:
    audit, _ = story.read(story.entries[:6])
    checkpoint = audit._chain.checkpoint()
    leaked = story.keys.former["orchestrator"][1]
    path = audit.inclusion(1, 6)
    proof = InclusionProof(
        roster=story.keys.roster, entry=story.entries[1], path=path, checkpoint=sign(checkpoint, leaked)
    )
    assert "its key leaked: take a proof under a newer checkpoint" in found(lambda: check_proof(proof, key(1).public))
    good = proof.model_copy(update={"checkpoint": sign(checkpoint, story.keys.roles["orchestrator"])})
    assert check_proof(good, key(1).public) == story.keys.roster.document  # an old entry, under a key that holds


@pytest.mark.parametrize("leaked", [True, False])
def test_documents_of_an_earlier_key_are_believed_up_to_its_end(leaked: bool) -> None:
    story = Story()
    old = story.keys.roles["validator"]

    def file(step: int) -> tuple[LedgerEntry, Verdict]:
        digest = f"{step:064x}"
        own = key(90)
        card = sign(ValidatorCard(run=RUN, validator="v-0", key=own.public, unix=NOW), old)
        verdict = Verdict(
            run=RUN, node=NODE, lease=LEASE, step=step, submission=0, sha256=digest, policy_version=0, outcome="accept",
            rewards=[{"task_reward": 1.0, "length_penalty": 0.0, "reward": 1.0}], rows=1, completion_tokens=4,
            validator="v-0", card=card,
        )  # fmt: skip
        fact = Accepted(node=NODE, step=step, submission=0, file=digest, tokens=4, groups=1)
        return story.write(fact), verdict

    before = file(0)
    story.change("validator", leaked=leaked)
    soon = file(1)
    story.unix += OVERLAP_SECONDS + 10
    late = file(2)
    audit, _ = story.read()

    def problem(pair: tuple[LedgerEntry, Verdict]) -> str | None:
        return document_problem(pair[0], sign(pair[1], key(90)).to_json(), audit.keys, None)

    assert problem(before) is None
    assert (problem(soon) is None) is not leaked
    assert "entry 1 replaced this key of the validator" in str(problem(late))


def test_a_verdict_without_a_card_counts_only_in_runs_that_began_without_them() -> None:
    story = Story()
    fact = Accepted(node=NODE, step=0, submission=0, file=DIGEST, tokens=0, groups=1)
    entry = story.write(fact)
    audit, _ = story.read()
    verdict = Verdict(
        run=RUN, node=NODE, lease=LEASE, step=0, submission=0, sha256=DIGEST, outcome="reject", reason="redraw"
    )
    data = sign(verdict, story.keys.roles["validator"]).to_json()
    assert "no card of one" in str(document_problem(entry, data, audit.keys, None))


def test_versions_of_an_earlier_key_stay_good() -> None:
    story = Story()
    entry = story.write(VersionPublished(version=0, weights=DIGEST))
    old = story.keys.roles["trainer"]
    story.change("trainer", leaked=True)
    audit, _ = story.read()
    assert audit.keys.believed("trainer", entry).refusal(old.public, entry) == ""
    assert audit.keys.believed("trainer", entry).refusal(key(99).public, entry).startswith("required:")
