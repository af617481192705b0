"""How many wrong data sets and templates are refused, and prompts of how many families of models are right: `python -m benchmarks.models.refused`.

Runs the tests that hold them, one case after another, and counts the cases that pass: `wrong_inputs_refused`, `wrong_inputs` beside it by kind,
and `template_families`, whose prompts have the golden token ids. Writes them into `benchmarks/results/models.json`, and leaves the others there.
Writes nothing and exits with 1 when a case fails. Some minutes of one core.
"""

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "models.json"
TESTS = ROOT / "tests" / "environments"
DATA_SETS = (TESTS / "test_wrong_datasets.py", "test_it_is_refused_in_one_line_and_nothing_is_half_prepared")
TEMPLATES = (TESTS / "test_wrong_templates.py", "test_wrong_templates")
PROMPTS = (TESTS / "test_prompts.py", "test_a_prompt_has_the_tokens_that_apply_chat_template_gives")


def passed(path: Path, test: str, scratch: Path) -> list[str]:
    """The parameters of the cases of one test, all of which passed. Raises SystemExit when one did not."""
    report = scratch / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"{path}::{test}",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    done = subprocess.run(command, cwd=ROOT, check=False)
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314  pytest has just written it
    if done.returncode or not cases or any(len(case) for case in cases):
        raise SystemExit(f"{path.name}: not every case of {test} passed; nothing is written")
    return [case.attrib["name"].removeprefix(f"{test}[").removesuffix("]") for case in cases]


def figures() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        data_sets, templates, prompts = (passed(*each, Path(scratch)) for each in (DATA_SETS, TEMPLATES, PROMPTS))
    families = {each.partition("-")[0] for each in prompts}
    return {
        "wrong_inputs_refused": len(data_sets) + len(templates),
        "wrong_inputs": {"data sets": len(data_sets), "templates and prompts": len(templates)},
        "template_families": len(families),
        "template_family_names": sorted(families),
    }


def main() -> None:
    found = figures()
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(before | found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
