"""`python -m benchmarks.trust.audits RUN`: how much of a finished run an audit recomputes, and how many lies of its owner it finds.

In: the folder of a run of `shoal up` by this release, such as the 70-step demo. Out: two keys of `benchmarks/results/trust_system.json`; all others
stay there. The steps take about a second each on a quiet core, the lies (`tests/recompute`) about a minute together.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.trust.system_figures import ROOT, merge

SECONDS = 3600


def audit_steps_recomputed(run: Path) -> int:
    """Trainer steps of the run that came out bit for bit, in an audit that found nothing wrong: of all batches, and of a tenth of the files."""
    with tempfile.TemporaryDirectory() as work:
        command = [
            "ledger",
            "audit",
            run.name,
            "--runs-dir",
            str(run.parent),
            "--json",
            "--work",
            work,
            "--files",
            "0.1",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "shoal.cli.main", *command], stdout=subprocess.PIPE, timeout=SECONDS, check=True
        )
    return int(json.loads(done.stdout)["steps_equal"])


def audit_tamperings_found() -> int:
    """Lies that were found and named, of those of `tests/recompute/tampering.py`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = ["tests/recompute/test_audit.py", "-k", "a_change_is_found_and_named", "-q", "--junitxml", str(report)]
        subprocess.run([sys.executable, "-m", "pytest", *tests], cwd=ROOT, timeout=SECONDS, check=False)
        suite = ElementTree.parse(report).getroot()[0]  # noqa: S314  # pytest's own
    told = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    return told["tests"] - told["failures"] - told["errors"] - told["skipped"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Audit a finished run, and look for lies.")
    parser.add_argument("run", type=Path, help="folder of a run, such as runs/arithmetic")
    run = parser.parse_args().run
    merge({"audit_steps_recomputed": audit_steps_recomputed(run)})
    merge({"audit_tamperings_found": audit_tamperings_found()})


if __name__ == "__main__":
    main()
