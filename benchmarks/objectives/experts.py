"""Figures of mixtures of experts for `benchmarks.objectives`: distance from float64, and of several ranks from one.

In: tests/training/expert_models.py and expert_ranks.py. Out: `moe_models`, `moe_loss_gap_float64` (of a pack from transformers' own loop over experts
for each sample alone: loss, log-probabilities, entropies and gradients, relative), `moe_rank_gap` (six updates in float64, relative to one rank's),
`model_types_trained` (as `benchmarks.model_types` found). A minute or two.

`beside_trl` gives `moe_time_ratio_to_trl`: CPU seconds of TRL 1.16.0 for forward, loss and backward of one batch of a small qwen3_moe, by ours. It is
`benchmarks.trainer`'s comparison with its gate: tokens, loss and gradients are the same on both sides. The ratio is that of TRL with its
completion-only head; `moe_trl` has both sides, TRL as it ships, and the shape. Two minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BATCHES = 4
"""Most batches that are drawn, if the choice of an expert hangs on rounding in each: of the first, about every third does."""


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


def beside_trl() -> dict[str, Any]:
    """Ratios of time and memory, measured. Raises `benchmarks.trainer.__main__.Disagreement`.

    Two scores of a token may be equal up to rounding. Then each side may choose another expert, and a gradient differs by a percent. Such a batch
    does not pass the gate, and the next one is drawn. Where the sides computed different things, none would pass.
    """
    from benchmarks.trainer.__main__ import REPETITIONS, SIDES, Disagreement, compare, measured_on
    from benchmarks.trainer.workload import EXPERTS

    for seed in range(BATCHES):
        try:
            found = compare(SIDES, REPETITIONS, EXPERTS, seed)
            break
        except Disagreement as error:
            print(f"batch {seed} of {BATCHES}: {error}", file=sys.stderr)
            if seed + 1 == BATCHES:
                raise
    found["shape"] |= {"experts": EXPERTS.experts, "chosen": EXPERTS.chosen, "expert_width": EXPERTS.intermediate}
    ratio = found.pop("time_ratio_fair_head")
    return {"moe_time_ratio_to_trl": ratio, "moe_trl": found | {"batch": seed, "measured_on": measured_on()}}
