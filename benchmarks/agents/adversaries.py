"""Dishonest workers of episodes with several turns, and how many of them the judge finds: `agent_adversaries_total` and `_rejected`.

Each is a case of `tests/validation/test_agent_adversaries.py`, which runs the validator's own judge. `agent_adversaries_rejected` counts both ways in
which a lie is found, and these are also told apart. `files_rejected`: the file is rejected, so that its node loses all of it. `rows_without_reward`:
another machine may give the claimed answer, so that its rows have no reward, the file's others have theirs, and the node loses nothing.
Run with `python -m benchmarks.agents.adversaries`; 20 seconds on two quiet cores.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

RESULT = Path(__file__).parents[1] / "results" / "agents.json"
CASES = "tests/validation/test_agent_adversaries.py"
HONEST = "test_an_honest_file"
"""Begins the name of the one case without a lie; the figures count only if it holds."""
NOT_SCORED = "is_not_scored"
"""Ends the name of the test whose files are accepted, without a reward for the rows in question. All other tests want a rejection."""


def found(cases: Iterable[ElementTree.Element]) -> dict[str, bool]:
    """By name of a case whether it held, from pytest's report. ValueError when the honest file was not accepted."""
    held = {str(case.get("name")): len(case) == 0 for case in cases}
    honest = [name for name in held if name.startswith(HONEST)]
    if not honest or not all(held.pop(name) for name in honest):
        raise ValueError("the honest file was not accepted, so that no rejection says anything")
    return held


def told_apart(held: dict[str, bool]) -> dict[str, int]:
    """How many lies cost their file, and how many only the rows in question."""
    rows = {name: fine for name, fine in held.items() if name.partition("[")[0].endswith(NOT_SCORED)}
    return {"files_rejected": sum(held.values()) - sum(rows.values()), "rows_without_reward": sum(rows.values())}


def main() -> None:
    from benchmarks.prime.pipeline import write_json
    from benchmarks.reproduce.page import measured_on

    argparse.ArgumentParser(description=__doc__).parse_args()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CASES, f"--junitxml={report}"]
        subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
        held = found(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - written by pytest just now
    figures = {
        "agent_adversaries_total": len(held),
        "agent_adversaries_rejected": sum(held.values()),
        "agent_adversaries": {
            **told_apart(held),
            "not_found": [name for name, fine in held.items() if not fine],
            "machine": measured_on(),
        },
    }
    print(json.dumps(figures, indent=1))
    write_json(RESULT, json.loads(RESULT.read_text()) | figures)


if __name__ == "__main__":
    main()
