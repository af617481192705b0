"""`make bench-diloco`: what islands cost and what they save; benchmarks/results/diloco.json.

    python -m benchmarks.diloco                    everything; some thirteen minutes on two busy cores, links need root
    python -m benchmarks.diloco --only loss        a part: loss, wan, deaths, gap (several may be named)
    python -m benchmarks.diloco --out DIR          write there and not to the checkout's results
    python -m benchmarks.diloco --delay-ms 0       another delay of the link, one way
    python -m benchmarks.diloco --quick --out DIR  few updates: whether it works, no figures to keep

- loss: two islands against data parallel training on the same rows, by what is exchanged, over seeds.
- wan: two islands in namespaces on a shaped link, and a gradient exchanged every update over the same link. Its delay is made in
  user space (`delay`), so that no netem is needed.
- deaths: every one of four islands killed in turn, by the scenario of tests/islands.
- gap: how far rounds are from the paper's outer steps in float64 (`formula_gap`), by what is exchanged and ranks of an island; seconds.

Parts that are not run keep the figures of the file that is there.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "diloco.json"
PARTS = ("loss", "wan", "deaths", "gap")
ISLANDS = 2
SEEDS = (1, 2)
LOSS = {"hidden": 64, "layers": 2, "updates": 480, "inner_steps": 60, "rows": 8}
"""Eight rounds of 60 updates. Rounds of 20 end far above data parallel training here (docs/diloco.md); the papers have rounds of 50 to 500."""
WAN = {"hidden": 192, "layers": 4, "updates": 300, "inner_steps": 100, "rows": 8, "mbit": 100.0, "delay_ms": 50.0}
"""`delay_ms`: one way; between continents it is 50 to 150."""
GRADIENT_UPDATES = 8
QUICK = {"updates": 40, "inner_steps": 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--delay-ms", type=float, help=f"delay of the link, one way (default {WAN['delay_ms']:.0f})")
    parser.add_argument("--quick", action="store_true", help="few updates, to see that it works; needs --out")
    asked = parser.parse_args()
    if asked.quick and not asked.out:
        parser.error("--quick gives no figures to keep: say with --out where they go")
    if asked.delay_ms is not None and not 0 <= asked.delay_ms <= 1000:
        parser.error(f"--delay-ms {asked.delay_ms:g}: allowed: 0 to 1000")
    if asked.delay_ms is not None:
        WAN["delay_ms"] = asked.delay_ms
    if asked.quick:
        LOSS.update(QUICK)
        WAN.update(QUICK)
    os.environ |= {"OMP_NUM_THREADS": "1", "RUST_LOG": "warn"}
    target = asked.out / "diloco.json" if asked.out else RESULT
    found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    for part in asked.only:
        started = time.monotonic()
        print(f"measuring {part}", flush=True)
        with tempfile.TemporaryDirectory(prefix="diloco") as folder:
            found |= {"loss": loss, "wan": wan, "deaths": deaths, "gap": gap}[part](Path(folder))
        print(f"  {part} took {time.monotonic() - started:.0f} s", flush=True)
        if part != "gap":  # which is arithmetic, and says nothing of the machine that the others were measured on
            found["measured_on"] = {
                "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
                "load_average_1_minute": round(os.getloadavg()[0], 1),
                "python": platform.python_version(),
                "torch": version("torch"),
                "torchft": version("torchft"),
            }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(found, indent=2) + "\n")
    for name in ("utilisation_wan", "traffic_reduction", "loss_gap_fp16", "loss_gap_int8", "survivors_identical"):
        print(f"{name:24} {found.get(name)}")


def loss(folder: Path) -> dict[str, Any]:
    """Held-out losses after equal tokens."""
    from benchmarks.diloco.islands import Host, Setting, run_data_parallel, run_islands
    from benchmarks.diloco.task import write_base
    from shoal.contracts.islands import ExchangeType

    by: dict[str, list[float]] = {"data_parallel": [], "float32": [], "float16": [], "int8": []}
    tokens = 0
    for seed in SEEDS:
        base = write_base(folder / f"base-{seed}", int(LOSS["hidden"]), int(LOSS["layers"]), seed)
        setting = Setting(base, seed, int(LOSS["updates"]), int(LOSS["inner_steps"]), int(LOSS["rows"]))
        plain = run_data_parallel(setting, ISLANDS)
        by["data_parallel"].append(plain["held_out"])
        tokens = plain["tokens"]
        for kind in get_args(ExchangeType):
            ended = run_islands(replace(setting, exchange=kind), [Host()] * ISLANDS, folder / f"{kind}-{seed}")
            _check_identical(ended)
            if (total := sum(one["tokens"] for one in ended)) != tokens:
                raise RuntimeError(f"islands trained on {total} tokens, data parallel on {tokens}")
            by[kind].append(ended[0]["held_out"])
            print(
                f"  seed {seed} {kind}: {ended[0]['held_out']:.4f}, data parallel {plain['held_out']:.4f}", flush=True
            )

    def gap(kind: str, other: str) -> float:
        return round(statistics.mean(a - b for a, b in zip(by[kind], by[other], strict=True)), 4)

    return {
        "loss_gap_fp32": gap("float32", "data_parallel"),
        "loss_gap_fp16": gap("float16", "data_parallel"),
        "loss_gap_int8": gap("int8", "data_parallel"),
        "loss_gap_fp16_to_fp32": gap("float16", "float32"),
        "loss_gap_int8_to_fp32": gap("int8", "float32"),
        "loss_noise": round(statistics.stdev(by["data_parallel"]), 4),
        "loss": {"by_seed": by, "tokens": tokens, "islands": ISLANDS, **LOSS},
    }


def gap(folder: Path) -> dict[str, Any]:
    """The largest relative difference of two and of four islands, after six rounds."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "islands")]
    from island_gaps import measure

    from shoal.contracts.islands import ExchangeType

    return {
        "formula_gap": {
            kind: {
                f"{ranks} rank{'s' if ranks > 1 else ''}": max(measure(count, ranks, kind).found for count in (2, 4))
                for ranks in (1, 2, 4)
            }
            for kind in get_args(ExchangeType)
        }
    }


def wan(folder: Path) -> dict[str, Any]:
    """Compute share and bytes on a shaped link."""
    from benchmarks.diloco.islands import Setting, run_gradient_exchange, run_islands
    from benchmarks.diloco.links import Links, unusable
    from benchmarks.diloco.task import write_base

    if why := unusable():
        print(f"  skipped: {why}")
        return {}
    base = write_base(folder / "base", int(WAN["hidden"]), int(WAN["layers"]), 1)
    setting = Setting(base, 1, int(WAN["updates"]), int(WAN["inner_steps"]), int(WAN["rows"]))
    links = Links(ISLANDS, WAN["mbit"], WAN["delay_ms"])
    try:
        hosts, round_trip = links.hosts, links.round_trip_ms()
        print(f"  a round trip takes {round_trip:.1f} ms", flush=True)
        ended = run_islands(setting, hosts, folder / "islands")
        plain = run_gradient_exchange(replace(setting, updates=GRADIENT_UPDATES), hosts, folder / "gradients")
    finally:
        links.close()
    _check_identical(ended)

    def per_token(of: list[dict[str, Any]]) -> float:
        return float(sum(one["link_bytes"] for one in of) / sum(one["tokens"] for one in of))

    return {
        "utilisation_wan": round(min(one["computing"] / one["seconds"] for one in ended), 4),
        "traffic_reduction": round(per_token(plain) / per_token(ended), 1),
        "wan": {
            **WAN,
            "islands": ISLANDS,
            "exchange": "float16",
            "parameters": ended[0]["values"],
            "round_seconds": [one["seconds"] for one in ended[0]["rounds"]],
            "link_bytes_per_token": round(per_token(ended), 1),
            "data_parallel_link_bytes_per_token": round(per_token(plain), 1),
            "data_parallel_utilisation": round(min(one["computing"] / one["seconds"] for one in plain), 4),
            "round_trip_ms": round(round_trip, 1),
            "delayed_by": "a process between TUN devices",
        },
    }


def deaths(folder: Path) -> dict[str, Any]:
    """Four islands, each killed in turn: whether all that met for a round ended it with the same bits."""
    program = ROOT / "tests" / "islands" / "island_processes.py"
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, program, "four", folder / "four"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the scenario failed: {done.stdout[-500:]}{done.stderr[-1500:]}")
    states: dict[tuple[int, tuple[str, ...]], set[str]] = {}
    killed = rounds = 0
    for path in sorted((folder / "four").glob("island-*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rounds += len(lines)
        killed += len({line["pid"] for line in lines}) - 1
        for line in lines:
            states.setdefault((line["round"], tuple(line["islands"])), set()).add(line["digest"])
    return {
        "survivors_identical": all(len(digests) == 1 for digests in states.values()),
        "deaths": {"islands": 4, "killed": killed, "meetings": len(states), "island_rounds": rounds},
    }


def _check_identical(ended: list[dict[str, Any]]) -> None:
    digests = [[one["digest"] for one in island["rounds"]] for island in ended]
    if any(other != digests[0] for other in digests) or not digests[0]:
        raise RuntimeError(f"the islands do not end their rounds alike: {digests}")


if __name__ == "__main__":
    main()
