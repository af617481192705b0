"""Figures of mixtures of experts for `benchmarks.objectives`: distance from float64, and of several ranks from one.

In: tests/training/expert_models.py and expert_ranks.py. Out: `moe_models`, `moe_loss_gap_float64` (of a pack from transformers' own loop over experts
for each sample alone: loss, log-probabilities, entropies and gradients, relative), `moe_rank_gap` (six updates in float64, relative to one rank's),
`model_types_trained` (as `benchmarks.model_types` found). A minute or two.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def experts() -> dict[str, Any]:
    """The figures, measured."""
    tests = [str(ROOT / "tests" / "training"), str(ROOT / "tests"), str(ROOT)]
    sys.path[:0] = tests  # the tests' helper modules are imported by their bare names
    from expert_models import EXPERTS, write_model
    from model_types import gap

    with tempfile.TemporaryDirectory() as temporary:
        gaps = {name: gap(write_model(Path(temporary) / name, config)) for name, config in EXPERTS.items()}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*tests, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests" / "training" / "expert_ranks.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=True)
    ranks = json.loads(done.stdout.splitlines()[-1])
    if not all(written for each in ranks["written"].values() for written in each.values()):
        raise RuntimeError(f"not every number of ranks writes the checkpoint that it read: {ranks['written']}")
    types = json.loads((ROOT / "benchmarks" / "results" / "model_types.json").read_text())
    return {
        "moe_models": len(EXPERTS),
        "moe_loss_gap_float64": gaps,
        "moe_rank_gap": ranks["gaps"],
        "model_types_trained": types["model_types_trained"],
    }
