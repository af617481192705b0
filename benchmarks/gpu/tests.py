"""Tests that need an accelerator, by pytest: how many passed, failed and were skipped, and what failed."""

import os
import subprocess
import sys
from xml.etree import ElementTree

from benchmarks.gpu.part import ROOT, Asked, run_part

MARK = "pytest.mark.gpu"


def measure(asked: Asked) -> None:
    """Every file with such tests. On a CPU they are collected, so they import, and are skipped."""
    report = asked.result.with_suffix(".xml")
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARK in path.read_text()]
    folders = [str(ROOT / "tests"), *sorted({str(path.parent) for path in files})]
    # The common fixtures start servers, which such a machine has not.
    command = [
        sys.executable,
        "-m",
        "pytest",
        *map(str, files),
        "-m",
        "gpu",
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*folders, *sys.path])}
    command += [f"--junitxml={report}", f"--timeout={max(10.0, asked.left):.0f}", "-rfE"]
    command += [
        "-o",
        "addopts=",
        "-o",
        "markers=gpu: needs an accelerator",
    ]  # the marks are registered by those fixtures too
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    [suite] = ElementTree.parse(report).getroot().iter("testsuite")  # noqa: S314 (pytest wrote it just now)
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    bad = [
        f"{case.attrib['name']}: {(reason.get('message') or '').splitlines()[0][:200]}"
        for case in suite.iter("testcase")
        for reason in (*case.iter("failure"), *case.iter("error"))
    ]
    failed = counts["failures"] + counts["errors"]
    asked.note(
        passed=counts["tests"] - failed - counts["skipped"], failed=failed, skipped=counts["skipped"], failures=bad
    )
    if done.returncode != 0:
        raise SystemExit(f"pytest ended with {done.returncode}")


if __name__ == "__main__":
    run_part(measure)
