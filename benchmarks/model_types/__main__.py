"""`python -m benchmarks.model_types`: tries a tiny model of every type, and writes benchmarks/results/model_types.json for the page of model types.

In: `tests/training/model_types.py`. With `--serve` vLLM serves what the trainer wrote, and its log-probabilities of its own tokens are compared
with the trainer's; without, what was found of that before is kept. One engine after the other, in one process: a minute for each on a quiet core.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "benchmarks" / "results" / "model_types.json"
MOST_SERVED_GAP = 1e-3
"""Nats: float32 of two programs that sum in other orders."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="let vLLM serve each type, which takes minutes")
    parser.add_argument("--only", nargs="*", help="names of types; all others stay as they were")
    parser.add_argument("--out", type=Path, default=TARGET, help="file to write")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(ROOT / "tests"))
    sys.path.insert(0, str(ROOT / "tests" / "training"))  # the tests' helper modules are imported by their bare names
    from model_types import REFUSED, TYPES, tried

    before: dict[str, Any] = json.loads(asked.out.read_text())["types"] if asked.out.exists() else {}
    types: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, kind in (TYPES | REFUSED).items():
            if asked.only and name not in asked.only and name in before:
                types[name] = before[name]
                continue
            folder = Path(temporary) / name
            types[name] = tried(kind, folder)
            if "reason" not in types[name]:
                old = before.get(name, {}).get("served", "not tried")
                types[name]["served"] = served(folder) if asked.serve else old
            print(name, json.dumps(types[name]), flush=True)
    asked.out.write_text(json.dumps({"model_types_trained": trained(types), "types": types}, indent=2) + "\n")


def trained(types: dict[str, Any]) -> int:
    """Types whose tiny model trains as the float64 reference says and is written as it was read."""
    return sum(each.get("gap_float64", 1.0) <= 1e-6 and each["same_bytes"] for each in types.values())


def served(folder: Path) -> str:
    """What vLLM makes of the written model: `yes`, or the first sentence of its error's last line."""
    environment = os.environ | {
        "TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.model_types.serve", str(folder / "out")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "not known: the engine took more than ten minutes"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        said = (lines or done.stderr.splitlines())[-1].strip()
        return f"no: {said.partition('. ')[0][:200]}"
    gap = float(done.stdout.splitlines()[-1])
    return "yes" if gap <= MOST_SERVED_GAP else f"no: its log-probabilities differ by {gap:.1e}"


if __name__ == "__main__":
    main()
