"""How much of an engine's time workers use: `python -m benchmarks.workers [--hours H]`, some minutes; writes `benchmarks/results/workers.json`.

The engine is a clock at the speed of four H100 with a 32B model and the paper's lengths; planning, filling, swapping and giving up are the
product's own (`fleet`). `--filled` compares several leases with one at a time, in settings of two kinds: `steady` has one version and an endless
step, `run` steps of the paper's size with versions that come. The lengths of 30 files decide a ratio to two hundredths, so figures of the paper's
shape are means over seeds of the lengths, with their 95 % intervals. `--killed` measures `tokens_lost_share` alone and keeps the other figures;
`--inflight` does so with `inflight`: the same run where rows go on under newer weights (`rollouts.versions: Several`), beside one whose rows are of
one version. `--reward-gap` measures `inflight_reward_gap` (`reward_gap`), `--false-rejects` `false_rejects` (`honest`), `--false-rejects-fp8` the
same of rounded weights, `--rounded` `rounded_weights` (`rounded`). The first two take a quarter of an hour of a core each, and a call without
options leaves all four as they are. `--sized` measures `sized_leases` alone (`sized`), some minutes.
"""

import argparse
import json
import logging
import math
import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import structlog

from benchmarks.reproduce.__main__ import run_arms
from benchmarks.reproduce.arms import INFLIGHT_ARMS
from benchmarks.reproduce.summary import Interval, at_end, interval, paired
from benchmarks.workers.clock_engine import LIMIT_TOKENS, MEAN_TOKENS, SPREAD, STRIDE
from benchmarks.workers.fleet import Found, Setting, simulate
from benchmarks.workers.honest import false_rejects, false_rejects_fp8
from benchmarks.workers.killed import Killed, lost_share
from benchmarks.workers.rounded import rounded_weights
from benchmarks.workers.sized import Sized, played
from shoal.inference.lease_desk import MOST_LEASES
from shoal.installed import installed

RESULT = Path(__file__).parents[1] / "results" / "workers.json"
INFERENCE = RESULT.with_name("inference.json")
HOURS, WARM_UP_HOURS = 4.0, 1.0
PAPER = Setting(leases=MOST_LEASES, slots=64, rows=64, workers=4, groups=128)
STEADY = replace(PAPER, swaps=False, workers=1)
SETTINGS = {
    "steady_64_slots": STEADY,
    "steady_128_slots": replace(STEADY, slots=128, rows=128),
    "steady_64_slots_short": replace(STEADY, means=(2_000.0,)),
    "steady_64_slots_mixed": replace(STEADY, means=(2_000.0, 4_000.0, 8_000.0, 16_000.0)),
    "run_64_slots": PAPER,
}
MEASURED = {
    "steady_64_slots": ("slot_occupancy", "tokens_ratio_to_one_lease"),
    "run_64_slots": ("engine_idle_share", "expired_share"),
}
"""Settings that every seed is tried in, and the figures that are taken from them. Others have the first seed only."""
SEEDS = tuple(range(10))
INFLIGHT = {"run_64_slots": PAPER, "run_128_slots": replace(PAPER, slots=128, rows=128, groups=256)}
GAP_SEEDS = tuple(range(1, 11))
KILLED_HOURS = 0.5
KEPT_STRIDE = 8
"""Tokens of a step of the clock where rows are kept: a fourth of a proof."""
KILLED = {
    f"mean_{mean:.0f}_{signal.lower()}_{'whole_leases' if seconds is None else f'parts_{seconds}_s'}": Killed(
        mean, seconds, signal
    )
    for mean in (200.0, 1_000.0, MEAN_TOKENS)
    for signal in ("KILL", "TERM")
    for seconds in (None, 10)
} | {
    f"mean_{mean:.0f}_{signal.lower()}_kept_rows": Killed(mean, 10, signal, kept=True, stride=KEPT_STRIDE)
    for mean in (200.0, 1_000.0, MEAN_TOKENS)
    for signal in ("KILL", "TERM")
}
"""Every worker is killed once a minute."""
SIZED = {
    f"{name}_{'sized' if sized else 'all_groups'}": (replace(setting, sized=sized), hours)
    for name, setting, hours in (
        ("steady", Sized(), 2.0),
        ("killed_every_minute", Sized(every_seconds=60.0, part_seconds=10.0, mean=200.0), 0.5),
    )
    for sized in (False, True)
}


def killed_shares() -> dict[str, float]:
    """`tokens_lost_share` of each, some seconds."""
    return {name: lost_share(each, KILLED_HOURS) for name, each in KILLED.items()}


def sized_leases() -> dict[str, Any]:
    """A fast and a slow node whose leases have all groups, or as many as they are fast."""
    found = {}
    for name, (setting, hours) in SIZED.items():
        told = {key: value for key, value in asdict(setting).items() if value != math.inf}
        found[name] = {"setting": told, "hours": hours, **played(setting, hours)}
        print(name, found[name], flush=True)
    return found


def inflight(hours: float) -> dict[str, Any]:
    """Each run with rows of several versions beside the same with rows of one; a minute or two. Newer versions in the engine are seen by `idle`."""
    found = {}
    for name, setting in INFLIGHT.items():
        with ProcessPoolExecutor(max_workers=2, mp_context=get_context("fork")) as processes:  # metrics are a process's
            both = [
                processes.submit(simulate, replace(setting, several=each), hours, WARM_UP_HOURS)
                for each in (True, False)
            ]
            several, one = (each.result() for each in both)
        found[name] = {
            "setting": asdict(replace(setting, several=True)),
            **asdict(several),
            "tokens_ratio_to_one_version": several.tokens_a_second / one.tokens_a_second,
            "accepted_tokens_ratio_to_one_version": accepted(several) / accepted(one),
            "one_version": asdict(one),
        }
        print(name, found[name]["slot_occupancy"], found[name]["tokens_ratio_to_one_version"], flush=True)
    return found


def compared(setting: Setting, found: Found, one: Found) -> dict[str, Any]:
    """One setting beside the same with one lease at a time."""
    return {
        "setting": asdict(setting),
        **asdict(found),
        "tokens_ratio_to_one_lease": found.tokens_a_second / one.tokens_a_second,
        "accepted_tokens_ratio_to_one_lease": accepted(found) / accepted(one),
        "one_lease": asdict(one),
    }


def filled(hours: float) -> dict[str, Any]:
    """Engines with several leases beside those with one, some minutes of two cores."""
    found: dict[str, Any] = {}
    over_seeds: dict[str, dict[str, Interval]] = {}
    # A process may do several in turn: metrics are a process's, and `simulate` takes what they gained.
    with ProcessPoolExecutor(mp_context=get_context("fork")) as processes:
        begun = {
            (name, seed): [
                processes.submit(simulate, each, hours, WARM_UP_HOURS)
                for each in (replace(setting, seed=seed), replace(setting, seed=seed, leases=1))
            ]
            for name, setting in SETTINGS.items()
            for seed in (SEEDS if name in MEASURED else SEEDS[:1])
        }
        for name, setting in SETTINGS.items():
            made = [
                compared(replace(setting, seed=seed), *(each.result() for each in begun[name, seed]))
                for seed in (SEEDS if name in MEASURED else SEEDS[:1])
            ]
            found[name] = made[0]
            if name in MEASURED:
                over_seeds[name] = {key: interval([each[key] for each in made]) for key in KEYS}
                found[name]["of_each_seed"] = {key: [round(each[key], 4) for each in made] for key in KEYS}
            told: dict[str, Any] = over_seeds[name] if name in MEASURED else made[0]
            print(name, *(f"{key} {told[key]}" for key in KEYS), flush=True)
    figures = {key: over_seeds[name][key] for name, keys in MEASURED.items() for key in keys}
    return {
        **{key: figure.mean for key, figure in figures.items()},
        "half_of_95_percent": {key: figure.half for key, figure in figures.items()},
        "seeds": len(SEEDS),
        "lengths": {"mean": MEAN_TOKENS, "limit": LIMIT_TOKENS, "spread": SPREAD, "stride": STRIDE},
        "hours": hours,
        "found": found,
        "software": {"shoal": installed().version, "python": platform.python_version()},
    }


def accepted(found: Found) -> float:
    """Tokens a second in files that came in time."""
    return found.tokens_a_second * (1 - found.expired_share)


def reward_gap() -> dict[str, Any]:
    """Reward on held-out tasks at the end of a short run, rows of two versions minus rows of one, at equal samples: its 95 % interval over seeds.

    A small model in transformers that learns to add (`benchmarks.reproduce`), at a rate at which a version moves a hundred times as far as the
    paper's. Some 20 minutes of a core; it goes on where it was stopped.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    runs = run_arms(INFLIGHT_ARMS, GAP_SEEDS)
    one, several = INFLIGHT_ARMS
    gap = paired(runs[several], runs[one], at_end, "held_out_reward")
    return {
        "arms": {name: arm.title for name, arm in INFLIGHT_ARMS.items()},
        "held_out_reward": {
            name: [round(at_end(seed, "held_out_reward"), 4) for seed in runs[name].values()] for name in runs
        },
        "gap": gap.mean,
        "half_of_95_percent": gap.half,
        "seeds": gap.count,
    }


def write(found: dict[str, Any]) -> None:
    """Put these figures in the place of the older ones. Those of swaps are of `benchmarks.inference`."""
    swaps = json.loads(INFERENCE.read_text())
    document = json.loads(RESULT.read_text()) | found | found.get("filled", {})
    document.pop("filled", None)
    document |= {name: swaps[name] for name in ("swap_seconds", "swap_seconds_by_ranks")}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
    )  # each lease is told at debug
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=HOURS, help="of virtual time, the first of them to warm up")
    for option, name, what in (
        ("--filled", "filled", "what is compared with one lease at a time"),
        ("--killed", "tokens_lost_share", "what is lost of workers that are killed"),
        ("--sized", "sized_leases", "a fast and a slow node with leases of their size"),
        ("--inflight", "inflight", "rows of several versions beside those of one"),
        ("--reward-gap", "inflight_reward_gap", "what rows of several versions cost in reward"),
        ("--false-rejects", "false_rejects", "honest files of every mode before the judge"),
        ("--false-rejects-fp8", "false_rejects_fp8", "honest files of rounded weights before the judge"),
        ("--rounded", "rounded_weights", "how far rounded weights are from the published ones"),
    ):
        parser.add_argument(option, dest="only", action="append_const", const=name, help=f"only {what}")
    asked = parser.parse_args()
    if asked.hours <= WARM_UP_HOURS:
        parser.error(f"--hours {asked.hours}: more than {WARM_UP_HOURS:g}, which warm up")
    alone: dict[str, Callable[[], Any]] = {
        "inflight_reward_gap": reward_gap,
        "false_rejects": false_rejects,
        "false_rejects_fp8": false_rejects_fp8,
        "filled": lambda: filled(asked.hours),
        "inflight": lambda: inflight(asked.hours),
        "tokens_lost_share": killed_shares,
        "sized_leases": sized_leases,
        "rounded_weights": rounded_weights,
    }
    write({name: alone[name]() for name in asked.only or ("filled", "tokens_lost_share", "sized_leases", "inflight")})


KEYS = ("slot_occupancy", "engine_idle_share", "expired_share", "tokens_ratio_to_one_lease")

if __name__ == "__main__":
    main()
