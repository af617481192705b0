"""The arena, started once for all tests of this folder: the base model, an engine, several sets of weights, a run with one trained step."""

from collections.abc import Iterator

import pytest
import torch
from arena import Arena
from tournament import Tournament

from servers import Loopback

VALIDATORS = 2
"""A statistical reject stands only when a second validator finds the same."""


@pytest.fixture(scope="session")
def tournament(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Tournament]:
    """Step 0 is full of honest files, version 1 is out."""
    torch.set_num_threads(1)  # two are slower where a service, an engine and two validators share the cores
    addresses = [loopback.address() for _ in range(1 + VALIDATORS)]
    arena = Arena(tmp_path_factory.mktemp("arena"), addresses)
    try:
        arena.prepare()
        arena.start()
        running = Tournament(arena)
        try:
            running.play_honestly()
            yield running
        finally:
            running.close()
    finally:
        arena.close()
