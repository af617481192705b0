"""Figures of mixtures of experts for `benchmarks.objectives`: distance from float64, and of several ranks from one.

In: tests/training/expert_models.py, expert_ranks.py, expert_adapters.py and expert_adapter_ranks.py. Out: `moe_models`, `moe_loss_gap_float64` (of a
pack from transformers' own loop over experts for each sample alone: loss, log-probabilities, entropies and gradients, relative), `moe_rank_gap` (six
updates in float64, relative to one rank's), `moe_lora_gap_float64` and `moe_lora_rank_gap` (both of adapters on experts, the first from merged
weights), `model_types_trained`, `_served`, `_redrawn` and `_proved` (as `benchmarks.model_types` found). Some minutes.

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
TESTS = [str(ROOT / "tests" / "training"), str(ROOT / "tests"), str(ROOT)]
"""The tests' helper modules are imported by their bare names."""
BATCHES = 4
"""Most batches that are drawn, if the choice of an expert hangs on rounding in each: of the first, about every third does."""


def experts() -> dict[str, Any]:
    """The figures, measured."""
    sys.path[:0] = TESTS
    from expert_models import EXPERTS, write_model
    from model_types import gap

    with tempfile.TemporaryDirectory() as temporary:
        gaps = {name: gap(write_model(Path(temporary) / name, config)) for name, config in EXPERTS.items()}
    return {
        "moe_models": len(EXPERTS),
        "moe_loss_gap_float64": gaps,
        "moe_rank_gap": _on_ranks("expert_ranks.py", ["written"])["gaps"],
        **adapters(),
        **type_counts(),
    }


def adapters() -> dict[str, Any]:
    """The figures of adapters on experts, measured."""
    sys.path[:0] = TESTS
    from expert_adapters import gap
    from expert_models import EXPERTS, write_model

    with tempfile.TemporaryDirectory() as temporary:
        gaps = {name: gap(write_model(Path(temporary) / name, config)) for name, config in EXPERTS.items()}
    found = _on_ranks("expert_adapter_ranks.py", ["written", "resumed", "taken"])
    return {"moe_lora_gap_float64": gaps, "moe_lora_rank_gap": found["gaps"]}


def _on_ranks(program: str, holds: list[str]) -> dict[str, Any]:
    """What a program of the tests prints that trains on several ranks. Raises RuntimeError where one of its checks in `holds` does not."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*TESTS, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests" / "training" / program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for check in holds:
        if not all(held for each in found[check].values() for held in each.values()):
            raise RuntimeError(f"{program}: not {check} alike on every number of ranks: {found[check]}")
    return found


def type_counts() -> dict[str, int]:
    """How many types of models train, are served, and are checked by validators."""
    found = json.loads((ROOT / "benchmarks" / "results" / "model_types.json").read_text())
    return {name: found[name] for name in found if name != "types"}


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
