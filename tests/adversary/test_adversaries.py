"""Lying does not pay: each dishonest worker of `cheat_table.CHEATS`, with a key of its own, hands one file to the real service and is found out.

The run is the demo's (examples/arithmetic): its model, its dtype (float32), its thresholds and its rates. Honest workers around them are
accepted and stay.
"""

import re

import pytest
from arena import Contender, Outcome
from cheat_table import CHEATS
from cheats import Cheat
from parquet_bombs import MARKER
from tournament import Tournament

from shoal.contracts.verdicts import Verdict
from shoal.transport import Refused

pytestmark = pytest.mark.timeout(1200)


def outcome_of(tournament: Tournament, cheat: Cheat) -> Outcome:
    found = tournament.outcomes[cheat.name]
    if isinstance(found, Exception):
        raise found
    return found


def verdict_of(tournament: Tournament, cheat: Cheat) -> Verdict:
    verdict = outcome_of(tournament, cheat).verdict
    assert verdict is not None, f"refused by the orchestrator: {outcome_of(tournament, cheat).refusal}"
    return verdict


JUDGED = [cheat for cheat in CHEATS if cheat.reason is not None]
REFUSED = [cheat for cheat in CHEATS if cheat.reason is None]


def test_honest_files_fill_the_first_step(tournament: Tournament) -> None:
    outcomes = []
    for outcome in tournament.honest.values():
        assert outcome.verdict is not None
        assert outcome.verdict.outcome in ("accept", "expired"), outcome.verdict.evidence
        outcomes.append(outcome.verdict.outcome)
    assert (
        outcomes.count("accept") >= 4
    )  # the step needs 24 groups with signal, a file has 6; who comes later has expired


@pytest.mark.parametrize("cheat", JUDGED, ids=lambda cheat: cheat.name)
def test_a_dishonest_file_is_rejected_for_its_own_reason(tournament: Tournament, cheat: Cheat) -> None:
    verdict = verdict_of(tournament, cheat)
    assert (verdict.outcome, verdict.reason) == ("reject", cheat.reason), verdict.evidence
    assert re.search(cheat.evidence, verdict.evidence), verdict.evidence


@pytest.mark.parametrize("cheat", JUDGED, ids=lambda cheat: cheat.name)
def test_its_node_is_evicted_in_the_ledger_and_gets_no_more_work(tournament: Tournament, cheat: Cheat) -> None:
    verdict_of(tournament, cheat)
    node: Contender = tournament.nodes[cheat.name]
    assert tournament.arena.ledger_has("rejected", node.id)
    assert tournament.arena.ledger_has("node-evicted", node.id)
    with pytest.raises(Refused) as refusal:
        node.step()
    assert refusal.value.problem.status == 403


def test_a_reject_by_a_threshold_stands_only_after_a_second_finding(tournament: Tournament) -> None:
    for cheat in JUDGED:
        outcome = outcome_of(tournament, cheat)
        assert outcome.verdict is not None
        if outcome.verdict.reason in ("format", "identity", "sampling", "bounds", "reward"):
            assert outcome.opinions == 0, cheat.name
        if (
            outcome.verdict.reason in ("token_sampling", "redraw", "unread")
            or "does not fit" in outcome.verdict.evidence
        ):
            assert outcome.opinions >= 1, cheat.name


@pytest.mark.parametrize("cheat", REFUSED, ids=lambda cheat: cheat.name)
def test_a_file_that_was_handed_in_before_is_refused_at_once(tournament: Tournament, cheat: Cheat) -> None:
    refusal = outcome_of(tournament, cheat).refusal
    assert refusal is not None
    assert refusal.problem.status == 409
    assert cheat.evidence in str(refusal)


def test_nothing_in_a_file_is_ever_run(tournament: Tournament) -> None:
    assert tournament.outcomes
    assert not MARKER.exists()


def test_honest_nodes_are_still_in_after_all_of_this(tournament: Tournament) -> None:
    assert tournament.outcomes
    cheating = {tournament.nodes[cheat.name].id for cheat in CHEATS if cheat.reason is not None}
    for node in set(tournament.honest) - cheating:
        assert not tournament.arena.ledger_has("node-evicted", node)


def test_validators_live_and_judge_honest_files_after_all_of_this(tournament: Tournament) -> None:
    assert tournament.outcomes
    assert all(server.process is not None and server.process.poll() is None for server in tournament.arena.validators)
    outcome = tournament.play_once_more()
    assert outcome.verdict is not None
    assert outcome.verdict.outcome == "accept", outcome.verdict.evidence
