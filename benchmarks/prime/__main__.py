"""`make bench-prime`: how many steps PRIME needs from the plain base and after a warm start, and what its reward model costs.

    python -m benchmarks.prime                 some ten minutes of one core; stop it at any time, it goes on where it was
    python -m benchmarks.prime --quick --out DIR   four steps of each, for a try
    python -m benchmarks.prime --gap           `formula_gap` alone: how far it is from the paper's formulas; a minute

Writes docs/images/prime.svg and benchmarks/results/prime.json: `steps_to_target_plain`, `steps_to_target_warm` (means over seeds; null where a
seed did not get there) and `prm_overhead` (CPU time of the reward model by that of the rest of a training step, sampling not counted).
"""

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = 0.75
MOST_STEPS = 100
SEEDS = (1, 2, 3)


def main() -> None:
    asked = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from benchmarks.prime.figure import draw
    from benchmarks.prime.pipeline import Curve, reinforce, start, warm_base, write_json
    from benchmarks.reproduce.page import measured_on
    from benchmarks.trainer.methods import kept_gap, write_gap

    result = asked.out / "prime.json" if asked.out else ROOT / "benchmarks" / "results" / "prime.json"
    if asked.gap:
        return write_gap("prime", result)
    cache = (asked.out or ROOT / ".cache") / "prime"
    cache.mkdir(parents=True, exist_ok=True)
    most, target = (4, 1.1) if asked.quick else (MOST_STEPS, TARGET)
    curves: dict[str, dict[str, Curve]] = {}
    for seed in asked.seeds:
        begun = start(seed, cache)
        for arm, folder in (("warm", warm_base(seed, cache)), ("plain", begun.folder)):
            place = cache / f"{arm}-{seed}-{most}.json"
            if not place.exists():
                write_json(place, asdict(reinforce(folder, begun, seed, target, most)))
            curves.setdefault(str(seed), {})[arm] = Curve(**_read(place))
            curve = curves[str(seed)][arm]
            print(
                f"seed {seed}, {arm}: {curve.pass_rates[0]:.3f} -> {curve.pass_rates[-1]:.3f} after {curve.steps[-1]} steps",
                flush=True,
            )
        found = summary(curves, target) | {"measured_on": measured_on()} | kept_gap(result)
        write_json(result, found)
    draw(found, asked.out / "prime.svg" if asked.out else ROOT / "docs" / "images" / "prime.svg")


def summary(curves: dict[str, Any], target: float) -> dict[str, Any]:
    """The figures over the seeds that are done, and every curve."""

    def steps(arm: str) -> float | None:
        if any(seed[arm].pass_rates[-1] < target for seed in curves.values()):
            return None
        return sum(float(seed[arm].steps[-1]) for seed in curves.values()) / len(curves)

    every = [curve for seed in curves.values() for curve in seed.values()]
    other = sum(curve.other_seconds for curve in every)
    return {
        "steps_to_target_plain": steps("plain"),
        "steps_to_target_warm": steps("warm"),
        "prm_overhead": round(sum(curve.reward_model_seconds for curve in every) / other, 3) if other else None,
        "target_pass_at_1": target,
        "seeds": {seed: {arm: asdict(curve) for arm, curve in arms.items()} for seed, arms in curves.items()},
    }


def _read(path: Path) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="SEED")
    parser.add_argument("--quick", action="store_true", help="four steps of each arm; needs --out")
    parser.add_argument("--gap", action="store_true", help="measure `formula_gap` alone; other figures stay")
    parser.add_argument("--out", type=Path, help="write everything under this folder and not into the checkout")
    asked = parser.parse_args()
    if asked.quick and asked.out is None:
        parser.error("--quick makes no figures for the checkout: say where by --out DIR")
    return asked


if __name__ == "__main__":
    main()
