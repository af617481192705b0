"""The demo's notebook: a notebook of format 4.5 without outputs, whose commands the CLI takes, and whose cells run (`make soak`).

`test_docs_commands.py` holds the commands to the CLI, as those of the pages.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from demo_notebook import NOTEBOOK, RUNNER, code_cells, notebook_blocks
from doc_pages import commands

from servers import ROOT

TOP = {"cells", "metadata", "nbformat", "nbformat_minor"}
CELL = {"cell_type", "id", "metadata", "source"}
KEYS = {"markdown": CELL, "code": CELL | {"execution_count", "outputs"}}
"""Keys that format 4.5 requires of each kind of cell (nbformat.v4.5.schema.json); it permits no other but attachments."""
STEPS = 3


def faults(notebook: dict[str, Any]) -> list[str]:
    """Where a document is no notebook of format 4.5, or has outputs."""
    if notebook.keys() != TOP or (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        return ["not a notebook of format 4.5"]
    found = []
    names = [cell.get("id", "") for cell in notebook["cells"]]
    if len(set(names)) < len(names):
        found.append("two cells of one id")
    for cell, name in zip(notebook["cells"], names, strict=True):
        if cell.keys() != KEYS.get(cell.get("cell_type"), set()):
            found.append(f"{name}: keys")
        if not re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", name):
            found.append(f"{name}: id")
        if not all(line.endswith("\n") for line in cell["source"][:-1]) or not "".join(cell["source"]).strip():
            found.append(f"{name}: source")
        if cell.get("outputs") or cell.get("execution_count"):
            found.append(f"{name}: outputs")
    return found


def demo() -> dict[str, Any]:
    return dict(json.loads((ROOT / NOTEBOOK).read_text()))


def test_the_notebook_has_the_format_and_no_outputs() -> None:
    assert faults(demo()) == []


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"outputs": [{"output_type": "stream"}]}, "place: outputs"),
        ({"execution_count": 3}, "place: outputs"),
        ({"id": "two words"}, "two words: id"),
        ({"id": "before"}, "two cells of one id"),
        ({"tags": []}, "place: keys"),
        ({"cell_type": "shell"}, "place: keys"),
        ({"source": []}, "place: source"),
        ({"source": ["import os", "import re"]}, "place: source"),
    ],
)
def test_a_fault_of_the_format_would_be_found(changed: dict[str, Any], fault: str) -> None:
    notebook = demo()
    notebook["cells"][1] |= changed
    assert fault in faults(notebook)


def test_its_first_cell_names_what_it_needs() -> None:
    assert "`make setup`" in "".join(demo()["cells"][0]["source"])


def test_a_cell_is_python_or_commands_of_shoal() -> None:
    for cell in code_cells():
        if not cell.shell:
            compile(cell.source, f"{NOTEBOOK}:{cell.number}", "exec")
    words = [words for block in notebook_blocks() for words in commands(block)]
    assert {word[0] for word in words} == {"shoal"}
    assert {word[1] for word in words} == {"render", "plan", "up", "ledger"}


def run_cells(notebook: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The code cells in one Python process, in a folder that has the examples; `shoal` is the one of this environment."""
    (folder / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-c", RUNNER, str(notebook)],
        cwd=folder,
        env=os.environ | {"PATH": path, "SHOAL_STEPS": str(STEPS)},
        capture_output=True,
        text=True,
        timeout=1500,
    )


@pytest.mark.parametrize("source", ["%%bash -e\nfalse\ntrue", "1 / 0"])
def test_the_runner_stops_at_a_cell_that_fails(source: str, tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "id": "wrong", "source": [source]},
        {"cell_type": "code", "id": "later", "source": [""]},
    ]
    (tmp_path / "wrong.ipynb").write_text(json.dumps({"cells": cells}))
    ended = run_cells(tmp_path / "wrong.ipynb", tmp_path)
    assert ended.returncode != 0
    assert ended.stdout == "== wrong\n"


@pytest.mark.soak
@pytest.mark.timeout(1600)
def test_the_cells_run(tmp_path: Path) -> None:
    ended = run_cells(ROOT / NOTEBOOK, tmp_path)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    parts = dict(zip(*[iter(re.split(r"(?m)^== (\S+)\n", ended.stdout)[1:])] * 2, strict=True))
    assert f"steps: {STEPS}\n" in parts["manifest"]
    assert "InferencePool" in parts["kinds"]
    assert [line.split()[0] for line in parts["reward"].splitlines()] == [str(step) for step in range(STEPS)]
    assert parts["plan"].strip()
    assert "batch-sealed" in parts["show"]
    assert parts["verify"].strip()
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()
