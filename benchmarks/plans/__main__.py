"""Writes the plan of each manifest in this folder beside it: `python -m benchmarks.plans`. With `--check` it writes nothing.

In: `NAME.yaml`, and the options of `shoal plan` in `SHAPES`. Out: `NAME.json`, which has the options too. A test holds them to be current.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.cli.local_run import read_manifest
from shoal.cli.plan import PlanRequest, document, json_text, planned

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Shape:
    """One run: its manifest, the options of its plan, and what its name says of its bottleneck."""

    manifest: str
    asked: PlanRequest


QWEN_06B, QWEN_17B, QWEN_8B, QWEN_14B, QWQ_32B = "596049920", "1720574976", "8190735360", "14768307200", "32763876352"
SHAPES: dict[str, Shape] = {
    "one-gpu-0.6b": Shape("one-gpu-0.6b.yaml", PlanRequest(QWEN_06B, gpu="RTX-4090")),
    "one-node-1.7b": Shape("one-node-1.7b.yaml", PlanRequest(QWEN_17B)),
    "two-nodes-8b": Shape("two-nodes-8b.yaml", PlanRequest(QWEN_8B)),
    "home-lines-8b": Shape(
        "home-lines-8b.yaml",
        PlanRequest(QWEN_8B, uplink_mbit=5, downlink_mbit=10, strangers=("strangers=60",)),
    ),
    "always-in-full-8b": Shape(
        "always-in-full-8b.yaml",
        PlanRequest(QWEN_8B, strangers=("strangers=100",)),
    ),
    "every-row-checked-14b": Shape("every-row-checked-14b.yaml", PlanRequest(QWEN_14B)),
    "adapters-32b": Shape("adapters-32b.yaml", PlanRequest(QWQ_32B)),
    "slow-store-32b": Shape("slow-store-32b.yaml", PlanRequest(QWQ_32B, store_mbit=1000)),
    "intellect-2": Shape(
        "../../examples/intellect-2/trainingrun.yaml",
        PlanRequest(QWQ_32B, mean_tokens=9000, strangers=("strangers=33",)),
    ),
    "300-strangers-32b": Shape(
        "300-strangers-32b.yaml",
        PlanRequest(QWQ_32B, mean_tokens=9000, strangers=("strangers=300",)),
    ),
}  # fmt: skip


def made(name: str) -> dict[str, Any]:
    """The plan of a shape, with the options that it was made with."""
    shape = SHAPES[name]
    given = {key: value for key, value in asdict(shape.asked).items() if value not in (None, ())}
    return {"options": given, **document(planned(read_manifest(HERE / shape.manifest).run, shape.asked))}


def text(name: str) -> str:
    """What `NAME.json` has to be."""
    return json_text(made(name)) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a plan is not current")
    check = parser.parse_args().check
    old = 0
    for name in SHAPES:
        path, wanted = HERE / f"{name}.json", text(name)
        if path.is_file() and path.read_text() == wanted:
            continue
        old += 1
        if check:
            sys.stderr.write(f"{path.name}: is not what the planner says; run python -m benchmarks.plans\n")
        else:
            path.write_text(wanted)
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
