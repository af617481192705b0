"""How many commands the owner of a GPU types until a node works: those of the first block of docs/journeys/lend-a-gpu.md.

Called by `benchmarks.release`. Each must be one that the verb's own parser takes, or the page does not say how to join.
"""

import shlex
from pathlib import Path

import typer
from typer.core import TyperGroup

from shoal.cli.node import app

PAGE = Path(__file__).parents[2] / "docs" / "journeys" / "lend-a-gpu.md"


def join_commands() -> int:
    """Commands of the page's first block. Raises ValueError when none of them starts a node."""
    block = PAGE.read_text().partition("```sh\n")[2].partition("```")[0]
    commands = [shlex.split(line) for line in block.splitlines() if line.strip()]
    if not any(_joins(words) for words in commands):
        raise ValueError(f"the first block of {PAGE.name} starts no node: {block[:200]}")
    return len(commands)


def _joins(words: list[str]) -> bool:
    if "shoal" not in words:
        return False
    verb, *arguments = words[words.index("shoal") + 2 :]
    verbs = typer.main.get_command(app)
    assert isinstance(verbs, TyperGroup)
    command = verbs.commands["join"]
    return verb == "join" and bool(command.make_context("join", arguments).params["url"])
