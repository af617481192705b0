"""Running stacks for agents."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from joined_machine import Machine

from servers import Loopback
from stack_fixtures import new_stack, stack

__all__ = ["new_stack", "stack"]


@pytest.fixture
def new_machine(tmp_path: Path, loopback: Loopback) -> Iterator[Callable[..., Machine]]:
    """Makes machines of strangers, which stop with the test."""
    machines: list[Machine] = []

    def make(worker: list[str] | None = None) -> Machine:
        machines.append(Machine(tmp_path / f"machine{len(machines)}", loopback.address(), worker))
        return machines[-1]

    yield make
    for machine in machines:
        machine.stop()
