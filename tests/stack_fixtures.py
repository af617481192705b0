"""Running stacks (Redis, discovery, orchestrator) as fixtures: one a module for the tests that do not break it; others start their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol_stack import Stack
from servers import Loopback


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
    running = Stack(tmp_path_factory.mktemp("stack"), loopback.address())
    try:
        running.start()
        yield running
    finally:
        running.close()
