"""Running stacks for agents."""

from stack_fixtures import new_stack, stack

__all__ = ["new_stack", "stack"]
