"""What each mode decides about steps: slices of the task table in Generate, a cap on sampling in Train, nothing to sample in SFT."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.recipe import Recipe
from shoal.contracts.verdicts import RowReward
from shoal.orchestrator.work.allocation import StepLoad
from shoal.orchestrator.work.schedule import OPEN_SLICES, GenerateSchedule, SupervisedSchedule, TrainSchedule
from shoal.sampling.draw import own_tasks, slice_count, slice_tasks

TRAIN = TrainSchedule(10, 2, Recipe(prompts_per_step=8, group_size=4, optimizer_steps=1, sampling_cap=3))
GENERATE = GenerateSchedule(steps=1000, groups=4, dataset="traces")


def load(needed: int, accepted: int, pending: int, judged: int) -> StepLoad:
    return StepLoad(0, needed_groups=needed, accepted_groups=accepted, pending_groups=pending, judged_groups=judged)


# Slices


@given(groups=st.integers(1, 20), tasks=st.integers(1, 200))
def test_slices_hold_every_task_and_answer_for_each_once(groups: int, tasks: int) -> None:
    if tasks < groups:
        with pytest.raises(
            ValueError, match=f"the task table has {tasks} rows; allowed: at least groupsPerSubmission, {groups}"
        ):
            slice_tasks(0, tasks, groups)
        return
    answered: list[int] = []
    for step in range(slice_count(tasks, groups)):
        drawn, own = slice_tasks(step, tasks, groups), own_tasks(step, tasks, groups)
        assert len(drawn) == groups
        assert set(own) <= set(drawn) <= set(range(tasks))
        answered += own
    assert answered == list(range(tasks))


# Generate


@pytest.mark.parametrize(
    ("sealed", "latest", "first", "count"),
    [
        ((), None, None, 0),
        ((), 0, 0, OPEN_SLICES),
        ((0, 2), 0, 1, OPEN_SLICES),
        (range(998), 0, 998, 2),
        (range(1000), 0, None, 0),
    ],
)
def test_slices_are_open_side_by_side_once_version_0_is_there(
    sealed: Sequence[int], latest: int | None, first: int | None, count: int
) -> None:
    openable = GENERATE.openable_steps(set(sealed), latest)
    assert len(openable) == count
    assert next(iter(openable), None) == first
    assert not set(openable) & set(sealed)


def test_no_version_but_0_may_be_announced() -> None:
    assert GENERATE.may_announce(0, ())
    assert not GENERATE.may_announce(1, range(1000))


@pytest.mark.parametrize(("accepted", "pending", "room"), [(0, 0, True), (0, 4, False), (4, 0, False)])
def test_a_slice_is_given_to_one_node_at_a_time(accepted: int, pending: int, room: bool) -> None:
    assert GENERATE.has_room(load(4, accepted, pending, accepted), GENERATE.rate(100, 1)) is room


def test_every_group_counts_solved_or_not_scored_or_not() -> None:
    unscored = RowReward(task_reward=None, length_penalty=None, reward=None)
    wrong = RowReward(task_reward=0.0, length_penalty=0.0, reward=0.0)
    assert GENERATE.counted_prompts([unscored] * 2 + [wrong] * 2, [7, 9], 2) == [7, 9]


def test_a_run_that_generates_is_complete_with_its_data_set() -> None:
    assert not GENERATE.complete(0, {"others"})
    assert GENERATE.complete(0, {"traces"})
    assert "data set 'traces' to be written" in GENERATE.waits_for(range(1000), 0)


# Train: the cap on sampling


@pytest.mark.parametrize(
    ("accepted", "judged", "stalled"),
    [(2, 23, False), (2, 24, True), (7, 100, True), (8, 24, False)],
)
def test_a_step_that_was_sampled_three_times_over_without_enough_signal_waits_for_a_person(
    accepted: int, judged: int, stalled: bool
) -> None:
    step = load(8, accepted, 0, judged)
    assert TRAIN.stalled(step) is stalled
    if stalled:
        assert not TRAIN.has_room(step, rate=0.01)


def test_a_higher_cap_lets_the_step_go_on() -> None:
    higher = TrainSchedule(10, 2, TRAIN.recipe.model_copy(update={"sampling_cap": 4}))
    assert higher.has_room(load(8, 2, 0, 24), rate=0.1)


# SFT


def test_nothing_is_sampled_in_a_supervised_run_whose_versions_come_by_themselves() -> None:
    supervised = SupervisedSchedule(3)
    assert supervised.openable_steps((), 0) == []
    assert [supervised.may_announce(version, ()) for version in range(5)] == [True, True, True, True, False]
    assert [supervised.complete(version, ()) for version in (None, 2, 3)] == [False, False, True]
