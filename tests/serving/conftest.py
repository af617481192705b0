"""Lets these tests use the builders of documents in `tests/report` and the tiny model of `tests/inference`, and a served run."""

import sys
from pathlib import Path

for beside in ("report", "inference"):
    sys.path.insert(0, str(Path(__file__).parents[1] / beside))

from served_runs import promote, served  # noqa: E402 - it imports from these folders

__all__ = ["promote", "served"]
