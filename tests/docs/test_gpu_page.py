"""The page of a GPU's figures: all of them, alike ones in one table, and no progress bars."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.docs.gpu import RESULT, gpu_page


def figures(found: Any) -> Iterator[float]:
    if isinstance(found, dict | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from figures(each)
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield found


def shown(tmp_path: Path, measured: dict[str, Any], last_lines: list[str]) -> str:
    part = {
        "about": "a part",
        "share": 2.0,
        "seconds": 1.0,
        "outcome": "passed",
        "last_lines": last_lines,
        "figures": measured,
    }
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"machine": {"gpu": "one"}, "parts": {"part": part}}))
    return gpu_page(path)


def test_every_figure_is_on_the_page() -> None:
    page = gpu_page()
    cells = {cell.strip() for line in page.splitlines() if line.startswith("|") for cell in line.split("|")}
    for part in json.loads(RESULT.read_bytes())["parts"].values():
        for figure in figures(part["figures"]):
            assert (f"{figure:.4g}" if isinstance(figure, float) else f"{figure:,}") in cells


def test_what_has_the_same_members_is_one_table_and_many_members_are_rows(tmp_path: Path) -> None:
    small, many = {"a_b": 1, "c": 2.5}, {f"m{number}": number for number in range(9)}
    page = shown(
        tmp_path, {"x": {"one": small, "two": small, "wide": many, "wider": many}, "alone": {"d": 7, "e": 8}}, []
    )
    assert "|  | a b | c |\n|---|---|---|\n| x: one | 1 | 2.5 |\n| x: two | 1 | 2.5 |\n" in page
    assert "**x**\n\n|  | wide | wider |\n|---|---|---|\n| m0 | 0 | 0 |\n" in page
    assert "| alone: d | 7 |\n| alone: e | 8 |\n" in page


def test_progress_bars_are_left_out_of_last_lines(tmp_path: Path) -> None:
    bars = [
        "Loading weights:   0%|          | 0/273 [00:00<?, ?it/s]",
        "",
        "Loading weights: 100%|███| 273/273 [00:00<00:00, 7303.51it/s]",
    ]
    assert "```" not in shown(tmp_path, {"a": 1}, bars)
    page = shown(tmp_path, {"a": 1}, [*bars, "torch.OutOfMemoryError: no room"])
    assert "```\ntorch.OutOfMemoryError: no room\n```" in page
    assert "Loading" not in page
