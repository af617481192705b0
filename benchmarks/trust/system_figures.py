"""The figures of `benchmarks/results/trust_system.json`, of which `audits`, `key_rotation` and `system` each measure some.

In: figures by name. Out: the file, in which they stand beside all others.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "trust_system.json"


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


def recorded(test: str, prefix: str) -> dict[str, float]:
    """Run a test, and give the properties with this prefix that it recorded. SystemExit with pytest's status where it does not pass."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["pytest", test, "-q", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        ended = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False)
        if ended.returncode:
            raise SystemExit(ended.returncode)
        properties = ElementTree.parse(report).iter("property")  # noqa: S314 - our own test wrote it
        return {
            each.attrib["name"]: float(each.attrib["value"])
            for each in properties
            if each.attrib["name"].startswith(prefix)
        }
