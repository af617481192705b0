"""Islands that start again, and others beside them that start for the first time: what was trained is kept, and all go on from it."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from island_crowd import SETTINGS, Crowd, known

from shoal.islands.island import Island

BRISK = replace(SETTINGS, wait_seconds=10.0, connect_seconds=10.0)


@pytest.fixture
def lineage_crowd() -> Iterator[Crowd]:
    made = Crowd(wait_seconds=2.0, silence_seconds=4.0)
    yield made
    made.close()


def started_again(crowd: Crowd, index: int) -> Island:
    """With what its training state held: weights and the shared state."""
    name = f"island-{index}"
    before, learnt = crowd.islands[name], crowd.parameters[name].clone()
    before.close()
    island = crowd.island(index, torch.ones(1000), BRISK)
    island.restore(before.shared, before.certificate)
    crowd.parameters[name].copy_(learnt)
    return island


def learn_apart(crowd: Crowd, *indices: int) -> None:
    for index in indices:
        crowd.parameters[f"island-{index}"].sub_(0.1 + index / 100)


def until_heard(*islands: Island) -> None:
    deadline = time.monotonic() + 60
    while not all(island._members.heard for island in islands):
        assert time.monotonic() < deadline, "the lighthouse does not hear an island"
        time.sleep(0.02)


def test_islands_that_come_for_the_first_time_copy_what_a_restarted_one_of_two_had_trained(
    lineage_crowd: Crowd,
) -> None:
    crowd = lineage_crowd
    crowd.known = known(4)
    pair = [crowd.island(index, torch.ones(1000), BRISK) for index in range(2)]
    until_heard(*pair)
    crowd.all(lambda island: island.join(), pair)
    for _ in range(2):
        learn_apart(crowd, 0, 1)
        crowd.exchange(pair)
    assert [island.shared.meta.round for island in pair] == [2, 2]
    crowd.islands["island-1"].close()  # it stays away
    islands = [started_again(crowd, 0), *(crowd.island(index, torch.ones(1000), BRISK) for index in (2, 3))]
    until_heard(*islands)
    said = crowd.exchange_until(islands, lambda said: all(one and len(one.islands) == 3 for one in said))
    assert [one.joined for one in said] == [False, True, True], "the trained island copied the base model"
    assert len({island.shared.digest() for island in islands}) == 1
    assert islands[0].shared.meta.round >= 2
