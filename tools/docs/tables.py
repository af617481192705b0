"""Markdown tables for generated pages. Pure."""

from collections.abc import Iterable, Sequence

GENERATED = "Made from the code by `make docs`; do not edit."


def cell(text: object) -> str:
    """One cell: no line ends, no column marks."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table, with an empty line behind it."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return [*lines, ""]
