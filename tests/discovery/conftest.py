"""Running stacks, and the agents and joined machines of the agent's tests."""

import sys
from pathlib import Path

from stack_fixtures import new_stack, stack

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

__all__ = ["new_stack", "stack"]
