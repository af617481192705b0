"""The figures of `benchmarks/results/trust_system.json`, of which `audits`, `key_rotation` and `system` each measure some.

In: figures by name. Out: the file, in which they stand beside all others.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "trust_system.json"


def merge(figures: Mapping[str, Any], path: Path = RESULT) -> None:
    """Put figures beside those that are there, each in its place; whole numbers are written without a point."""
    before = json.loads(path.read_text()) if path.is_file() else {}
    whole = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in figures.items()
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(before | whole, indent=1) + "\n")
    partial.replace(path)
