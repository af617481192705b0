"""The open pool under load: `python -m benchmarks.protocol [--nodes N] [--seconds S] [--churn-nodes N] [--churn-minutes M]`, some twelve minutes.

Writes `benchmarks/results/protocol.json` and prints a table. The services are the real processes with a real Redis on loopback; the nodes are
simulated in this process. What a heartbeat costs is processor time of the orchestrator, which a busy machine disturbs little; latencies are what
they are on this machine. `eviction_seconds` and the figures under `strangers` come from `tests/open_pool/test_strangers.py` (`make soak`), where
two machines in network namespaces run the real agent.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks.protocol import beats, churn
from protocol_stack import Stack
from servers import Loopback
from shoal.contracts.protocol import HEARTBEAT_SECONDS

RESULT = ROOT / "benchmarks" / "results" / "protocol.json"
STRANGERS = ROOT / "benchmarks" / "results" / "strangers.json"
NODES, SECONDS = 10_000, 60.0
CHURN_NODES, CHURN_MINUTES = 1000, 10.0
SPARE_FILES = 200  # open files beside the nodes' connections


def possible(nodes: int) -> int:
    """As many nodes as this process may open connections for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return nodes if hard == resource.RLIM_INFINITY else min(nodes, hard - SPARE_FILES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help="members that only beat")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time that they are measured for")
    parser.add_argument("--churn-nodes", type=int, default=CHURN_NODES)
    parser.add_argument("--churn-minutes", type=float, default=CHURN_MINUTES)
    asked = parser.parse_args()
    loopback = Loopback()
    load_before = os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory() as folder:
            beating = asyncio.run(_beats(Path(folder), loopback.address(), possible(asked.nodes), asked.seconds))
        print(
            f"{beating.nodes} nodes: {beating.per_second_per_core:.0f} heartbeats a second and core, p99 {beating.p99_ms} ms",
            flush=True,
        )
        with tempfile.TemporaryDirectory() as folder:
            churning = asyncio.run(churn.run(Path(folder), loopback.address(), asked.churn_nodes, asked.churn_minutes))
    finally:
        loopback.close()
    strangers = json.loads(STRANGERS.read_text()) if STRANGERS.is_file() else None
    result = {
        "heartbeats_per_second_per_core": beating.per_second_per_core,
        "nodes_per_core_at_heartbeat_seconds": {
            str(HEARTBEAT_SECONDS): round(beating.per_second_per_core * HEARTBEAT_SECONDS)
        },
        "heartbeat_p99_ms": beating.p99_ms,
        "bytes_per_node": beating.orchestrator_bytes_per_node + beating.redis_bytes_per_node,
        "churn_nodes": min(churning.nodes, churning.joined),  # those that came in, not those that knocked
        "churn_minutes": churning.minutes,
        "lost_submissions": churning.lost,
        "doubled_submissions": churning.doubled,
        "eviction_seconds": strangers["eviction_seconds"] if strangers else None,
        "heartbeats": asdict(beating),
        "churn": asdict(churning),
        "strangers": strangers,
        "versions": {
            name: version(name) for name in ("uvicorn", "uvloop", "httptools", "hiredis", "redis", "cryptography")
        },
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "load_before": round(load_before, 1)},
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        if not isinstance(value, dict):
            print(f"{name:32} {value}")
    print(f"written to {RESULT.relative_to(ROOT)}")


async def _beats(folder: Path, address: str, nodes: int, seconds: float) -> beats.Beats:
    stack = Stack(folder, address)
    try:
        stack.start()
        return await beats.measure(stack, nodes, seconds)
    finally:
        stack.close()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
