"""`python -m benchmarks.operator` (`make bench-operator`): one table and `benchmarks/results/operator.json`.

    python -m benchmarks.operator                     1,000 pools, some five minutes
    python -m benchmarks.operator --pools 100 --out /tmp/operator.json
    python -m benchmarks.operator --runs 1000         TrainingRuns in place of pools (runs.py), some fifteen minutes; the other figures stay
    python -m benchmarks.operator --runs 3000 --operators 3     as many in namespaces of three operators, some forty minutes
    python -m benchmarks.operator --cases             bad days of an administrator (cases.py), some fifteen minutes; the other figures stay

The operator has one core while pools are applied and changed; API server, etcd and load have what is left. Aims are in `AIMS`; a figure
that misses its aim is marked, and the status is 1.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.operator import measures
from benchmarks.operator.cases import measure_cases
from benchmarks.operator.cluster import ROOT, Bench, Loopback, Seen, cpu_seconds, on_one_core, resident_mib, wait
from benchmarks.operator.runs import TENANTS, measure_runs
from benchmarks.operator.stream import absorb
from shoal.installed import installed

RESULT = ROOT / "benchmarks/results/operator.json"
AIMS: dict[str, tuple[str, float]] = {
    "apply_1000_seconds": ("<=", 60.0),
    "change_p50_ms": ("<=", 300.0),
    "change_p99_ms": ("<=", 2000.0),
    "events_per_second": (">=", 2000.0),
    "event_writes": ("<=", 0.0),
    "own_event_writes": ("<=", 0.0),
    "own_events_per_second": (
        ">=",
        100.0,
    ),  # five times the changes that are made at a rate of ten, with a status write each
    "cold_start_writes": ("<=", 0.0),
    "rss_mib": ("<=", 300.0),
    "failover_seconds": ("<=", 20.0),
    "cpu_share_per_run": ("<=", 0.0005),
    "edit_p99_ms_at_1000_runs": ("<=", 500.0),
    "cold_start_seconds_1000_runs": ("<=", 60.0),
    "rss_mib_1000_runs": ("<=", 600.0),
    "failover_seconds_1000_runs": ("<=", 20.0),
    "admin_cases": (">=", 200.0),
    "admin_cases_without_cause": ("<=", 0.0),
}
PEER = {"name": "KubeRay, 1,000 RayClusters (published)", "seconds": 258.0, "custom_resources_per_second": 4.0}


def main() -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator", description=__doc__.split("\n")[0])
    parser.add_argument("--pools", type=int, default=1000, metavar="N", help="InferencePools (default 1000)")
    parser.add_argument(
        "--runs",
        type=int,
        default=0,
        metavar="N",
        help="measure this many TrainingRuns in place of pools (at least 20)",
    )
    parser.add_argument(
        "--operators",
        type=int,
        default=1,
        metavar="K",
        help="operators that share the namespaces of --runs; each makes its part in turn, and the last one is measured (default 1)",
    )
    parser.add_argument(
        "--cases",
        nargs="?",
        const="",
        metavar="WORDS",
        help="try an administrator's bad days in place of pools; with WORDS only those with these in their name, and nothing is written",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds until a case is given up (default 60, which are what counts); more on a busy machine shows what is only late",
    )
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of changes, 10 a second (default 60)")
    parser.add_argument(
        "--events",
        type=int,
        default=20_000,
        metavar="N",
        help="events of children to replay, and a tenth of own kinds (default 20000)",
    )
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE", help="where the JSON goes")
    given = parser.parse_args()
    if given.operators < 1 or (given.operators > 1 and not given.runs):
        parser.error(f"--operators must be at least 1, and more than 1 needs --runs; got {given.operators}")
    if given.runs and given.runs < (least := TENANTS * given.operators):
        parser.error(f"--runs must be at least {least}, so that each tenant has a run; got {given.runs}")
    loopback = Loopback()
    if given.cases is not None:
        return try_cases(given.cases, given.patience, loopback, given.out)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        bench = Bench(Path(folder), loopback)
        try:
            measured = (
                partial(measure_runs, runs=given.runs, operators=given.operators, say=say)
                if given.runs
                else partial(measure, pools=given.pools, events=given.events)
            )
            figures = measured(bench, seconds=given.seconds)
        finally:
            bench.close()
            loopback.close()
    return table(write({**figures, "peer": PEER, "measured_on": measured_on()}, given.out))


def try_cases(words: str, patience: float, loopback: Loopback, out: Path) -> int:
    """Try the cases, write their figures if all were tried, and print them; 1 when one was without its cause."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        try:
            figures = measure_cases(Path(folder), loopback, words, patience, say)
        finally:
            loopback.close()
    return table(figures if words else write(figures, out))


def write(figures: dict[str, Any], out: Path) -> dict[str, Any]:
    """Add figures to those of before: pools, runs, cases and a test (tests/operator/cluster/test_releases_on_api_server.py) each write their own."""
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    figures = {**kept, **figures}
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_suffix(".partial")
    unfinished.write_text(json.dumps(figures, indent=2) + "\n")
    unfinished.replace(out)
    return figures


def measure(bench: Bench, pools: int, seconds: float, events: int) -> dict[str, Any]:
    """All figures, in the order in which they disturb each other least."""
    operator = bench.operator("first")
    wait("it to lead", operator.is_leader, 60)
    bench.make_run()
    seen = Seen(bench.plane.kubeconfig)
    say(f"creating {pools} pools")
    with on_one_core(operator):
        apply_seconds, children = measures.apply_seconds(bench, seen, pools)
        apply_cpu = cpu_seconds(operator)
        say(f"changing specs for {seconds:.0f} s")
        latencies = measures.change_latencies(bench, seen, pools, rate=10.0, seconds=seconds)
    memory = resident_mib(operator)
    operator.stop()
    say("starting the operator again")
    operator, cold_seconds, cold_writes = measures.cold_start(bench, pools)
    memory = max(memory, resident_mib(operator))
    say("killing the leader")
    failover = measures.failover_seconds(bench, seen, operator)
    standby = bench.operators[-1]
    wait("the new leader to have looked at all", lambda: measures.is_through(standby, pools), 300)
    objects = measures.recorded(bench.kube)
    seen.close()
    for process in bench.operators:
        process.stop()
    say(f"replaying {events} events of children and {events // 10} of own kinds")
    stream = absorb(objects, "StatefulSet", events)
    own = absorb(objects, "InferencePool", events // 10)
    return {
        "pools": pools,
        "children": children,
        # With fewer pools than 1,000 the same figure is scaled, and `pools` says so.
        "apply_1000_seconds": round(apply_seconds * 1000 / pools, 2),
        "custom_resources_per_second": round(pools / apply_seconds, 1),
        "objects_applied_per_second": round(children / apply_seconds, 1),
        "operator_cpu_seconds": round(apply_cpu, 1),
        "changes": len(latencies),
        "change_p50_ms": round(measures.percentile(latencies, 0.5), 1),
        "change_p99_ms": round(measures.percentile(latencies, 0.99), 1),
        "events_per_second": stream["events_per_second"],
        "events_per_cpu_second": stream["events_per_cpu_second"],
        "event_reconciles": stream["reconciles"],
        "event_writes": stream["writes"],
        "own_events_per_second": own["events_per_second"],
        "own_events_per_cpu_second": own["events_per_cpu_second"],
        "own_event_reconciles": own["reconciles"],
        "own_event_writes": own["writes"],
        "cold_start_writes": cold_writes,
        "cold_start_seconds": round(cold_seconds, 2),
        "rss_mib": round(memory, 1),
        "failover_seconds": round(failover, 2),
    }


def measured_on() -> dict[str, str]:
    """Machine and versions."""
    kubernetes = subprocess.run(
        [ROOT / "tools/build.sh", "--path", "kubernetes"], capture_output=True, text=True, check=True
    ).stdout.strip()
    server = subprocess.run([f"{kubernetes}/kube-apiserver", "--version"], capture_output=True, text=True, check=True)
    etcd = subprocess.run([f"{kubernetes}/etcd", "--version"], capture_output=True, text=True, check=True)
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, shared with etcd, API server and load",
        "operator": "one core",
        "python": platform.python_version(),
        "shoal": installed().version,
        "kopf": version("kopf"),
        "kubernetes": server.stdout.split()[-1],
        "etcd": etcd.stdout.splitlines()[0].split()[-1],
    }


def table(figures: dict[str, Any]) -> int:
    """Print the figures with their aims; 1 when one is missed."""
    missed = 0
    print(f"\n{'figure':<43} {'measured':>10}  aim")
    several = {f"{name} (of several)": value for name, value in figures.get("several_operators", {}).items()}
    for name, value in {**figures, **several}.items():
        if not isinstance(value, int | float):
            continue
        aim = AIMS.get(name.removesuffix(" (of several)"))
        fine = aim is None or (value <= aim[1] if aim[0] == "<=" else value >= aim[1])
        missed += not fine
        print(f"{name:<43} {value:>10}  {f'{aim[0]} {aim[1]:g}' if aim else ''}{'' if fine else '   MISSED'}")
    print(f"{PEER['name']}: {PEER['custom_resources_per_second']} custom resources a second")
    return 1 if missed else 0


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
