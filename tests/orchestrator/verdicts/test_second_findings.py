"""What an orchestrator leaves of a reject that took several findings is what `shoal ledger verify --documents` asks for."""

from pathlib import Path

import pytest

from protocol_stack import verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.verdicts import RejectReason
from shoal.ledger.audit import AuditReport
from shoal.ledger.reading import read_ledger
from shoal.ledger.source import LedgerSource, Trust


def audited(run: Orchestrator, slash_votes: int) -> AuditReport:
    trust = Trust(run.config.run_key, run.config.roster, "the test", given=True)
    return read_ledger(LedgerSource(run.store, trust, slash_votes), lambda _: None, documents=True).report


@pytest.mark.parametrize(("slash_votes", "reason"), [(1, "computation"), (2, "computation"), (3, "sampling")], ids=str)
def test_a_slash_can_be_audited_until_an_opinion_is_gone(
    tmp_path: Path, redis_server: Redis, slash_votes: int, reason: RejectReason
) -> None:
    run = Orchestrator(tmp_path, redis_server.url)
    validation = run.config.validation.model_copy(update={"slash_votes": slash_votes})
    run.config = run.config.model_copy(update={"validation": validation})
    run.restarted()
    run.announce(0)
    node = run.join()
    run.hand_in(node)
    for number in range(max(2, slash_votes)):
        assert node not in run.state.view.evicted
        name = f"validator-{number}"
        found = verdict_on(run.claimed(name), "reject", reason, evidence=f"seen by {name}")
        run.judge(found.model_copy(update={"validator": name}))
    assert node in run.state.view.evicted
    report = audited(run, slash_votes)
    assert (report.problems, report.repeated_rejects) == ([], 1)

    opinions = list(run.store.list(keys.OPINIONS))
    assert len(opinions) == max(2, slash_votes) - 1
    run.store.delete(opinions[0].key)
    (problem,) = audited(run, slash_votes).problems
    assert f"a reject for {reason} takes the same finding by" in problem
