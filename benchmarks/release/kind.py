"""The end-to-end tests on kind: `python -m benchmarks.release.kind [--all]`, some ten minutes; ten more where the node image is made first.

Runs `make e2e E2E="kind core"`, or with `--all` `make e2e E2E=kind`, which builds all images first and takes hours on two cores. Writes `kind_e2e`
to benchmarks/results/release.json: tests that passed, failed and were skipped, the minutes of all and of the tests alone, and whose node image and
Docker it was. Raises SystemExit when no test ran.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CORE, ALL = "core", "all"
SECONDS = {CORE: 2400.0, ALL: 6 * 3600.0}
REPORTS = {name: ROOT / ".cache" / f"junit-{name}.xml" for name in (CORE, ALL)}
ARGUMENTS = {CORE: ["core"], ALL: [f"--junitxml={REPORTS[ALL]}"]}
"""Of `tools/e2e.sh kind`: what it does not know goes to pytest; the core writes its report by itself."""


def main() -> None:
    from e2e.kind import engine

    from benchmarks.release.__main__ import record

    parser = argparse.ArgumentParser(prog="python -m benchmarks.release.kind")
    parser.add_argument("--all", action="store_true", help="all of e2e/, not its core")
    tests = ALL if parser.parse_args().all else CORE
    report = REPORTS[tests]
    report.unlink(missing_ok=True)
    docker = "this machine's" if engine.somebodys() else "Debian's, started for it"
    started = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "E2E_CLUSTER"}
    status = subprocess.run(
        [ROOT / "tools/e2e.sh", "kind", *ARGUMENTS[tests]],
        cwd=ROOT,
        env=environment,
        check=False,
        timeout=SECONDS[tests],
    ).returncode
    minutes = round((time.monotonic() - started) / 60, 1)
    if not report.exists():
        raise SystemExit(
            f"no test ran on kind (status {status})" + ("; .cache/core.log says why" if tests == CORE else "")
        )
    of = {
        "minutes": minutes,
        "docker": docker,
        "tests": tests,
    }
    record(kind_e2e=counted(report) | of)
    sys.exit(status)


def counted(report: Path) -> dict[str, Any]:
    """`passed`, `failed`, `skipped` and `tests_minutes` of a report in JUnit's form. An error, such as of a set-up, counts as failed."""
    suites = xml.etree.ElementTree.parse(report).getroot().iter("testsuite")  # noqa: S314 # pytest wrote it
    found = dict.fromkeys(("tests", "failures", "errors", "skipped", "time"), 0.0)
    for suite in suites:
        for name in found:
            found[name] += float(suite.get(name, 0))
    failed = int(found["failures"] + found["errors"])
    skipped = int(found["skipped"])
    passed = int(found["tests"]) - failed - skipped
    return {"passed": passed, "failed": failed, "skipped": skipped, "tests_minutes": round(found["time"] / 60, 1)}


if __name__ == "__main__":
    main()
