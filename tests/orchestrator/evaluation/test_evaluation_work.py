"""Evaluation of versions at the orchestrator: real Redis, real store, a clock moved by hand; nodes and validators are played by the test."""

from pathlib import Path

import pytest

from protocol_stack import GROUP_SIZE, GROUPS, NEEDED, TASKS, ledger, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.evaluation import (
    Benchmark,
    BenchmarkTasks,
    BenchmarkTerms,
    BestVersion,
    EvaluationSettings,
    sampling_of,
)
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import StepInfo, ValidationJob
from shoal.contracts.run import Prepared
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.work import FIRST_SLICE
from shoal.evaluation.versions import VersionEvaluation
from shoal.orchestrator import background, progress
from shoal.orchestrator.completeness import complete
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.http.service import public_run
from shoal.orchestrator.work import handout

BENCHMARK = TASKS[:3]
SAMPLES = 2
SLICES = 2  # of two tasks each: four rows are a file of this run; the second slice shares a task with the first


def settings(**changes: object) -> EvaluationSettings:
    sums = Benchmark(
        name="sums", tasks=BenchmarkTasks(environment="arithmetic"), samples=SAMPLES, temperature=0.7, target_length=16
    )
    return EvaluationSettings.model_validate(
        {"every_versions": 2, "share": 0.5, "final_wait_seconds": 100, "benchmarks": [sums], **changes}
    )


def scored_run(folder: Path, url: str, **changes: object) -> Orchestrator:
    """A run whose prepare has pinned the benchmark too."""
    run = Orchestrator(folder, url)
    prepared = Prepared.from_json(run.store.get(keys.PREPARED))
    digest = tasks_digest(BENCHMARK)
    run.store.put(keys.task_table(digest), write_tasks(BENCHMARK))
    asked = settings().benchmarks[0]
    pinned = BenchmarkTerms(
        name="sums", environment="arithmetic", environment_digest="e" * 64, tasks_digest=digest, task_count=3,
        samples=SAMPLES, sampling=sampling_of(asked, 3, run.config.sampling, GROUP_SIZE), target_length=16,
    )  # fmt: skip
    run.store.put(keys.PREPARED, prepared.model_copy(update={"benchmarks": [pinned]}).to_json())
    run.config = run.config.model_copy(update={"evaluation": settings(), **changes})
    run.restarted()
    return run


@pytest.fixture
def scored(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return scored_run(tmp_path, redis_server.url)


def open_numbers(run: Orchestrator) -> list[int]:
    return [work.number for work in evaluations.open_slices(run.state)]


def asked(run: Orchestrator, node: str, *holds: int) -> StepInfo:
    info = handout.step_for(run.state, node, holds)
    assert info is not None
    return info


def scoring(job: ValidationJob, reward: float = 1.0) -> Verdict:
    """An accepted file of a slice: the first answer to each task gets `reward`, the second 0 and was cut."""
    made = verdict_on(job)
    rewards = [reward if row % SAMPLES == 0 else 0.0 for row in range(made.rows)]
    return made.model_copy(
        update={
            "rewards": [RowReward(task_reward=r, length_penalty=0.0, reward=r) for r in rewards],
            "completion_lengths": [10 + row for row in range(made.rows)],
            "cut_rows": [row for row in range(made.rows) if row % SAMPLES == 1],
        }
    )


def train_file(run: Orchestrator, node: str, step: int) -> None:
    run.hand_in(node, step)
    run.judge(verdict_on(run.claimed()))


def train_step(run: Orchestrator, node: str, step: int) -> None:
    """Fill a step and announce the version that it makes."""
    while step not in run.state.view.sealed:
        train_file(run, node, step)
    run.announce(step + 1)


def answer(run: Orchestrator, node: str, number: int, reward: float = 1.0) -> ValidationJob:
    """One slice, handed in and accepted."""
    run.hand_in(node, number)
    job = run.claimed()
    run.judge(scoring(job, reward))
    return job


def found(run: Orchestrator, version: int) -> VersionEvaluation:
    return VersionEvaluation.from_json(run.store.get(keys.evaluation(version, "sums")))


def test_a_node_with_the_version_gets_a_slice_once_training_has_earned_it(scored: Orchestrator) -> None:
    node = scored.join()
    scored.announce(0)
    assert asked(scored, node, 0).step == 0, "nothing is earned yet, and step 0 needs work"
    train_file(scored, node, 0)
    info = asked(scored, node, 0)
    assert info.step == FIRST_SLICE
    assert (info.min_version, info.max_version, info.first_unsealed_step) == (0, 0, 0)
    assert asked(scored, node).step == 0, "a node that does not say what it holds is given none"
    assert asked(scored, node, 7).step == 0
    answer(scored, node, info.step)
    assert asked(scored, node, 0).step == 0, "what was earned is spent"


def test_two_nodes_are_not_given_the_same_slice_and_one_at_a_time_evaluates_here(scored: Orchestrator) -> None:
    first, second = scored.join(), scored.join()
    scored.announce(0)
    train_file(scored, first, 0)
    lease = scored.lease(first, asked(scored, first, 0).step)
    assert asked(scored, second, 0).step == 0, "half of two nodes is one"
    with pytest.raises(Refusal, match="slice-under-way"):
        scored.lease(second, lease.step)
    scored.clock.now = lease.expires_unix + 1
    for node in (first, second):
        scored.beat(node)
    train_file(scored, second, 0)
    assert asked(scored, second, 0).step == lease.step, "a slice whose lease ran out is handed out again"


def test_every_task_is_asked_once_and_the_record_says_what_came_of_it(scored: Orchestrator) -> None:
    node = scored.join()
    scored.announce(0)
    train_step(scored, node, 0)
    jobs = [answer(scored, node, FIRST_SLICE + place, reward=1.0 - 0.5 * place) for place in range(SLICES)]
    assert {(job.min_version, job.max_version) for job in jobs} == {(0, 0)}
    assert [scored.state.codec.slice(job.step).slice for job in jobs] == [0, 1]
    background.settle_late(scored.state)
    evaluations.fold(scored.state)
    made = found(scored, 0)
    assert made.complete
    assert (made.tasks_asked, made.nodes, made.benchmark.samples) == (3, 1, SAMPLES)
    assert made.scores is not None
    assert made.scores.avg_at_k is not None
    assert [each.problem_id for each in made.scores.problems] == ["p0", "p1", "p2"]
    # Two tasks of the first slice at (1 + 0) / 2, the third is the second slice's own: (0.5 + 0) / 2.
    assert made.scores.avg_at_k.value == pytest.approx((0.5 + 0.5 + 0.25) / 3)
    assert made.scores.lengths.cut_share == 0.5
    newest = evaluations.standings(scored.state)["sums"]
    estimate = made.scores.avg_at_k
    assert (newest.version, newest.avg_at_k, newest.interval) == (0, estimate.value, (estimate.low, estimate.high))
    best = BestVersion.from_json(scored.store.get(keys.BEST_VERSION))
    assert (best.version, best.value) == (0, made.scores.avg_at_k.value)
    told = progress.run_progress(scored.state)
    assert told.best_version == best
    assert [(each.version, each.slices_done, each.ended) for each in told.evaluations] == [(0, SLICES, True)]
    [shown] = told.evaluations
    assert (shown.avg_at_k, shown.low, shown.high) == (estimate.value, estimate.low, estimate.high)


def test_evaluation_is_credit_in_the_ledger_and_no_part_of_a_step(scored: Orchestrator) -> None:
    node = scored.join()
    scored.announce(0)
    train_step(scored, node, 0)
    before = scored.state.view.tokens_accepted
    groups = progress.run_progress(scored.state).groups_accepted_total
    answer(scored, node, FIRST_SLICE)
    assert scored.state.view.tokens_accepted == before + 100
    told = progress.run_progress(scored.state)
    assert (told.groups_accepted_total, told.groups_dropped_total) == (groups, 0)
    assert sorted(scored.state.view.accepted) == [0]
    entry = ledger(scored.store)[-1]
    assert (entry.kind, entry.step, entry.groups, entry.signal_groups) == ("accepted", FIRST_SLICE, 2, 0)


def test_the_beacon_of_an_evaluation_is_committed_to_before_it_is_revealed(scored: Orchestrator) -> None:
    node = scored.join()
    scored.announce(0)
    train_step(scored, node, 0)
    assert asked(scored, node, 0, 1).step == FIRST_SLICE
    kinds = [(entry.kind, entry.step) for entry in ledger(scored.store)]
    committed, revealed = ("beacon-committed", FIRST_SLICE), ("beacon-revealed", FIRST_SLICE)
    assert kinds.index(committed) < kinds.index(("version-published", None)) < kinds.index(revealed)
    assert ("beacon-committed", FIRST_SLICE + 2 * SLICES) in kinds, "that of version 2 too"


def test_a_rejected_file_slashes_and_its_slice_goes_to_another_node(scored: Orchestrator) -> None:
    first, second = scored.join(), scored.join()
    scored.announce(0)
    train_step(scored, first, 0)
    scored.state.view.accepted_unix[second] = scored.clock()  # slices are for nodes in good standing
    scored.hand_in(second, FIRST_SLICE)
    scored.judge(verdict_on(scored.claimed(), "reject", "reward", evidence="row 0"))
    assert second in scored.state.view.evicted
    scored.beat(first)
    train_file(scored, first, 1)
    assert asked(scored, first, 0).step == FIRST_SLICE


def test_an_accept_without_lengths_is_not_taken_for_an_evaluation(scored: Orchestrator) -> None:
    node = scored.join()
    scored.announce(0)
    train_step(scored, node, 0)
    scored.hand_in(node, FIRST_SLICE)
    with pytest.raises(Refusal, match="lengths-missing"):
        scored.judge(verdict_on(scored.claimed()))


@pytest.mark.parametrize("number", [FIRST_SLICE + 2, FIRST_SLICE + 10**6, 999_999, 2**40])
def test_a_number_that_stands_for_no_open_slice_is_refused(scored: Orchestrator, number: int) -> None:
    node = scored.join()
    scored.announce(0)
    with pytest.raises(Refusal, match="step-not-open"):
        scored.lease(node, number)


def test_work_and_records_survive_a_restart_and_the_loss_of_redis(scored: Orchestrator) -> None:
    node = scored.join()
    scored.announce(0)
    train_step(scored, node, 0)
    answer(scored, node, FIRST_SLICE)
    lease = scored.lease(node, FIRST_SLICE + 1)
    scored.redis.flushall()
    scored.restarted()
    assert open_numbers(scored) == [FIRST_SLICE + 1]
    assert scored.confirm(lease, scored.upload(lease)).status == "queued"
    scored.judge(scoring(scored.claimed()))
    scored.restarted()
    assert found(scored, 0).complete, "a restart folds what was left"
    scored.store.delete(keys.BEST_VERSION)
    scored.restarted()
    assert scored.store.exists(keys.BEST_VERSION)
    assert (0, "sums") in scored.state.evaluations


def test_a_version_that_is_served_no_more_is_dropped_and_late_files_expire(tmp_path: Path, redis_server: Redis) -> None:
    run = scored_run(tmp_path, redis_server.url, kept_versions=2, async_level=0)
    node = run.join()
    run.announce(0)
    train_step(run, node, 0)
    answer(run, node, FIRST_SLICE)
    late = run.lease(node, FIRST_SLICE + 1)
    data = run.upload(late)
    assert run.confirm(late, data).status == "queued"
    while 1 not in run.state.view.sealed:
        run.hand_in(node, 1)
        job = next(
            job for job in iter(run.claimed, None) if job.step == 1
        )  # the slice's own file waits for its verdict
        run.judge(verdict_on(job))
    run.announce(2)
    assert FIRST_SLICE + 1 not in open_numbers(run)
    background.settle_late(run.state)
    assert run.confirm(late, data).status == "expired"
    evaluations.fold(run.state)
    made = found(run, 0)
    assert (made.complete, made.slices_done, made.tasks_asked) == (False, 1, 2)
    assert evaluations.best(run.state) is None, "what was not asked in full is not compared"


@pytest.mark.parametrize("answered", [True, False])
def test_a_run_is_complete_when_its_last_version_is_scored_or_the_wait_is_over(
    scored: Orchestrator, answered: bool
) -> None:
    node = scored.join()
    scored.announce(0)
    for step in range(3):
        train_step(scored, node, step)
    told = progress.run_progress(scored.state)
    assert not told.complete
    assert told.waiting_for == "version 3, the last one, to be scored"
    last = scored.state.codec.numbers(3, "sums")
    if answered:
        for number in last:
            assert asked(scored, node, 3).step == number
            answer(scored, node, number)
    else:
        scored.clock.now += 101
    evaluations.fold(scored.state)
    assert progress.run_progress(scored.state).complete
    assert found(scored, 3).complete is answered
    assert handout.step_for(scored.state, node, [3]) is None
    assert complete(scored.restarted())


def test_nodes_are_told_of_benchmarks_with_their_own_sampling(scored: Orchestrator) -> None:
    terms = public_run(scored.state).benchmarks
    assert [(each.name, each.samples, each.slices) for each in terms] == [("sums", SAMPLES, SLICES)]
    assert terms[0].sampling.temperature == 0.7
    assert terms[0].sampling.groups_per_submission == GROUPS * GROUP_SIZE // SAMPLES
    assert terms[0].length_reward is not None
    assert terms[0].length_reward.alpha == 0.0


def test_training_keeps_its_share_while_a_step_needs_work(scored: Orchestrator) -> None:
    node = scored.join()
    scored.announce(0)
    given = []
    while 0 not in scored.state.view.sealed:
        info = asked(scored, node, 0)
        given.append("evaluation" if info.step >= FIRST_SLICE else "training")
        (answer if info.step >= FIRST_SLICE else train_file)(scored, node, info.step)
    assert given == ["training", "evaluation"] * (NEEDED // GROUPS - 1) + ["training"]
