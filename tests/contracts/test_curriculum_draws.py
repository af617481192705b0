"""Pools of a curriculum: from votes to pools to prompts; everybody computes the same, and nobody's share of votes moves more than itself."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.completions import Sampling
from shoal.contracts.curriculum import StepPools
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.work import FileShape, LeasePart, TrainingStep, WorkCodec, draw
from shoal.sampling.curriculum import POOLS, PoolRule, Pools, Solved, SolveRates, pool_turns

RULE = PoolRule(weights=(1, 1, 5, 1), hard_below=0.25, easy_from=0.75, votes=4, most_often=8)
BEACON, NODE = b"b" * 32, "a" * 64
SHAPE = FileShape.of(Sampling(groups_per_submission=8), 4, None)


def batch(step: int, solved: list[tuple[int, float]]) -> StepBatch:
    files = [BatchFile(node=NODE, submission=0, sha256="e" * 64, policy_version=0, rows=4, prompt_indices=[0])]
    return StepBatch(run="r", step=step, beacon="b" * 64, groups=1, groups_dropped=0, files=files, solved=solved)


BATCHES = {step: batch(step, [(40 * step + n, (n % 5) / 4) for n in range(40)]) for step in range(5)}


def work(step: int, pools: StepPools | None) -> TrainingStep:
    found = WorkCodec("Train", SHAPE, 400, 1, curriculum=pools).step(step)
    assert isinstance(found, TrainingStep)
    return found


def step_pools() -> StepPools:
    return StepPools(RULE, 400, 1, BATCHES.__getitem__)


def test_a_rate_is_a_mean_first_and_then_fades() -> None:
    rates = SolveRates(RULE, 2)
    rates.add([Solved(0, 1.0), Solved(0, 0.0), Solved(0, 0.0), Solved(0, 0.0)])
    assert (rates.rate(0), rates.rate(1)) == (0.25, None)
    rates.add([Solved(0, 1.0)])
    assert rates.rate(0) == 0.25 + 0.75 / 4
    with pytest.raises(ValueError, match="a batch has row 2; the task table has 2 rows"):
        rates.add([Solved(2, 1.0)])


def test_pools_follow_from_the_batches_of_closed_steps_alone_in_whatever_order_they_are_asked_for() -> None:
    first, second = step_pools(), step_pools()
    forward = [first.of(step).digest for step in range(6)]
    backward = [second.of(step).digest for step in reversed(range(6))]
    assert forward == backward[::-1]
    assert forward[0] == forward[1], "with asyncLevel 1 step 1 opens before batch 0 is sealed"
    assert len(set(forward)) == 5
    assert [len(rows) for rows in first.of(2).rows] == [360, 8, 16, 16]
    assert [first.of(2).pool_of(row) for row in (0, 1, 4, 399)] == ["hard", "middle", "easy", "unseen"]


def test_a_worker_that_is_told_its_prompts_draws_what_everybody_draws_again_in_parts_too() -> None:
    whole = draw(work(4, step_pools()), beacon=BEACON, run="r", node=NODE, submission=3)
    prompts = [group.prompt_index for group in whole]
    told = work(4, None).on(prompts)
    assert draw(told, beacon=BEACON, run="r", node=NODE, submission=3) == whole
    part = LeasePart(node=NODE, submission=3, groups=[1, 6])
    assert draw(told, beacon=BEACON, run="r", node="c" * 64, submission=1 << 24, part=part) == [whole[1], whole[6]]


@pytest.mark.parametrize("wrong", [[0] * 8, list(range(7)), [*range(7), 400], [*range(7), -1]])
def test_prompts_that_no_draw_gives_are_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match=r"a lease names [78] prompts, .* allowed: 8"):
        work(4, None).on(wrong)


def test_a_pool_with_more_weight_is_drawn_from_more_and_shares_hold() -> None:
    pools = step_pools().of(5)
    assert [len(rows) for rows in pools.rows] == [240, 32, 64, 64]
    counts = Counter(
        pools.pool_of(group.prompt_index)
        for submission in range(250)
        for group in draw(work(5, step_pools()), beacon=BEACON, run="r", node=NODE, submission=submission)
    )
    assert {name: round(counts[name] / 2000, 3) for name in POOLS} == {
        "unseen": 0.125,
        "hard": 0.125,
        "middle": 0.625,
        "easy": 0.125,
    }


@given(sizes=st.lists(st.integers(0, 400), min_size=4, max_size=4).filter(any), submission=st.integers(0, 50))
def test_however_small_pools_are_a_file_has_different_problems(sizes: list[int], submission: int) -> None:
    starts = [sum(sizes[:number]) for number in range(4)]
    rows = tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
    turns = pool_turns(RULE, sizes)
    assert [bool(each) for each in turns] == [bool(size) for size in sizes]
    for share, size in zip(turns, sizes, strict=True):
        assert share <= max(1, 1000 * RULE.most_often * size / max(1, sum(sizes)) + 0.5)

    class Fixed:
        def of(self, step: int) -> Pools:
            return Pools(rows, turns, (None,) * 4)

    step = replace(work(2, None), curriculum=Fixed())
    if sum(sizes) < 8:
        with pytest.raises(ValueError, match="allowed: at least groupsPerSubmission, 8"):
            draw(step, beacon=BEACON, run="r", node=NODE, submission=submission)
        return
    drawn = [group.prompt_index for group in draw(step, beacon=BEACON, run="r", node=NODE, submission=submission)]
    assert len(set(drawn)) == 8
    assert max(drawn) < sum(sizes)


def test_a_worker_that_fails_on_purpose_moves_rates_by_its_share_of_the_groups_at_most() -> None:
    chance = random.Random(7)
    share, problems = 0.25, 2000
    honest, attacked = SolveRates(RULE, problems), SolveRates(RULE, problems)
    for _ in range(12):
        for prompt in range(problems):
            rate = chance.random()
            honest.add([Solved(prompt, rate)])
            attacked.add([Solved(prompt, 0.0 if chance.random() < share else rate)])
    moved = [(honest.rate(row) or 0.0) - (attacked.rate(row) or 0.0) for row in range(problems)]
    assert min(moved) >= 0.0
    assert sum(moved) / problems < share
