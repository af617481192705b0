"""The ledger says how many rows nobody scored again: in the entry of their file, in its totals, and never otherwise than the verdict."""

from ledger_samples import fact
from samples import DIGEST, NODE, ROLE_KEYS, ROSTER, RUN
from shoal.contracts.signed import sign
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.ledger.audit import AuditReport
from shoal.ledger.documents import document_problem
from shoal.ledger.entries import GENESIS, Accepted, LedgerEntry
from shoal.ledger.succession import Succession
from shoal.ledger.text import entry_line, totals_lines, totals_records


def entry(**more: object) -> LedgerEntry:
    fields = {"kind": "accepted", "node": NODE, "step": 7, "submission": 2, "digest": DIGEST, "tokens": 4, "groups": 1}
    own = {"number": 0, "previous": GENESIS, "run": RUN, "unix": 1_795_000_000.0}
    return LedgerEntry.model_validate({**own, **fields, **more})


def verdict(claimed: int) -> bytes:
    reward = RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)
    found = Verdict(
        run=RUN, node=NODE, lease="ab" * 16, step=7, submission=2, sha256=DIGEST, policy_version=6, outcome="accept",
        rewards=[reward] * 2, rows=2, completion_tokens=4, proof_rows=2, claimed_rows=claimed,
    )  # fmt: skip
    return sign(found, ROLE_KEYS["validator"]).to_json()


def test_an_entry_has_the_rows_and_none_where_all_were_scored_again() -> None:
    told = entry(claimed_rows=2)
    assert isinstance(told.fact, Accepted)
    assert LedgerEntry.from_json(told.to_json()) == told
    assert "rows not scored again 2" in entry_line(told)
    assert b"claimed_rows" not in entry().to_json()
    assert "scored again" not in entry_line(entry())
    told_by_another = fact("node-joined", node=NODE, detail="workers", claimed_rows=2)
    assert getattr(told_by_another, "problem", "") == "it has claimed_rows, which entries of this kind never have"


def test_totals_say_it_once() -> None:
    assert (
        "7 accepted rows have the reward that their worker claimed"
        in totals_lines(AuditReport(run=RUN, claimed_rows=7), None)[-1]
    )
    assert totals_records(AuditReport(run=RUN, claimed_rows=7), None)["claimed_rows"] == 7
    assert not any("claimed" in line for line in totals_lines(AuditReport(run=RUN), None))


def test_an_entry_that_hides_claims_contradicts_its_verdict() -> None:
    def problem(told: LedgerEntry, claimed: int) -> str | None:
        return document_problem(told, verdict(claimed), Succession(ROSTER.document, None), None)

    assert problem(entry(claimed_rows=2), 2) is None
    assert problem(entry(), 0) is None
    assert problem(entry(), 2) == "entry 0 (accepted): it says that 0 rows were not scored again, the validator 2"
    assert (
        problem(entry(claimed_rows=2), 0)
        == "entry 0 (accepted): it says that 2 rows were not scored again, the validator 0"
    )
