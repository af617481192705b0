"""A run with a curriculum recomputed: whoever has the batches finds prompts that the pools did not draw, and votes that nobody gave."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tampering import Copy, first
from tiny_world import ENVIRONMENT, STEPS, TASKS, World

from servers import Redis
from shoal.contracts.rollouts import Rollout
from shoal.contracts.task_source import Curriculum, PoolWeights, TaskSource
from shoal.environments.prompts import prompt_tokens
from shoal.sampling.curriculum import POOLS

LAST = STEPS - 1
"""Its pools follow from the batch of step 0; those of the steps before hold all problems as unseen."""
TASKS_IN_POOLS = TaskSource(
    environment="arithmetic",
    count=len(TASKS),
    curriculum=Curriculum(weights=PoolWeights(unseen=1, hard=500, middle=500, easy=500), most_often=20),
)


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory, redis_server: Redis) -> World:
    """Three steps of a run, whose last draws problems of the first again."""
    made = World(tmp_path_factory.mktemp("pooled") / "run", redis_server.url, tasks=TASKS_IN_POOLS)
    made.play()
    return made


def test_an_honest_run_with_pools_is_recomputed_bit_for_bit(pooled: World, tmp_path: Path) -> None:
    pools = pooled.facts.curriculum
    assert pools is not None
    assert [sum(turns > 0 for turns in pools.of(step).turns) for step in range(STEPS)] == [1, 1, 2]
    copy = Copy(pooled, tmp_path)
    seen = {prompt for prompt, _ in copy.batch(0).solved}
    assert any(prompt in seen for prompt, _ in copy.batch(LAST).solved), POOLS
    result = copy.audit("batches", "steps", "draws", "rewards", "proofs")
    assert result.findings == []
    assert result.steps_equal == STEPS
    assert all(totals.done == totals.of > 0 for totals in result.stages.values())


def asked_of(world: World, row: Rollout, prompt: int) -> Rollout:
    """The row as if it answered another problem."""
    task = TASKS[prompt]
    asked = prompt_tokens(world.facts.tokenizer, ENVIRONMENT, task, row.target_length, None)
    return replace(row, prompt_index=prompt, problem_id=task.problem_id, prompt_tokens=asked)


def chosen_prompt(copy: Copy) -> None:
    """One file of the last step answers an unseen problem in the place of its first."""
    drawn = {prompt for step in range(STEPS) for prompt, _ in copy.batch(step).solved}
    other = next(prompt for prompt in range(len(TASKS)) if prompt not in drawn)
    fact = first(copy, LAST)

    def change(rows: list[Rollout]) -> list[Rollout]:
        return [asked_of(copy.world, row, other) if row.prompt_index == rows[0].prompt_index else row for row in rows]

    copy.replace_file(fact, change)


def forged_vote(copy: Copy) -> None:
    """The batch of step 0 says that its first problem was solved otherwise than the rows do, and the ledger names this batch."""
    batch = copy.batch(0)
    (prompt, rate), *others = batch.solved
    copy.seal(batch.model_copy(update={"solved": [(prompt, 1.0 - rate if rate != 0.5 else 1.0), *others]}))


def moved_pools(copy: Copy) -> None:
    """The batch of step 0 votes for problems that nobody drew: other pools, so that the files of the last step are not those of the draw."""
    batch = copy.batch(0)
    seen = {prompt for prompt, _ in batch.solved}
    others = [prompt for prompt in range(len(TASKS)) if prompt not in seen]
    copy.seal(
        batch.model_copy(
            update={"solved": [(other, rate) for other, (_, rate) in zip(others, batch.solved, strict=False)]}
        )
    )


@pytest.mark.parametrize(
    ("change", "stage", "words"),
    [
        (chosen_prompt, "draws", "prompt_index is"),
        (forged_vote, "batches", "solved"),
        (moved_pools, "draws", "prompt_index is"),
    ],
    ids=["a chosen prompt", "a forged vote", "moved pools"],
)
def test_what_the_pools_did_not_draw_is_found(
    pooled: World, tmp_path: Path, change: Callable[[Copy], None], stage: str, words: str
) -> None:
    copy = Copy(pooled, tmp_path)
    change(copy)
    found = copy.audit("batches", "draws").findings
    assert any(stage == each.stage and words in each.what for each in found), found
