"""A run with a curriculum at the orchestrator: real Redis, real store. Solved problems are drawn less, a restart keeps the pools."""

from pathlib import Path

from protocol_stack import GROUP_SIZE, GROUPS, TASKS, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.recipe import Recipe
from shoal.contracts.steps import StepBatch
from shoal.contracts.task_source import Curriculum, PoolWeights, TaskSource
from shoal.contracts.work import TrainingStep, draw, pools_digest
from shoal.orchestrator import metrics
from shoal.orchestrator.http.service import public_run
from shoal.orchestrator.work.beacons import beacon_of
from shoal.orchestrator.work.sealing import seal_if_full
from shoal.sampling.curriculum import POOLS

STEPS, NEEDED = 12, 8
SOLVED_FROM = 25
"""Problems from here on are always solved; of the others every second answer is right."""
TASKS_IN_POOLS = TaskSource(
    environment="arithmetic",
    count=len(TASKS),
    curriculum=Curriculum(weights=PoolWeights(unseen=1, hard=1, middle=16, easy=1)),
)
PLAIN = TaskSource(environment="arithmetic", count=len(TASKS))
RECIPE = Recipe(prompts_per_step=NEEDED, group_size=GROUP_SIZE, optimizer_steps=1, online_filter="None", sampling_cap=4)


def run_of(folder: Path, redis: Redis, tasks: TaskSource) -> Orchestrator:
    folder.mkdir()
    run = Orchestrator(folder, redis.url, steps=STEPS, async_level=1, tasks=tasks, recipe=RECIPE)
    run.announce(0)
    return run


def train(run: Orchestrator, node: str, steps: range) -> list[int]:
    """Fill these steps by what each problem deserves; the problems that were drawn."""
    drawn: list[int] = []
    for step in steps:
        run.beat(node)
        for _ in range(NEEDED // GROUPS):
            run.clock.now += 1
            lease = run.lease(node, step)
            prompts = prompts_of(run, step, node, lease.submission)
            assert lease.prompts in (prompts, None)
            run.confirm(lease, run.upload(lease))
            rewards = [float(prompt >= SOLVED_FROM or n % 2) for prompt in prompts for n in range(GROUP_SIZE)]
            run.judge(verdict_on(run.claimed(), rewards=rewards))
            drawn += prompts
        assert step in run.state.view.sealed
        run.announce(step + 1)
    return drawn


def prompts_of(run: Orchestrator, step: int, node: str, submission: int) -> list[int]:
    work = run.state.codec.step(step)
    drawn = draw(work, beacon=beacon_of(run.state, work), run=run.config.run, node=node, submission=submission)
    return [group.prompt_index for group in drawn]


def digest(run: Orchestrator, step: int) -> str | None:
    return pools_digest(run.state.codec.step(step))


def test_problems_of_the_pool_asked_for_are_drawn_more_and_the_figures_say_so(
    tmp_path: Path, redis_server: Redis
) -> None:
    shares = {}
    for name, tasks in (("pools", TASKS_IN_POOLS), ("plain", PLAIN)):
        run = run_of(tmp_path / name, redis_server, tasks)
        late = train(run, run.join(), range(STEPS))[-6 * NEEDED :]
        shares[name] = sum(prompt < SOLVED_FROM for prompt in late) / len(late)
        batch = run.store.get(keys.step_batch(0))
        assert (b"solved" in batch) == (name == "pools"), "without the field every byte stays as it was"
        if name == "pools":
            work = run.state.codec.step(STEPS - 1)
            assert isinstance(work, TrainingStep)
            assert sum(run.state.pool_groups.values()) == STEPS * NEEDED
            assert run.state.pool_groups["middle"] > run.state.pool_groups["easy"] + run.state.pool_groups["hard"]
    assert shares["pools"] > shares["plain"] + 0.2


def test_a_restarted_orchestrator_has_the_same_pools_and_leases_the_same_prompts(
    tmp_path: Path, redis_server: Redis
) -> None:
    run = run_of(tmp_path / "run", redis_server, TASKS_IN_POOLS)
    node = run.join()
    train(run, node, range(4))
    before = [digest(run, step) for step in range(6)]
    lease = run.lease(node, 4)
    run.redis.flushall()
    run.restarted()
    assert [digest(run, step) for step in range(6)] == before
    assert len(set(before)) > 1
    run.beat(node)
    assert lease.prompts == prompts_of(run, 4, node, lease.submission)
    assert run.confirm(lease, run.upload(lease)).status == "queued"
    assert run.claimed().pools == before[4]
    metrics.report(run.state)
    sizes = {sample.labels["pool"]: sample.value for each in metrics.POOL_PROBLEMS.collect() for sample in each.samples}
    assert set(sizes) == set(POOLS)
    assert sum(sizes.values()) == len(TASKS)


def test_software_that_cannot_read_the_prompts_of_a_lease_is_told_before_it_asks_for_one(
    tmp_path: Path, redis_server: Redis
) -> None:
    """A worker of 0.2.0 refuses a lease with prompts, but had taken it, and lost standing for it. Of a run that it does not know it asks for none."""
    told = [run_of(tmp_path / name, redis_server, tasks) for name, tasks in (("a", TASKS_IN_POOLS), ("b", PLAIN))]
    assert [b"curriculum" in public_run(run.state).to_json() for run in told] == [True, False]


def test_a_batch_has_each_accepted_group_s_share_of_right_answers_in_order(tmp_path: Path, redis_server: Redis) -> None:
    run = run_of(tmp_path / "run", redis_server, TASKS_IN_POOLS)
    drawn = train(run, run.join(), range(1))
    batch = StepBatch.from_json(run.store.get(keys.step_batch(0)))
    assert batch.solved == [(prompt, 1.0 if prompt >= SOLVED_FROM else 0.5) for prompt in drawn]
    assert seal_if_full(run.state, 0) is None
