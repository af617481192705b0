"""PRIME's accuracy filter: which groups the orchestrator counts for a run of that algorithm."""

from shoal.contracts.algorithm import Algorithm, Prime
from shoal.contracts.prime import PrimeSettings
from shoal.contracts.recipe import Recipe
from shoal.contracts.verdicts import RowReward
from shoal.orchestrator.work.schedule import TrainSchedule
from shoal.orchestrator.work.step_counter import signal_groups

UNSCORED = RowReward(task_reward=None, length_penalty=None, reward=None)


def judged(*task_rewards: float) -> list[RowReward]:
    return [RowReward(task_reward=reward, length_penalty=0.5, reward=reward - 0.5) for reward in task_rewards]


FIVES = (
    judged(1, 0, 0, 0, 0) + judged(1, 1, 1, 1, 0) + judged(0, 0, 0, 0, 0) + judged(1, 1, 1, 1, 1)
    + judged(0.1, 0.1, 0.1, 0.1, 0.2)
)  # fmt: skip


def counted(settings: PrimeSettings) -> list[int]:
    return signal_groups(FIVES, [5, 6, 7, 8, 9], 5, "TaskReward", settings)


def test_groups_of_middling_accuracy_count_edges_included_and_no_others() -> None:
    assert counted(PrimeSettings()) == [5, 6]
    assert counted(PrimeSettings(min_accuracy=0.5)) == [6]
    assert counted(PrimeSettings(min_accuracy=0.0, max_accuracy=1.0)) == [5, 6, 7, 8, 9]


def test_rows_that_could_not_be_scored_are_no_part_of_a_groups_accuracy() -> None:
    rewards = [UNSCORED, UNSCORED, *judged(1, 0)]
    assert signal_groups(rewards, [7], 4, "TaskReward", PrimeSettings(min_accuracy=0.5, max_accuracy=0.5)) == [7]
    everything = PrimeSettings(min_accuracy=0.0, max_accuracy=1.0)
    assert signal_groups([UNSCORED] * 4, [7], 4, "TaskReward", everything) == []


def test_a_run_with_prime_counts_by_accuracy_and_one_without_by_signal() -> None:
    rewards = judged(1, 0, 0, 0) + judged(1, 1, 0, 0)
    low = Prime(max_accuracy=0.3)
    for recipe, wanted in ((Recipe(algorithm=Algorithm(prime=low)), [7]), (Recipe(), [7, 8])):
        assert TrainSchedule(steps=3, async_level=2, recipe=recipe).counted_prompts(rewards, [7, 8], 4) == wanted
