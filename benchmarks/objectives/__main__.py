"""`python -m benchmarks.objectives`: how far each objective is from its formula in float64, and what GSPO's step costs beside GRPO's.

In: the cases of `tests/training/objective_gaps.py`. Out: benchmarks/results/objectives.json. `objective_gap_float64` is the greater of two absolute
differences, of the loss and of its gradient; finite differences of the formula leave some 1e-9. `gspo_cost` is the CPU time of a whole step (old and
reference log-probabilities, two updates) of algorithm gspo by that of one_sided_grpo: the least of several alternating rounds, on one thread, with
logits in many tiles, so that the head is computed twice. `experts` and `routes` say what the figures of experts are. Some eight minutes.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.objectives.experts import adapters, beside_trl, experts
from benchmarks.objectives.routes import replayed

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "benchmarks" / "results" / "objectives.json"
SHAPE = {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
"""A quarter of the weights that are multiplied are the head's, as in Qwen3-0.6B; of a 32B model's it is 2 %."""
GROUPS, GROUP_SIZE, PROMPT, COMPLETION = 2, 4, 32, 96
TILE_ROWS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each algorithm")
    parser.add_argument("--out", type=Path, default=TARGET, help="file to write")
    parser.add_argument("--experts", action="store_true", help="measure the figures of experts alone; the others stay")
    parser.add_argument(
        "--routes", action="store_true", help="measure the figures of router replay alone; the others stay"
    )
    parser.add_argument("--adapters", action="store_true", help="measure adapters on experts alone; the others stay")
    parser.add_argument("--trl", action="store_true", help="time experts beside TRL alone; the other figures stay")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    named = ((asked.experts, experts), (asked.adapters, adapters), (asked.routes, replayed), (asked.trl, beside_trl))
    parts = [measure for given, measure in named if given]
    measures = parts or [gaps, lambda: costs(asked.rounds), experts, replayed, beside_trl]
    found = {name: value for measure in measures for name, value in measure().items()}
    if parts:
        found = json.loads(asked.out.read_text()) | found
    asked.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "objective_gap_float64"}))


def gaps() -> dict[str, Any]:
    """Every case's distance from its formula."""
    sys.path.insert(0, str(ROOT / "tests" / "training"))  # the tests' helper modules are imported by their bare names
    from objective_gaps import CASES, measure

    from shoal.contracts.algorithm import Algorithm

    measured = {name: measure(case) for name, case in CASES.items()}
    return {
        "objectives": len(Algorithm.model_fields),
        "objective_gap_float64": {name: max(gap.loss, gap.gradient) for name, gap in measured.items()},
    }


def costs(rounds: int) -> dict[str, Any]:
    """CPU seconds of a step of each algorithm."""
    import numpy as np
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from shoal.contracts.recipe import Recipe
    from shoal.training.batches import plan_step
    from shoal.training.model import Policy, no_beat
    from shoal.training.optimizer import Optimizer
    from shoal.training.rollouts import RolloutGroup, Sample
    from shoal.training.update import plan_logprobs, train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    chance = np.random.default_rng(0)
    config = Qwen3Config(**SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=64, tie_word_embeddings=False)
    policy, reference = (Policy(Qwen3ForCausalLM(config).float()) for _ in range(2))
    for each in (policy, reference):
        each.tile_elements = TILE_ROWS * SHAPE["vocab_size"]

    def sample(number: int) -> Sample:
        tokens = chance.integers(0, SHAPE["vocab_size"], PROMPT + COMPLETION)
        mask, logprobs = np.ones(COMPLETION, dtype=np.bool_), np.full(COMPLETION, -9.0, dtype=np.float32)
        return Sample(str(number), tokens, PROMPT, mask, logprobs, 1.0, 0, float(number % 2), 0.0, float(number % 2))

    groups = [RolloutGroup([sample(number) for number in range(GROUP_SIZE)]) for _ in range(GROUPS)]
    shape = {"group_size": GROUP_SIZE, "optimizer_steps": 2, "max_sequence_length": 2 * (PROMPT + COMPLETION)}
    recipes = {name: Recipe(algorithm={name: {}}, **shape) for name in ("one_sided_grpo", "gspo")}
    seconds: dict[str, list[float]] = {name: [] for name in recipes}
    optimizer = Optimizer(policy.parameters(), recipes["gspo"])
    for number in range(rounds + 1):
        for name, recipe in recipes.items():
            plan = plan_step(groups, recipe, seed=0, step=number)
            started = time.process_time()
            old, base = plan_logprobs(policy, plan, no_beat), plan_logprobs(reference, plan, no_beat)
            train(policy, optimizer, plan, old, base, recipe, no_beat)
            if number:  # the first round warms up
                seconds[name].append(time.process_time() - started)
    least = {name: min(measured) for name, measured in seconds.items()}
    head = SHAPE["vocab_size"] * SHAPE["hidden_size"]
    computed = sum(weights.numel() for weights in policy.parameters()) - head  # the embedding is looked up
    return {
        "gspo_cost": least["gspo"] / least["one_sided_grpo"],
        "step_cpu_seconds": least,
        "head_share": head / computed,
        "shape": SHAPE | {"tokens": GROUPS * GROUP_SIZE * (PROMPT + COMPLETION), "tile_rows": TILE_ROWS},
    }


if __name__ == "__main__":
    main()
