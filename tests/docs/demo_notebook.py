"""The demo's notebook for tests: its cells, the commands in them as blocks of a page, and a runner for its code without Jupyter."""

import json
from dataclasses import dataclass
from functools import cache

from doc_pages import Block

from servers import ROOT

NOTEBOOK = "examples/demo.ipynb"
SHELL = "%%bash -e\n"
"""First line of a cell of commands: bash stops at the first that fails."""

RUNNER = f"""
import json, subprocess, sys
names = {{"__name__": "__main__"}}
for cell in json.load(open(sys.argv[1]))["cells"]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        continue
    print("== " + cell["id"], flush=True)
    if source.startswith({SHELL!r}):
        subprocess.run(["bash", "-e"], input=source.removeprefix({SHELL!r}), text=True, check=True)
    else:
        exec(compile(source, cell["id"], "exec"), names)
"""
"""A program that runs the code cells of the notebook in its argument, in order, in one process and its working folder."""


@dataclass(frozen=True)
class Cell:
    """A code cell; `shell` says whether its source is commands."""

    number: int
    source: str
    shell: bool


@cache
def code_cells() -> tuple[Cell, ...]:
    cells = json.loads((ROOT / NOTEBOOK).read_text())["cells"]
    sources = [(number, "".join(cell["source"])) for number, cell in enumerate(cells, 1) if cell["cell_type"] == "code"]
    return tuple(Cell(number, source.removeprefix(SHELL), source.startswith(SHELL)) for number, source in sources)


def notebook_blocks() -> list[Block]:
    """Its cells of commands; `line` is the number of the cell. `test_demo_notebook.py` runs them, so they are marked."""
    return [Block(NOTEBOOK, cell.number, "sh", cell.source + "\n", "notebook") for cell in code_cells() if cell.shell]
