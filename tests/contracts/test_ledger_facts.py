"""What a ledger says of its run, of those invited and of compute, as the audit reads it: forged, missing, replayed, and of before there was any."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from ledger_samples import altered, fact
from samples import COMPUTE, DIGEST, ENTRY, HARDWARE, NODE, ORCHESTRATOR_KEY, ROLE_KEYS, ROSTER, RUN, RUN_KEY, TERMS
from shoal.contracts.compute import compute_of, forward_flops
from shoal.contracts.signed import sign
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.work import FIRST_SLICE
from shoal.crypto.canonical import canonical_bytes, document_digest
from shoal.ledger.audit import SETTLING_SECONDS, Audit, AuditReport
from shoal.ledger.documents import document_problem
from shoal.ledger.entries import EntryKind, LedgerEntry
from shoal.ledger.facts import InvitedNode, RunTerms
from shoal.ledger.succession import Succession

OTHER = "c" * 64
BATCH = StepBatch(
    run=RUN, step=7, beacon=DIGEST, groups=1, groups_dropped=0,
    files=[BatchFile(node=NODE, submission=2, sha256=DIGEST, policy_version=6, rows=64, prompt_indices=[11])],
)  # fmt: skip
INVITED = InvitedNode(pool="workers", expires_unix=1)
ROSTER_DIGEST = document_digest(ROSTER.document)


@dataclass
class Ledger:
    """A signed ledger in memory; `unix` is the time of the next entry."""

    unix: float = 1_795_000_000.0
    audit: Audit = field(default_factory=lambda: Audit(ROSTER.document, {}, RUN_KEY.public))
    files: int = 0

    def __post_init__(self) -> None:
        self.audit._committed[0] = "0" * 64  # as by an entry of before

    def add(self, kind: EntryKind, **fields: Any) -> LedgerEntry:
        chain = self.audit._chain
        entry = LedgerEntry(
            number=chain.next_number, previous=chain.head, run=RUN, unix=self.unix, fact=fact(kind, **fields)
        )
        return self.audit.take(sign(entry, ORCHESTRATOR_KEY).to_json())

    def declare(self, **changes: Any) -> LedgerEntry:
        return self.add("run-declared", digest=ROSTER_DIGEST, terms=terms(**changes))

    def change(self, replaces: int, **changes: Any) -> LedgerEntry:
        return self.add("terms-changed", digest=ROSTER_DIGEST, replaces=replaces, terms=terms(**changes))

    def join(self, node: str, nonce: str = "0" * 32, *, invited: bool = True) -> None:
        if invited:
            self.add("node-invited", node=node, detail=nonce, invited=INVITED)
        self.add("node-joined", node=node, detail=nonce)

    def accept(self, node: str, tokens: int = 100, **fields: Any) -> LedgerEntry:
        self.files += 1
        said = {"step": 0, "submission": self.files, "groups": 1, "tokens": tokens, **fields}
        return self.add("accepted", node=node, digest=f"{self.files:064x}", **said)

    def finish(self) -> AuditReport:
        return self.audit.finish()


def terms(**changes: Any) -> RunTerms:
    return RunTerms.model_validate({**TERMS.model_dump(), **changes})


def test_bytes_of_entries_and_verdicts_of_before_are_what_they_were() -> None:
    before = {
        "number": 0, "previous": "0" * 64, "run": RUN, "kind": "node-joined", "unix": ENTRY.unix, "node": NODE, "step": None,
        "submission": None, "version": None, "digest": None, "tokens": None, "groups": None, "signal_groups": None, "detail": "",
    }  # fmt: skip
    assert canonical_bytes(ENTRY) == rfc8785.dumps(before)
    verdict = verdict_on(None)
    assert b"compute" not in canonical_bytes(verdict)


def test_a_ledger_without_a_declaration_is_good_and_credits_from_the_first_file() -> None:
    ledger = Ledger()
    ledger.join(NODE, invited=False)
    ledger.accept(NODE)
    report = ledger.finish()
    assert (report.problems, report.in_force, report.nodes[NODE].credit()) == ([], None, 100)
    assert report.undeclared == report.entries == 2
    ledger.declare()
    ledger.join(OTHER, nonce="1" * 32)
    assert (ledger.finish().undeclared, ledger.audit.report.entries) == (2, 5)


def test_a_declared_ledger_is_good_and_whoever_was_only_invited_is_no_node_of_it() -> None:
    ledger = Ledger()
    ledger.declare()
    ledger.add("node-invited", node=OTHER, detail="1" * 32, invited=INVITED)
    ledger.join(NODE)
    ledger.accept(NODE, tokens=4, compute=COMPUTE)
    report = ledger.finish()
    assert (report.problems, set(report.nodes)) == ([], {NODE})
    assert report.in_force == TERMS
    assert (report.flops, report.kinds["node-invited"]) == (2.0 * 1000 * 24, 2)


def test_a_declaration_that_names_another_owner_is_found() -> None:
    ledger = Ledger()
    ledger.declare(owner=OTHER)
    (problem,) = ledger.finish().problems
    assert (
        problem == f"entry 0 (run-declared): the run is declared as that of key {OTHER[:16]}..., not of the run's key"
    )


def test_a_declaration_of_another_roster_is_found() -> None:
    ledger = Ledger()
    ledger.add("run-declared", digest=DIGEST, terms=TERMS)
    (problem,) = ledger.finish().problems
    assert problem == "entry 0: it declares another roster than the one that the run's key signed"


def test_a_declaration_without_terms_and_a_missing_one_are_found() -> None:
    ledger = Ledger()
    ledger.add("run-declared", digest=ROSTER_DIGEST)
    ledger.change(0)
    ledger.add("node-invited", node=NODE, detail="0" * 32, invited=INVITED)
    empty, late = ledger.finish().problems
    assert empty == "entry 0 (run-declared): it lacks its terms"
    assert late == "entry 1 (terms-changed): terms change, and no earlier entry declares the run"
    bare = Ledger()
    bare.add("node-invited", node=NODE, detail="0" * 32, invited=INVITED)
    assert bare.finish().problems == ["entry 0 (node-invited): no earlier entry declares the run"]


def test_terms_that_replace_others_than_the_last_are_found_and_those_that_replace_the_same_again_change_nothing() -> (
    None
):
    ledger = Ledger()
    ledger.declare()
    ledger.change(0, probation_files=3)
    ledger.change(0, probation_files=0)  # another orchestrator, too late
    assert ledger.audit.report.in_force == terms(probation_files=3)
    ledger.change(2, probation_files=4)
    (problem,) = ledger.finish().problems
    assert problem == "entry 3 (terms-changed): it replaces the terms of entry 2, those in force are of entry 1"


def test_a_member_whose_invite_was_never_noted_is_found() -> None:
    ledger = Ledger()
    ledger.declare()
    ledger.join(OTHER, nonce="1" * 32)
    ledger.join(NODE, nonce="1" * 32, invited=False)  # another's invite
    (problem,) = ledger.finish().problems
    assert problem == f"entry 3: node {NODE[:16]}... joined with an invite that the ledger does not have"


@pytest.mark.parametrize("change", [{"flops": 1e18}, {"parameters": 999}, {"prompt_tokens": 21}], ids=str)
def test_compute_that_does_not_follow_from_its_figures_is_found(change: dict[str, Any]) -> None:
    ledger = Ledger()
    ledger.declare()
    ledger.join(NODE)
    ledger.accept(NODE, tokens=4, compute=COMPUTE.model_copy(update=change))
    (problem,) = ledger.finish().problems
    assert "operations do not follow from its parameters and tokens" in problem


def test_compute_that_the_validator_did_not_count_is_found() -> None:
    ledger = Ledger()
    ledger.declare()
    ledger.join(NODE)
    entry = ledger.accept(NODE, tokens=4, submission=0, compute=COMPUTE)

    def against(verdict: Verdict) -> str | None:
        signed = sign(verdict.model_copy(update={"sha256": entry.fact.file}), ROLE_KEYS["validator"])
        return document_problem(entry, signed.to_json(), Succession(ROSTER.document, None), None)

    assert against(verdict_on(COMPUTE)) is None
    for other in (None, compute_of(1001, 20, 4), compute_of(1000, 21, 4)):
        assert against(verdict_on(other)) == "entry 3 (accepted): its compute differs from the validator's count"


def test_an_entry_that_leaves_the_validators_compute_out_is_found() -> None:
    ledger = Ledger()
    ledger.declare()
    ledger.join(NODE)
    entry = ledger.accept(NODE, tokens=4, submission=0)

    def against(compute: Any) -> str | None:
        verdict = verdict_on(compute).model_copy(update={"sha256": entry.fact.file})
        return document_problem(
            entry, sign(verdict, ROLE_KEYS["validator"]).to_json(), Succession(ROSTER.document, None), None
        )

    assert against(None) is None
    assert against(COMPUTE) == "entry 3 (accepted): its compute differs from the validator's count"


def verdict_on(compute: Any) -> Verdict:
    return Verdict(
        run=RUN, node=NODE, lease="ab" * 16, step=0, submission=0, sha256=DIGEST, outcome="accept", policy_version=0, rows=1,
        completion_tokens=4, rewards=[RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)], compute=compute,
    )  # fmt: skip


@given(st.integers(1, 1 << 50), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_operations_are_two_a_parameter_and_token_and_survive_the_signature(
    p: int, prompt: int, completion: int
) -> None:
    found = compute_of(p, prompt, completion)
    assert found.flops == pytest.approx(2 * p * (prompt + completion), rel=1e-12)
    assert type(found).from_json(found.to_json()) == found
    assert found.flops == forward_flops(p, prompt, completion)
    canonical_bytes(found)


def test_a_node_is_credited_once_it_had_as_many_files_as_the_terms_of_some_time_asked_for() -> None:
    ledger = Ledger()
    ledger.declare(probation_files=2)
    ledger.join(NODE)
    ledger.join(OTHER, nonce="1" * 32)
    ledger.accept(NODE)
    ledger.accept(OTHER)

    def credit() -> list[int]:
        return [ledger.audit.report.nodes[each].credit() for each in (NODE, OTHER)]

    assert credit() == [0, 0]
    ledger.accept(NODE)
    assert credit() == [200, 0]
    last = ledger.change(0, probation_files=50)
    assert credit() == [200, 0], "what was earned is not taken back by a greater number"
    ledger.change(last.number, probation_files=1)
    assert credit() == [200, 100], "a smaller one holds for all that have as many"
    assert [ledger.audit.report.nodes[NODE].credit(asked) for asked in (0, 2, 3)] == [200, 200, 0]
    ledger.add("node-banned", node=NODE)
    assert credit() == [0, 100]


events = st.lists(st.one_of(st.sampled_from([NODE, OTHER]), st.integers(0, 4)), max_size=25)


@given(st.integers(0, 4), events)
@example(0, [2, NODE])  # nothing was asked for when it joined
def test_credit_follows_the_rule_whatever_comes_in_which_order(first: int, story: list[str | int]) -> None:
    ledger, files, wanted = Ledger(), {NODE: 0, OTHER: 0}, first
    proven = set(files) if first == 0 else set()
    last = ledger.declare(probation_files=first).number
    ledger.join(NODE)
    ledger.join(OTHER, nonce="1" * 32)
    for event in story:
        if isinstance(event, int):
            wanted, last = event, ledger.change(last, probation_files=event).number
        else:
            files[event] += 1
            ledger.accept(event)
        proven |= {node for node, accepted in files.items() if accepted >= wanted}
    report = ledger.finish()
    assert report.problems == []
    assert {node: report.nodes[node].credit() for node in files} == {
        node: 100 * accepted if node in proven else 0 for node, accepted in files.items()
    }


def test_a_reject_takes_the_votes_of_its_time_and_for_ten_minutes_those_of_before() -> None:
    ledger = Ledger()
    report = ledger.audit.report

    def asked() -> int | None:
        entry = ledger.add("node-dead", node=NODE)  # any entry has a time
        return report.slash_votes_at(entry)

    assert asked() is None
    first = ledger.declare(slash_votes=1)
    assert asked() == 1
    ledger.unix += 10 * SETTLING_SECONDS
    second = ledger.change(first.number, slash_votes=3)
    assert asked() == 1
    ledger.unix += SETTLING_SECONDS + 1
    assert asked() == 3
    ledger.change(second.number, slash_votes=2)
    assert asked() == 2
    assert report.slash_votes_at(second) == 1


def test_terms_dated_long_after_what_follows_them_keep_no_milder_ones_in_force() -> None:
    ledger = Ledger()
    first = ledger.declare(slash_votes=1)
    ledger.unix += 1e9
    ledger.change(first.number, slash_votes=3)
    ledger.unix -= 1e9 - 10 * SETTLING_SECONDS
    assert ledger.audit.report.slash_votes_at(ledger.add("node-dead", node=NODE)) == 3


def test_the_largest_declaration_and_invite_are_no_larger_than_readers_take() -> None:
    from shoal.ledger.facts import MOST_DECLARED_POOLS, DeclaredPool
    from shoal.ledger.reading import LARGEST_ENTRY_BYTES

    pools = [
        DeclaredPool(name=f"{'p' * 38}{n:02d}", open=True, listed=10_000, codes=10_000)
        for n in range(MOST_DECLARED_POOLS)
    ]
    declared = terms(pools=[each.model_dump() for each in pools], model_id="\u2603" * 253)
    hardware = HARDWARE.model_copy(update={"gpu_type": '"' * 200})
    invited = InvitedNode(
        pool="p" * 40, expires_unix=1, registered_unix=1e300, software_version='"' * 200, hardware=hardware
    )
    for entry in (altered(ENTRY, terms=declared), altered(ENTRY, invited=invited)):
        assert len(sign(entry, ORCHESTRATOR_KEY).to_json()) < LARGEST_ENTRY_BYTES / 2


@pytest.mark.parametrize(
    ("kind", "fields", "lacks"),
    [
        ("accepted", {"node": NODE, "step": 0, "submission": 0, "tokens": 10**9, "groups": 1}, "digest"),
        ("accepted", {"node": NODE, "submission": 0, "digest": "0" * 64, "groups": 1}, "step and tokens"),
        ("rejected", {"node": NODE, "step": 0, "submission": 0, "detail": "computation: x"}, "digest"),
        ("batch-sealed", {"digest": "0" * 64}, "step"),
        ("version-published", {"version": 1}, "digest"),
        ("node-joined", {}, "node and detail"),
        ("node-joined", {"node": OTHER}, "detail"),
        ("node-invited", {"node": OTHER, "detail": "1" * 32}, "invited"),
        ("node-evicted", {"node": NODE}, "detail"),
        ("accepted", {"node": NODE, "step": 0, "digest": "0" * 64, "tokens": 10**9}, "submission and groups"),
        ("rejected", {"node": NODE, "step": 0, "submission": 0, "digest": "0" * 64}, "detail"),
        ("dataset-published", {}, "digest and detail"),
        ("terms-changed", {"digest": ROSTER_DIGEST, "terms": TERMS}, "replaces"),
    ],
)
def test_an_entry_that_names_no_document_is_found_and_counts_for_nothing(
    kind: EntryKind, fields: dict[str, Any], lacks: str
) -> None:
    ledger = Ledger()
    ledger.declare(probation_files=0)
    ledger.join(NODE)
    ledger.add(kind, **fields)
    report = ledger.finish()
    assert report.problems == [f"entry 3 ({kind}): it lacks its {lacks}"]
    assert (report.nodes[NODE].tokens, report.nodes[NODE].files_rejected) == (0, 0)


def test_an_entry_that_says_what_its_kind_never_does_is_found_and_counts_for_nothing() -> None:
    ledger = Ledger()
    ledger.declare(probation_files=0)
    ledger.join(NODE)
    ledger.add("node-banned", node=NODE, tokens=9, compute=COMPUTE)
    report = ledger.finish()
    assert report.problems == [
        "entry 3 (node-banned): it has tokens and compute, which entries of this kind never have"
    ]
    assert not report.nodes[NODE].evicted


@pytest.mark.parametrize("said", [{"nonce": "0" * 32}, {"fact": {"kind": "node-joined"}}, {"other": 1}], ids=str)
def test_a_signed_entry_with_a_field_that_none_has_is_not_readable(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        altered(ENTRY, **said)


def test_a_batch_that_was_sealed_before_its_beacon_was_fixed_is_found() -> None:
    ledger = Ledger()
    ledger.declare()
    ledger.add("batch-sealed", step=4, digest="0" * 64)
    ledger.add("beacon-committed", step=4, digest="0" * 64)
    assert ledger.finish().problems == ["entry 1: the batch of step 4 was sealed before its beacon was committed to"]


def test_a_file_that_was_accepted_before_its_steps_beacon_was_fixed_is_found() -> None:
    """The beacon decides on the prompts: fixed once the files are in, it could be drawn for them."""
    ledger = Ledger()
    ledger.declare(probation_files=0)
    ledger.join(NODE)
    ledger.accept(NODE)
    assert ledger.finish().problems == []
    ledger.accept(NODE, step=4)
    ledger.add("beacon-committed", step=4, digest="0" * 64)
    ledger.add("batch-sealed", step=4, digest="0" * 64)
    ledger.accept(NODE, step=FIRST_SLICE + 9)
    ledger.add("beacon-committed", step=FIRST_SLICE + 8, digest="0" * 64)
    ledger.accept(NODE, step=FIRST_SLICE + 9)
    assert ledger.finish().problems == [
        f"entry {number}: a file of step {step} was accepted before its beacon was committed to"
        for number, step in ((4, 4), (7, FIRST_SLICE + 9))
    ]


def test_a_verdict_of_another_run_or_for_another_reason_is_found() -> None:
    ledger = Ledger()
    ledger.declare()
    ledger.join(NODE)
    digest = "7" * 64
    entry = ledger.add("rejected", node=NODE, step=0, submission=0, digest=digest, detail="reward: row 3")
    verdict = verdict_on(None).model_copy(
        update={"sha256": digest, "outcome": "reject", "reason": "reward", "rewards": []}
    )

    def against(**changes: Any) -> str | None:
        signed = sign(verdict.model_copy(update=changes), ROLE_KEYS["validator"])
        return document_problem(entry, signed.to_json(), Succession(ROSTER.document, None), None)

    assert against() is None
    assert against(run="another") == "entry 3 (rejected): the validator's verdict is on another file, or says reject"
    assert against(reason="bounds") == "entry 3 (rejected): its reason differs from the validator's, which is bounds"


def test_a_batch_of_another_step_or_run_is_found() -> None:
    ledger = Ledger()
    ledger.declare()
    for changes in ({"step": BATCH.step + 1}, {"run": "another"}):
        data = BATCH.model_copy(update=changes).to_json()
        entry = ledger.add("batch-sealed", step=BATCH.step, digest=hashlib.sha256(data).hexdigest())
        assert "the batch is of step" in str(document_problem(entry, data, Succession(ROSTER.document, None), None))


def test_who_joined_before_there_were_terms_is_on_probation_too() -> None:
    ledger = Ledger()
    ledger.join(NODE, invited=False)
    ledger.declare(probation_files=3)
    ledger.accept(NODE)
    assert ledger.finish().nodes[NODE].credit() == 0
