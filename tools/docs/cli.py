"""docs/cli.md, from the program itself: every verb with its help, arguments and options. Called by `__main__`."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from tools.docs.tables import GENERATED, table

from shoal.cli.main import app

EXIT_CODES = [
    (0, "done"),
    (1, "the run failed, or a check found a fault"),
    (2, "the input was wrong; one line a mistake on standard error"),
    (130, "Ctrl-C or SIGTERM stopped a run, which can be resumed"),
]


def program() -> Any:
    """The command behind `shoal`, as click sees it."""
    return typer.main.get_command(app)


def verbs(command: Any, path: tuple[str, ...] = ("shoal",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, groups before their verbs."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from verbs(below, (*path, name))


def cli_page() -> str:
    """The whole page."""
    lines = ["# Command line", "", GENERATED, "", "One program, `shoal`; on a cluster kubectl is enough.", ""]
    lines += table(("exit code", "means"), EXIT_CODES)
    for path, command in verbs(program()):
        if len(path) > 1:
            lines += [f"## {' '.join(path)}", "", *_help(command.help or ""), *_parameters(command)]
    return "\n".join(lines).rstrip() + "\n"


def _help(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        words = " ".join(paragraph.split())
        if words == "Examples:" or words.startswith("shoal "):
            words = f"Example: {words}" if words.startswith("shoal ") else ""
        said, _, example = words.partition("Example: ")
        if said.strip():
            lines += [said.strip(), ""]
        if example:
            lines += ["```sh", example, "```", ""]
    return lines


def _parameters(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        described = parameter.get_help_record(command.make_context("shoal", [], resilient_parsing=True))
        name, text = described or (parameter.human_readable_name, parameter.help or "")
        rows.append((f"`{' '.join(name.split())}`", text.replace(str(Path.home()), "~")))
    return table(("argument or option", ""), rows) if rows else []
