"""What the orchestrator tells Prometheus, from a real orchestrator's state: few nodes however many came, ages by its clock, the ledger's length."""

import contextlib
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.evaluation import Benchmark, BenchmarkTasks, BenchmarkTerms, EvaluationSettings, sampling_of
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import Lease
from shoal.contracts.run import Prepared
from shoal.evaluation.versions import ScoredVersion
from shoal.orchestrator import metrics
from shoal.orchestrator.work import uploads


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url)


@pytest.fixture
def scored_run(run: Orchestrator) -> Orchestrator:
    """The run with one benchmark, which prepare has pinned."""
    sums = Benchmark(name="sums", tasks=BenchmarkTasks(environment="arithmetic"), samples=2)
    pinned = BenchmarkTerms(
        name="sums", environment="arithmetic", environment_digest="e" * 64, tasks_digest="d" * 64, task_count=4, samples=2,
        sampling=sampling_of(sums, 4, run.config.sampling, 4),
    )  # fmt: skip
    prepared = Prepared.from_json(run.store.get(keys.PREPARED))
    run.store.put(keys.PREPARED, prepared.model_copy(update={"benchmarks": [pinned]}).to_json())
    run.config = run.config.model_copy(update={"evaluation": EvaluationSettings(benchmarks=[sums])})
    run.restarted()
    return run


def told(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def series(gauge: object) -> dict[str, float]:
    """Values of a gauge of nodes by node."""
    registry = CollectorRegistry()
    registry.register(gauge)
    return {sample.labels["node"]: sample.value for family in registry.collect() for sample in family.samples}


def test_a_file_that_waits_grows_old_until_it_is_judged(run: Orchestrator) -> None:
    run.announce(0)
    metrics.report_details(run.state)
    assert told("shoal_validation_queue_age_seconds") == 0.0
    run.hand_in(run.join())
    run.clock.now += 90
    metrics.report_details(run.state)
    assert told("shoal_validation_queue_age_seconds") == pytest.approx(90, abs=1)
    assert told("shoal_validation_queue_files") == 1.0


def test_the_ledger_and_the_run_are_told(run: Orchestrator) -> None:
    run.announce(0)
    run.join()
    metrics.report(run.state)
    assert told("shoal_ledger_entries") == run.state.view.next_number > 1
    assert told("shoal_run_complete") == 0.0
    assert told("shoal_latest_version") == 0.0
    assert told("shoal_nodes", state="Healthy") == 1.0


def scored(value: float, spread: float = 0.05) -> ScoredVersion:
    return ScoredVersion(value, True, (value - spread, value + spread))


@pytest.mark.parametrize(
    ("versions", "newest", "below_best"),
    [
        ({0: scored(0.3)}, 0, False),
        ({0: scored(0.3), 10: scored(0.6)}, 10, False),
        ({0: scored(0.3), 10: scored(0.6), 20: scored(0.48)}, 20, True),
        ({0: scored(0.3), 10: scored(0.6), 20: scored(0.52)}, 20, False),  # the intervals overlap
        ({0: scored(0.6), 10: scored(0.4), 20: scored(0.58)}, 20, False),  # it was worse, and is good again
        ({0: scored(0.6), 10: ScoredVersion(0.1, False, (0.0, 0.2))}, 0, False),  # not fully scored: not compared
        ({0: scored(0.6), 10: ScoredVersion(None, True)}, 0, False),
    ],
)
def test_the_newest_scored_version_is_told_with_its_interval_and_whether_it_is_worse_than_the_best(
    scored_run: Orchestrator, versions: dict[int, ScoredVersion], newest: int, below_best: bool
) -> None:
    scored_run.state.evaluations.update({(version, "sums"): made for version, made in versions.items()})
    metrics.report(scored_run.state)
    value, interval = versions[newest].avg_at_k, versions[newest].interval
    assert interval is not None
    assert told("shoal_evaluation_version", benchmark="sums") == newest
    assert told("shoal_evaluation_score", benchmark="sums") == value
    for bound, end in zip(("low", "high"), interval, strict=True):
        assert told("shoal_evaluation_score_bound", benchmark="sums", bound=bound) == end
    assert told("shoal_evaluation_below_best", benchmark="sums") == below_best
    unfinished = sum(not made.complete for made in versions.values())
    assert told("shoal_evaluation_unfinished", benchmark="sums") == unfinished


def test_a_run_that_scores_nothing_tells_no_score(run: Orchestrator) -> None:
    for gauge in (metrics.SCORE, metrics.SCORED, metrics.BELOW_BEST, metrics.UNFINISHED):
        gauge.clear()
    metrics.report(run.state)
    for name in ("score", "version", "below_best", "unfinished"):
        assert told(f"shoal_evaluation_{name}", benchmark="sums") is None
    assert told("shoal_evaluation_best_version") == -1.0


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


def test_a_refusal_by_the_quota_is_counted_apart_from_one_for_lack_of_room(
    run: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.announce(0)
    node = run.join()

    def counts() -> tuple[float, ...]:
        return tuple(told("shoal_leases_total", outcome=outcome) or 0.0 for outcome in ("granted", "quota", "refused"))

    leases: list[Lease] = []

    def asked() -> tuple[float, ...]:
        before = counts()
        with contextlib.suppress(Refusal), metrics.counted(metrics.LEASES):
            leases.append(run.lease(node))
        return tuple(now - then for now, then in zip(counts(), before, strict=True))

    assert asked() == (1, 0, 0)
    run.confirm(leases[0], run.upload(leases[0]))
    monkeypatch.setattr(uploads, "FILES_AN_HOUR", 1)
    assert asked() == (0, 1, 0), "the file was the one of the hour"
    monkeypatch.setattr(uploads, "FILES_AN_HOUR", 1000)
    monkeypatch.setattr(run.state.nodes, "require_member", refuse)
    assert asked() == (0, 0, 1)


def refuse(node: str) -> None:
    raise Refusal(ProblemCode.NOT_A_MEMBER, f"{node} is not")
