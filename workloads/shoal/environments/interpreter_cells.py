"""Runs Python cells one after the other in one memory, inside a sandbox. Sent there as source by `interpreter`, and never imported.

In: a JSON list of cells on standard input. Out: a JSON line a cell, `[what it printed, whether it ended without an error]`. What a cell does to this
program is its own doing: it changes what the model is told, the same on every machine. Warnings are left out: each version of Python has others.
Standard library only.
"""

import ast
import io
import json
import os
import sys
import warnings

LONGEST = 4000
"""Characters that are kept of what a cell prints."""


class KeptText(io.TextIOBase):
    """Standard output of a cell: its first characters."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.room = LONGEST

    def write(self, text: str) -> int:
        self.parts.append(text[: self.room])
        self.room -= len(self.parts[-1])
        return len(text)


def run(source: str, memory: dict[str, object], kept: KeptText) -> bool:
    """One cell; whether it ended without an error, which is written behind what it printed."""
    try:
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), memory)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), memory)  # noqa: S307
            if value is not None:
                kept.write(f"{value!r}\n")
    except BaseException as error:
        kept.room = max(kept.room, 200)
        kept.write(f"{type(error).__name__}: {error}"[:200])
        return False
    return True


def main() -> None:
    """Run all cells, then end, whatever threads they left behind."""
    warnings.simplefilter("ignore")
    cells = json.load(sys.stdin)
    memory: dict[str, object] = {"__name__": "__main__"}
    write, dumps = os.write, json.dumps
    for source in cells:
        kept = KeptText()
        sys.stdout = sys.stderr = kept
        fine = run(source, memory, kept)
        line = dumps(["".join(kept.parts).rstrip("\n"), fine]).encode() + b"\n"
        while line:
            line = line[write(1, line) :]
    os._exit(0)


if __name__ == "__main__":
    main()
