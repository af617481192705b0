"""Ask the code of commit 0e83d1e6 (25 November) to read what today's code writes.

Run `PYTHONPATH=tests:workloads:operator python tests/recorded/record_older_reader.py`. No release is tagged. `COMMIT` is the one at which the
documents of `v0.2.0` were recorded; its code is taken from the history of this repository, so that a clone without that history cannot ask.
The answers are kept in `v0.2.0/reads.json`, with what a test needs to see that none is missing.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from recorded_documents import DOCUMENTS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMIT = "0e83d1e6"
READS = HERE / "v0.2.0" / "reads.json"
RENDERED = {
    "run.json": "RunConfig",
    "node.json": "NodeConfig",
    "relay.json": "RelayConfig",
    "parts.json": "RunParts",
}
"""Entries of ConfigMaps that builders write for parts, and their classes."""


def recorded() -> list[dict[str, str]]:
    """Every document of `contracts/`, which today's code writes."""
    return [
        {"name": name, "kind": type(document).__name__, "text": document.to_json().decode()}
        for name, document in DOCUMENTS.items()
    ]


def rendered() -> list[dict[str, str]]:
    """The configuration of every golden manifest, as today's builders write it."""
    found = []
    for path in sorted((ROOT / "tests" / "golden").glob("*/*/out.yaml")):
        for child in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader):
            if child.get("kind") != "ConfigMap":
                continue
            case = f"{path.parent.parent.name}/{path.parent.name}/{child['metadata']['name']}"
            found += [
                {"name": f"{case}/{entry}", "kind": RENDERED[entry], "text": text}
                for entry, text in child["data"].items()
                if entry in RENDERED
            ]
    return found


def asked(folder: Path) -> dict[str, str]:
    """What the code of `COMMIT`, unpacked into `folder`, says of each document."""
    packed = subprocess.run(
        ["git", "-C", ROOT, "archive", COMMIT, "workloads", "operator", "tests"], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    paths = [folder / "tests" / "recorded", folder / "tests", folder / "workloads", folder / "operator"]
    program = folder / "tests" / "recorded" / "older_reader.py"
    program.write_bytes((HERE / "older_reader.py").read_bytes())
    done = subprocess.run(
        [sys.executable, program],
        input=json.dumps([*recorded(), *rendered()]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def main() -> None:
    """Ask, and write what was answered."""
    with tempfile.TemporaryDirectory(prefix="shoal-older-") as folder:
        answers = asked(Path(folder))
    READS.write_text(json.dumps({"commit": COMMIT, "documents": answers}, indent=1) + "\n")
    refused = sum(answer != "read" for answer in answers.values())
    print(f"{READS.relative_to(ROOT)}: {len(answers)} documents, {refused} of them not read by the code of {COMMIT}")


if __name__ == "__main__":
    main()
