"""How far a training method is from its paper's formulas, by ranks: the key `formula_gap` of its results, measured by itself.

In: a method of `tests/training/extensions/method_gaps.py`. Out: the largest relative difference over the cases there, in float64 and with passes in
bfloat16, by layout of ranks; a minute of one core. Called by the benchmarks of the methods, whose other figures stay as they are in the file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEY, HALVES = "formula_gap", "bfloat16"
SECONDS = 900.0


def formula_gap(method: str) -> dict[str, Any]:
    """The key with its value."""
    training = ROOT / "tests" / "training"
    program = training / "extensions" / "method_gaps.py"
    paths = [str(each) for each in (training, ROOT / "tests", *sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    gaps: dict[str, dict[str, dict[str, float]]] = json.loads(done.stdout.splitlines()[-1])["gaps"]
    return {KEY: {whose: _largest(layouts) for whose, layouts in gaps.items()}}


def _largest(layouts: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Over the cases, by type and layout."""
    return {
        "float64": {
            layout: max(gap for case, gap in found.items() if case != HALVES) for layout, found in layouts.items()
        },
        HALVES: {layout: found[HALVES] for layout, found in layouts.items()},
    }


def write_gap(method: str, target: Path) -> None:
    """Measure it and put it into a file of results, whose other figures stay."""
    found = formula_gap(method)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps({**_read(target), **found}, indent=_indent(target)) + "\n")
    partial.replace(target)
    print(json.dumps(found, indent=1))


def kept_gap(target: Path) -> dict[str, Any]:
    """The figure that a file has, for those who write the others anew."""
    return {name: value for name, value in _read(target).items() if name == KEY}


def _read(target: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    return found


def _indent(target: Path) -> int:
    """As the file is written, so that nothing else of it changes."""
    lines = target.read_text().splitlines() if target.exists() else []
    return len(lines[1]) - len(lines[1].lstrip()) if len(lines) > 1 else 1
