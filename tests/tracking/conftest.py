"""Lets these tests use the builders of documents in `tests/report`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
