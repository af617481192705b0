"""docs/benchmarks/gpu.md from benchmarks/results/gpu.json: every figure that a GPU gave, and every part that failed. Called by `tools.docs`.

What was measured several times with the same members is one table, with a row for each time. Where there are more members than a page is wide, each
time is a column. Names are those of the file, with spaces.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "gpu.json"
MOST_COLUMNS = 8
"""Of a table with a row for each place: more members than these are rows themselves."""
PROGRESS = re.compile(r"\d+%\|")

Named = tuple[str, dict[str, Any]]
"""Where some figures are from, and the figures."""


def gpu_page(path: Path = RESULT) -> str:
    """The page; before a GPU has run it says so."""
    lines = [
        "# What a GPU measured",
        "",
        "Made by `make docs` from the figures that `make gpu` writes on a machine with an NVIDIA GPU; do not edit.",
        "",
    ]
    if not path.exists():
        return "\n".join([*lines, "No GPU has run it yet.", ""])
    found = json.loads(path.read_bytes())
    lines += _listed("of the machine", [("", found["machine"])])
    for name, part in found["parts"].items():
        lines += [
            f"## {name}: {part['outcome']}",
            "",
            f"About: {part['about']}. {part['seconds']} of {part['share']} s.",
            "",
        ]
        last = [line for line in part.get("last_lines", []) if line.strip() and not PROGRESS.search(line)]
        if last:
            lines += ["```", *last, "```", ""]
        lines += _figures(part.get("figures", {}))
    return "\n".join(lines)


def _figures(figures: Mapping[str, Any]) -> list[str]:
    """One table of figures that stand alone, one for each list of rows, and one for each set of members that several have."""
    alike: dict[tuple[str, ...], list[Named]] = {}
    tables: list[str] = []
    for name, members in _named("", figures):
        alike.setdefault(tuple(members), []).append((name, members))
    for name, rows in _lists("", figures):
        tables += [f"**{_words(name)}**", "", *_table([_single(row) for row in rows])]
        for inner in dict.fromkeys(key for row in rows for key, value in row.items() if isinstance(value, dict)):
            named = [(str(next(iter(row.values()))), row[inner]) for row in rows if inner in row]
            tables += [f"**{_words(inner)}**", "", *_together(named)]
    groups = list(alike.values())
    alone = [each for group in groups for each in group if len(group) == 1 or len(each[1]) == 1]
    several = [line for group in groups if len(group) > 1 and len(group[0][1]) > 1 for line in _together(group)]
    return [*_listed("figure", alone), *several, *tables]


def _single(found: Mapping[str, Any]) -> dict[str, Any]:
    """Members that are neither figures by name nor lists of such."""
    return {name: value for name, value in found.items() if not isinstance(value, dict) and not _is_rows(value)}


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _named(place: str, found: Mapping[str, Any]) -> Iterator[Named]:
    if single := _single(found):
        yield place, single
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _named(_within(place, name), value)


def _lists(place: str, found: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _lists(_within(place, name), value)
        elif _is_rows(value):
            yield _within(place, name), value


def _within(place: str, name: str) -> str:
    return f"{place}: {name}" if place else name


def _listed(title: str, named: Sequence[Named]) -> list[str]:
    """A row for each figure."""
    return _table(
        [
            {title: _words(_within(place, name)), "is": value}
            for place, all_of in named
            for name, value in all_of.items()
        ]
    )


def _together(named: Sequence[Named]) -> list[str]:
    """A row for each place. Where their members are too many, these are rows, and there is a table for each of the outermost names."""
    members = list(dict.fromkeys(name for _, found in named for name in found))
    if len(members) <= MOST_COLUMNS:
        return _table([{"": _words(place)} | found for place, found in named])
    tables: list[str] = []
    for outermost in dict.fromkeys(_outermost(place) for place, _ in named):
        inside = [(place, found) for place, found in named if _outermost(place) == outermost]
        shown = [(place.removeprefix(f"{outermost}: "), found) for place, found in inside]
        tables += [f"**{_words(outermost)}**", ""] if outermost else []
        tables += _table(
            [{"": _words(name)} | {_words(place): found.get(name) for place, found in shown} for name in members]
        )
    return tables


def _outermost(place: str) -> str:
    return place.partition(": ")[0] if ": " in place else ""


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown, with a column for every key of any row."""
    if not rows:
        return []
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(_words(column) for column in columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(_cell(row.get(column)) for column in columns)} |" for row in rows]
    return [*lines, ""]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_cell(each) for each in value) or "none"
    return str(value).replace("|", "\\|").replace("\n", " ")
