"""Proofs a chunk in microseconds, beside the published library: `python -m benchmarks.toploc [--seconds S]`, a minute on a quiet machine.

Writes `benchmarks/results/proofs.json` and prints a table. Both sides get the same bfloat16 states, use one thread, and run in turn on the same
machine; each figure is the least processor time of a call in three rounds. Keys without a width are of the paper's hidden size and the most chunks
a call.
"""

import argparse
import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and numpy are loaded

import numpy as np
import torch

from benchmarks.toploc.inputs import cases, microseconds, states
from shoal.toploc import codec

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "proofs.json"
PEER = Path(__file__).parent / "peer.py"
ROUNDS = 3
HEADLINE = 5120
"""Hidden size of the headline figures: the paper's model."""


def ours(width: int, chunks: int, seconds: float) -> tuple[float, float]:
    """Microseconds a chunk: from the engine's bfloat16 states to bytes, and from bytes and our own states to errors."""
    rows = states(width, chunks).view(torch.uint16).numpy()
    data = codec.encode(rows)
    return (
        microseconds(lambda: codec.encode(rows), chunks, seconds),
        microseconds(lambda: codec.compare(codec.parse(data, len(rows), width), rows), chunks, seconds),
    )


def theirs(python: str, seconds: float) -> list[tuple[float, float]]:
    """The same of the published library, a pair for each case."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [python, str(PEER), str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900, env=environment)
    return [(build, verify) for build, verify in json.loads(done.stdout.splitlines()[-1])]


def measure(python: str, seconds: float) -> list[dict[str, float]]:
    """A row for each case: the least of all rounds, ours and theirs in turn."""
    rounds = [([ours(*case, seconds) for case in cases()], theirs(python, seconds)) for _ in range(ROUNDS)]
    rows = []
    for number, (width, chunks) in enumerate(cases()):
        row: dict[str, float] = {"hidden_size": width, "chunks_a_call": chunks}
        for place, what in enumerate(("build", "verify")):
            mine = min(own[number][place] for own, _ in rounds)
            other = min(peer[number][place] for _, peer in rounds)
            row |= {
                f"{what}_us": round(mine, 1), f"{what}_published_us": round(other, 1),
                f"{what}_speedup": round(other / mine, 2),
            }  # fmt: skip
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def _line(row: dict[str, float]) -> str:
    build = f"{row['build_us']:8.1f} {row['build_published_us']:9.1f} {row['build_speedup']:6.1f}x"
    verify = f"{row['verify_us']:8.1f} {row['verify_published_us']:9.1f} {row['verify_speedup']:6.1f}x"
    return f"{row['hidden_size']:6.0f} {row['chunks_a_call']:7.0f}  {build}  {verify}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="time of one figure of one round")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    python = subprocess.run(
        ["tools/toploc_peer.sh"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    print(
        f"{'hidden':>6} {'chunks':>7}  {'build':>8} {'published':>9} {'':>7}  {'verify':>8} {'published':>9}   us a chunk"
    )
    load_before = os.getloadavg()[0]
    rows = measure(str(ROOT / python), seconds)
    headline = max((row for row in rows if row["hidden_size"] == HEADLINE), key=lambda row: row["chunks_a_call"])
    result = {
        "toploc_build_us_per_chunk": headline["build_us"],
        "toploc_verify_us_per_chunk": headline["verify_us"],
        "build_speedup": headline["build_speedup"],
        "verify_speedup": headline["verify_speedup"],
        "headline": {"hidden_size": headline["hidden_size"], "chunks_a_call": headline["chunks_a_call"]},
        "cases": rows,
        "published": "toploc 0.1.6, built from source against the same torch",
        "versions": {"torch": version("torch"), "numpy": np.__version__, "python": platform.python_version()},
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "load_before": round(load_before, 1)},
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {RESULT.relative_to(ROOT)}")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
