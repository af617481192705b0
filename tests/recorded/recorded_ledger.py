"""Where the recorded store lies, and what `shoal ledger` is asked of it; shared by its test and the script that made it."""

import contextlib
import io
import sys
from pathlib import Path

from shoal.cli.main import main as shoal

RECORDED = Path(__file__).parent / "store"
COMMANDS = {
    "verify": ("verify", "copy", "--documents", "--join", "run.json"),
    "show": ("show", "copy", "--join", "run.json"),
    "totals": ("show", "copy", "--totals", "--join", "run.json"),
}
"""What `shoal ledger` is asked of the store, as a person asks in the folder; `<name>.txt` is its answer."""


def told(*arguments: str) -> tuple[int, str, str]:
    """How `shoal ledger` ends in the present folder: its code, output and errors."""
    before, sys.argv = sys.argv, ["shoal", "ledger", *arguments]
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = shoal()
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()
