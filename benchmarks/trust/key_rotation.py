"""Keys of a running system are replaced: `python -m benchmarks.trust.key_rotation` runs the test that does it and records its figures.

Out: `key_rotation_*` in `benchmarks/results/trust_system.json`; other keys of that file stay. Takes some five minutes on two cores.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.trust.system_figures import merge

ROOT = Path(__file__).parents[2]
TEST = "tests/system/test_key_rotation.py"
PREFIX = "key_rotation_"


def figures(report: Path) -> dict[str, float]:
    """What the test recorded in its JUnit report."""
    properties = ElementTree.parse(report).iter("property")  # noqa: S314 - our own test wrote it
    return {
        each.attrib["name"]: float(each.attrib["value"])
        for each in properties
        if each.attrib["name"].startswith(PREFIX)
    }


def main() -> None:
    """Run, record, and exit as the test did."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", TEST, "-q", "-o", "junit_family=xunit1", f"--junitxml={report}"],
            cwd=ROOT,
            check=False,
        )
        if report.is_file() and (found := figures(report)):
            merge(found)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
