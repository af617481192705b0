"""What the orchestrator tells Prometheus, from a real orchestrator's state: few nodes however many came, ages by its clock, the ledger's length."""

from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from run_states import Orchestrator

from servers import Redis
from shoal.protocol import metrics


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url)


def told(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def series(gauge: object) -> dict[str, float]:
    """Values of a gauge of nodes by node."""
    registry = CollectorRegistry()
    registry.register(gauge)  # type: ignore[arg-type]
    return {sample.labels["node"]: sample.value for family in registry.collect() for sample in family.samples}


def test_a_file_that_waits_grows_old_until_it_is_judged(run: Orchestrator) -> None:
    run.announce(0)
    metrics.report_details(run.state)
    assert told("shoal_validation_queue_age_seconds") == 0.0
    run.hand_in(run.join())
    run.clock.now += 90
    metrics.report_details(run.state)
    assert told("shoal_validation_queue_age_seconds") == pytest.approx(90, abs=1)


def test_the_ledger_and_the_run_are_told(run: Orchestrator) -> None:
    run.announce(0)
    run.join()
    metrics.report(run.state)
    assert told("shoal_ledger_entries") == run.state.view.next_number > 1
    assert told("shoal_run_complete") == 0.0
    assert told("shoal_latest_version") == 0.0
    assert told("shoal_nodes", state="Healthy") == 1.0


def joined(run: Orchestrator, *, outside: bool = False) -> str:
    """A node of the run's own, or a stranger."""
    node = run.join()
    record = run.state.nodes.get(node)
    assert record is not None
    run.state.nodes.change(record, outside=outside)
    return node


def test_steps_of_a_run_that_announces_nothing_more_are_progress(run: Orchestrator) -> None:
    run.announce(0)
    metrics.report(run.state)
    before = told("shoal_run_progress")
    run.state.view.sealed[0] = "0" * 64
    metrics.report(run.state)
    assert before == 1.0
    assert told("shoal_run_progress") == 2.0


def test_silence_of_a_node_is_told_under_the_beginning_of_its_key(run: Orchestrator) -> None:
    node = joined(run)
    run.clock.now += 7
    metrics.report_details(run.state)
    assert series(metrics.NODE_SILENCE) == {node[: metrics.NODE_LABEL_LENGTH]: pytest.approx(7, abs=1)}


def test_a_stranger_has_no_series_until_a_file_of_it_is_accepted(run: Orchestrator) -> None:
    ours, stranger = joined(run), joined(run, outside=True)
    metrics.report_details(run.state)
    assert series(metrics.NODE_SILENCE).keys() == {ours[: metrics.NODE_LABEL_LENGTH]}
    run.state.view.accepted_in_a_row[stranger] = 1
    metrics.report_details(run.state)
    assert series(metrics.NODE_SILENCE).keys() == {each[: metrics.NODE_LABEL_LENGTH] for each in (ours, stranger)}


def test_of_many_nodes_those_with_the_most_accepted_files_are_shown(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SHOWN_NODES", 2)
    nodes = []
    for accepted in range(4):
        nodes.append(joined(run))
        run.state.view.accepted_in_a_row[nodes[-1]] = accepted
    metrics.report_details(run.state)
    assert series(metrics.NODE_SILENCE).keys() == {node[: metrics.NODE_LABEL_LENGTH] for node in nodes[2:]}


@pytest.mark.parametrize(("claimed", "shown"), [(12.5, 12.5), (float("inf"), 0.0), (float("nan"), 0.0)])
def test_a_rate_that_a_node_claims_is_a_number(run: Orchestrator, claimed: float, shown: float) -> None:
    node = run.join()
    record = run.state.nodes.get(node)
    assert record is not None
    # What the agent's parser would refuse could still be in an older record.
    metrics._report_node(run.state, record.model_copy(update={"metrics": {"worker_tokens_per_second": claimed}}))
    assert series(metrics.NODE_RATE)[node[: metrics.NODE_LABEL_LENGTH]] == shown
