"""Running stacks, and what is registered at discovery for an orchestrator in this process."""

import pytest
from discovery_book import Book

from run_states import Orchestrator
from stack_fixtures import new_stack, stack

__all__ = ["new_stack", "stack"]


@pytest.fixture
def book(run: Orchestrator) -> Book:
    """What is registered for the `run` of the module."""
    return Book(run)
