"""Running stacks (Redis, discovery, orchestrator) as fixtures: one a module for the tests that do not break it; others start their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol_stack import GROUP_SIZE, Stack
from servers import Loopback
from shoal.contracts.recipe import Recipe

LARGE_STEPS = Recipe(prompts_per_step=100, group_size=GROUP_SIZE, max_sequence_length=128)
"""There is always room for another lease."""


@contextmanager
def running_stack(folders: pytest.TempPathFactory, address: str, **changes: object) -> Iterator[Stack]:
    """A stack with the given changes to the run's configuration, until the block ends."""
    running = Stack(folders.mktemp("stack"), address, **changes)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def new_stack(tmp_path: Path, loopback: Loopback) -> Iterator[Callable[..., Stack]]:
    """Starts stacks with the given changes to the run's configuration; all end with the test."""
    stacks: list[Stack] = []

    def start(**changes: object) -> Stack:
        folder = tmp_path / f"stack{len(stacks)}"
        folder.mkdir()
        stacks.append(Stack(folder, loopback.address(), **changes))
        stacks[-1].start()
        return stacks[-1]

    yield start
    for stack in stacks:
        stack.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Stack]:
    """One stack for a whole module."""
    with running_stack(tmp_path_factory, loopback.address()) as running:
        yield running
