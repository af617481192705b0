"""`make bench-vineppo`: what continuations bring and cost, beside GRPO from the same base model.

    python -m benchmarks.vineppo               some five minutes of one core; stop it at any time, it goes on where it was
    python -m benchmarks.vineppo --quick --out DIR   two steps of each, for a try
    python -m benchmarks.vineppo --gap         `formula_gap` alone: how far it is from the paper's formulas; a minute

Writes docs/images/vineppo.svg and benchmarks/results/vineppo.json. `vineppo_less_grpo_at_equal_steps` and `..._at_equal_tokens` are differences of
pass@1, means over seeds with their 95 % intervals (Student's t), at the last step that both made and at the most tokens that both sampled.
"""

import argparse
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.vineppo.curves import Curve

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"vineppo": (10, 2), "grpo": (30, 5)}
"""Steps of an arm, and steps between two measurements. A step of VinePPO samples some five times the tokens."""
SEEDS = (1, 2, 3)
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""97.5 % quantile by degrees of freedom."""


def main() -> None:
    asked = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from benchmarks.prime.pipeline import write_json
    from benchmarks.reproduce.page import measured_on
    from benchmarks.trainer.methods import kept_gap, write_gap
    from benchmarks.vineppo.curves import Curve, learn
    from benchmarks.vineppo.figure import draw

    result = asked.out / "vineppo.json" if asked.out else ROOT / "benchmarks" / "results" / "vineppo.json"
    if asked.gap:
        return write_gap("vineppo", result)
    cache = (asked.out or ROOT / ".cache") / "vineppo"
    cache.mkdir(parents=True, exist_ok=True)
    plan = dict.fromkeys(STEPS, (2, 1)) if asked.quick else STEPS
    curves: dict[str, dict[str, Curve]] = {}
    found: dict[str, Any] = {}
    for seed in asked.seeds:
        for arm, (steps, every) in plan.items():
            place = cache / f"{arm}-{seed}-{steps}.json"
            if not place.exists():
                write_json(place, asdict(learn(arm, seed, steps, every, cache)))
            curves.setdefault(str(seed), {})[arm] = Curve(**json.loads(place.read_text()))
        found = summary(curves) | {"measured_on": measured_on()} | kept_gap(result)
        write_json(result, found)
        draw(found, asked.out / "vineppo.svg" if asked.out else ROOT / "docs" / "images" / "vineppo.svg")
    print(json.dumps({name: value for name, value in found.items() if name != "seeds"}, indent=1))


def summary(curves: "dict[str, dict[str, Curve]]") -> dict[str, Any]:
    """The two differences over the seeds that are done, what a step costs, and every curve."""
    by_steps, by_tokens, costs = [], [], []
    for arms in curves.values():
        vine, grpo = arms["vineppo"], arms["grpo"]
        step = min(vine.steps[-1], grpo.steps[-1])
        tokens = min(vine.tokens[-1], grpo.tokens[-1])
        by_steps.append(at(vine.steps, vine.pass_rates, step) - at(grpo.steps, grpo.pass_rates, step))
        by_tokens.append(at(vine.tokens, vine.pass_rates, tokens) - at(grpo.tokens, grpo.pass_rates, tokens))
        costs.append((vine.tokens[-1] / vine.steps[-1]) / (grpo.tokens[-1] / grpo.steps[-1]))
    return {
        "vineppo_less_grpo_at_equal_steps": interval(by_steps),
        "vineppo_less_grpo_at_equal_tokens": interval(by_tokens),
        "tokens_of_a_step_vineppo_by_grpo": round(sum(costs) / len(costs), 2),
        "seeds": {seed: {arm: asdict(curve) for arm, curve in arms.items()} for seed, arms in curves.items()},
    }


def at(places: list[int], values: list[float], wanted: float) -> float:
    """The curve at a place between two measurements, on the line between them."""
    for index in range(1, len(places)):
        if wanted <= places[index]:
            share = (wanted - places[index - 1]) / (places[index] - places[index - 1])
            return values[index - 1] + share * (values[index] - values[index - 1])
    return values[-1]


def interval(values: list[float]) -> dict[str, float | None]:
    """Mean and its 95 % interval; no interval of one value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return {"mean": round(mean, 3), "low": None, "high": None}
    deviation = math.sqrt(sum((each - mean) ** 2 for each in values) / (len(values) - 1))
    half = STUDENT.get(len(values) - 1, 2.6) * deviation / math.sqrt(len(values))
    return {"mean": round(mean, 3), "low": round(mean - half, 3), "high": round(mean + half, 3)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="SEED")
    parser.add_argument("--quick", action="store_true", help="two steps of each arm; needs --out")
    parser.add_argument("--gap", action="store_true", help="measure `formula_gap` alone; other figures stay")
    parser.add_argument("--out", type=Path, help="write everything under this folder and not into the checkout")
    asked = parser.parse_args()
    if asked.quick and asked.out is None:
        parser.error("--quick makes no figures for the checkout: say where by --out DIR")
    return asked


if __name__ == "__main__":
    main()
