"""`make reproduce`: run what is missing, then write benchmarks/results/reproduction.json, the PNGs and the tables of docs/reproduction.md.

    python -m benchmarks.reproduce                     all experiments, some 70 minutes of one core; stop it at any time, it goes on where it was
    python -m benchmarks.reproduce --arms async0 kl_0  only these arms
    python -m benchmarks.reproduce --pilot             how far a version moves at several rates: reproduction_pilot.json
    python -m benchmarks.reproduce --claims            more seeds until each claim of claims.json is decided or at its most: hours
    python -m benchmarks.reproduce --real              one pair of arms for each of three claims on SmolLM2-135M-Instruct: half an hour an arm
    python -m benchmarks.reproduce --page              no training: figures and tables from what is there, in the cache or committed
    python -m benchmarks.reproduce --quick --out DIR   one arm of four steps with random weights, for the tests

Each (arm, seed) is one JSON in the cache folder, written whole or not at all. A committed result counts as done unless its arm has changed
since (`--again` runs all of them anew).
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.reproduce import agreement, claims, early_warning, overlap
from benchmarks.reproduce.arms import ARMS, MATCHED_ARMS, PILOT_ARMS, REAL_ARMS, RECIPE, SEEDS, WIDTH, Arm, needed

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "reproduce"
RESULT = ROOT / "benchmarks" / "results" / "reproduction.json"
DILOCO = RESULT.with_name("diloco.json")
MOST_SEEDS = 40
"""Of an arm that may be in the cache: the last look's, and those that make no pair."""
QUICK_STEPS, QUICK_COMPLETION = 4, 8


def main() -> None:
    asked = _arguments()
    # One thread, so that a seed gives the same curve on machines of one kind; two are slower on shared cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    cache, result = (asked.out / "cache", asked.out / "reproduction.json") if asked.out else (CACHE, RESULT)
    cache.mkdir(parents=True, exist_ok=True)
    if asked.pilot:
        pilot(cache, result.with_name("reproduction_pilot.json"))
        return
    arms, seeds = _chosen(asked)
    runs = known_runs(result, ARMS | MATCHED_ARMS | REAL_ARMS | arms)
    if asked.again:
        runs = {name: run for name, run in runs.items() if name not in arms}
    add_seeds(runs, arms, seeds, cache, run=not asked.page)
    add_seeds(runs, REAL_ARMS, SEEDS[:1], cache, run=False)
    add_seeds(runs, MATCHED_ARMS, range(1, MOST_SEEDS + 1), cache, run=False)
    if asked.claims:
        decide_all(runs, cache)
    runs = {name: run for name, run in runs.items() if run["seeds"]}
    from benchmarks.reproduce.figures import draw_all
    from benchmarks.reproduce.page import measured_on

    document = {
        "recipe": RECIPE,
        "measured_on": measured_on(),
        "claims": {each.claim.name: each.document() for each in _decided(runs)},
        "early_warning": {sign.name: sign.document() for sign in _signs(runs)},
    }
    write_whole(result, document | {"arms": runs})
    figures = (asked.out or ROOT / "docs" / "images") / "reproduction"
    draw_all(runs, figures)
    write_tables(
        runs,
        result.with_name("reproduction_system.json"),
        asked.out / "reproduction.md" if asked.out else ROOT / "docs" / "reproduction.md",
    )


def write_tables(runs: dict[str, Any], system: Path, page: Path) -> None:
    """Write all tables of the page. `system` is the file of the real system's runs, which need not be there."""
    from benchmarks.diloco import study  # which takes its tools from here
    from benchmarks.reproduce.page import claims_table, write_page

    ran = agreement.read(system)
    islands = study.table(json.loads(DILOCO.read_text()))
    beside = filter(None, [agreement.table(ran, seeds_of(runs)), overlap.table(ran), islands])
    tables = [claims_table(_decided(runs)), early_warning.table(_signs(runs)), *beside]
    write_page(runs, "".join(f"{each}\n" for each in tables), page)


def _decided(runs: Mapping[str, Any]) -> list[claims.Decision]:
    return [claims.decide(claim, seeds_of(runs)) for claim in claims.read().values()]


def _signs(runs: Mapping[str, Any]) -> list[early_warning.Sign]:
    return early_warning.signs({name: run["seeds"] for name, run in runs.items() if name in MATCHED_ARMS})


def add_seeds(runs: dict[str, Any], arms: Mapping[str, Arm], seeds: Sequence[int], cache: Path, *, run: bool) -> None:
    """Add what is missing to `runs`, seed by seed, so that a run cut short has all arms."""
    missing = [
        (name, seed) for seed in seeds for name in arms if str(seed) not in runs.get(name, {"seeds": {}})["seeds"]
    ]
    started, steps = time.monotonic(), 0
    for place, (name, seed) in enumerate(missing):
        runs.setdefault(name, {"digest": digest(arms[name]), "seeds": {}})
        fresh = not _place(name, arms[name], seed, cache).exists()
        found = simulated(name, arms[name], seed, cache, run=run)
        if found is not None:
            runs[name]["seeds"][str(seed)] = found
        if found is not None and fresh:
            steps += arms[name].steps
            left = sum(arms[later].steps for later, _ in missing[place + 1 :])
            hours = (time.monotonic() - started) / steps * left / 3600
            print(f"{place + 1} of {len(missing)} runs of this look; {hours:.1f} hours left", flush=True)


def decide_all(runs: dict[str, Any], cache: Path) -> None:
    """Add seeds to the arms of claims that are not decided, look by look."""
    asked = claims.read().values()
    for look in claims.LOOKS:
        decisions = [claims.decide(claim, seeds_of(runs)) for claim in asked]
        undecided = [each.claim for each in decisions if look <= each.wanted_seeds and not each.decided]
        arms = {name: MATCHED_ARMS[name] for claim in undecided for name in claim.arms}
        apart, found = -1, 0
        while found > apart:  # a seed whose arms began with two base models makes no pair: one more instead
            apart = found
            add_seeds(runs, arms, range(1, look + apart + 1), cache, run=True)
            found = max((claims.apart(claim, seeds_of(runs)) for claim in undecided), default=0)


def run_arms(arms: Mapping[str, Arm], seeds: Sequence[int], cache: Path = CACHE) -> dict[str, Any]:
    """Columns by arm and seed; what the cache lacks is trained first, some minutes each."""
    cache.mkdir(parents=True, exist_ok=True)
    runs: dict[str, Any] = {}
    add_seeds(runs, arms, seeds, cache, run=True)
    return seeds_of(runs)


def seeds_of(runs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: run["seeds"] for name, run in runs.items()}


def pilot(cache: Path, result: Path) -> None:
    """Train a little at several rates and write down how far each version is from the next, and what a step takes. What is written down is kept."""
    found: dict[str, Any] = json.loads(result.read_text())["rates"] if result.exists() else {}
    for name, arm in PILOT_ARMS.items():
        rate = arm.recipe["learning_rate"]
        if found.get(name, {}).get("learning_rate") == rate:
            continue
        columns = simulated(name, arm, 1, cache, run=True)
        assert columns is not None
        kept = ("moved_kl", "moved_ratio", "clip_low", "clip_high", "clip_delta", "held_out_reward", "gradient_norm")
        found[name] = {"learning_rate": rate} | {column: columns[column] for column in kept}
    from benchmarks.reproduce.page import measured_on

    write_whole(result, {"recipe": RECIPE, "measured_on": measured_on(), "rates": found})


def digest(arm: Arm) -> str:
    """Of everything that changes an arm's curve but the code: a changed arm is run again."""
    later = {"width": WIDTH, "boundaries": (), "model": "taught"}
    said = {name: value for name, value in asdict(arm).items() if name not in later or value != later[name]}
    return hashlib.sha256(json.dumps([RECIPE, said], sort_keys=True).encode()).hexdigest()[:16]


def compact(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Columns by name with four significant digits, None where a step has no value."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [_rounded(record.get(name)) for record in records] for name in names}


def _rounded(value: float | int | None) -> float | int | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def simulated(name: str, arm: Arm, seed: int, cache: Path, *, run: bool) -> dict[str, list[Any]] | None:
    """The columns of one arm with one seed, from the cache or by running it; None when it is not there and shall not `run`."""
    place = _place(name, arm, seed, cache)
    if not place.exists() and not run:
        return None
    if not place.exists():
        from benchmarks.reproduce.simulator import simulate  # takes seconds, and a finished reproduction needs none

        started = time.time()
        columns = compact(simulate(arm, seed, cache))
        write_whole(place, columns)
        last = columns["held_out_reward"][-1]
        print(f"{name} seed {seed}: {last} after {arm.steps} steps, {time.time() - started:.0f} s", flush=True)
    found: dict[str, list[Any]] = json.loads(place.read_text())
    return found


def _place(name: str, arm: Arm, seed: int, cache: Path) -> Path:
    return cache / f"{name}-{seed}-{digest(arm)}.json"


def known_runs(result: Path, arms: dict[str, Arm]) -> dict[str, dict[str, Any]]:
    """Committed runs of arms that have not changed."""
    if not result.exists():
        return {}
    runs = json.loads(result.read_text())["arms"]
    return {name: run for name, run in runs.items() if name in arms and run["digest"] == digest(arms[name])}


def write_whole(path: Path, value: dict[str, Any]) -> None:
    """Write JSON, whole or not at all."""
    partial = path.with_suffix(f".partial-{os.getpid()}")
    partial.write_text(json.dumps(value, separators=(",", ":")) + "\n")
    partial.replace(path)


def _chosen(asked: argparse.Namespace) -> tuple[dict[str, Arm], tuple[int, ...]]:
    if asked.quick:
        small = {"prompts_per_step": 3, "optimizer_steps": 2}
        arm = ARMS["default"]
        small_arm = replace(
            arm, steps=QUICK_STEPS, recipe=arm.recipe | small, data="untaught", max_completion=QUICK_COMPLETION
        )
        return {"default": small_arm}, SEEDS[:1]
    if asked.real:
        return {name: REAL_ARMS[name] for name in asked.arms or REAL_ARMS}, SEEDS[:1]
    return {name: ARMS[name] for name in asked.arms or ([] if asked.claims else needed())}, tuple(asked.seeds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*ARMS, *REAL_ARMS]
    parser.add_argument("--arms", nargs="+", choices=every, metavar="ARM", help=", ".join(every))
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS), metavar="SEED")
    parser.add_argument("--quick", action="store_true", help="one small arm; needs --out")
    parser.add_argument("--pilot", action="store_true", help="measure how far a version moves, and nothing else")
    parser.add_argument("--claims", action="store_true", help="run the arms of claims that are not decided")
    parser.add_argument("--real", action="store_true", help="run the arms of the real model, with one seed")
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--again", action="store_true", help="run what is committed too")
    parser.add_argument("--out", type=Path, help="write everything under this folder and not into the checkout")
    asked = parser.parse_args()
    if asked.arms and any((name in REAL_ARMS) != asked.real for name in asked.arms):
        parser.error("--arms: those of the real model go with --real, all others without")
    if asked.quick and asked.out is None:
        parser.error("--quick makes no figures for the checkout: say where by --out DIR")
    return asked


if __name__ == "__main__":
    main()
