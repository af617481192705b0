"""Whole runs of honest workers: the demo as `shoal up` starts it, but that every row of every file is checked, as for a key on probation.

In: the demo's manifest. Out: a row for each run: how many files its validator accepted and rejected, and of how many it found something that a second
look did not find, and the rate of false rejects with its interval. Workers go through all versions of a run that learns, are late and early, and
share their machine with all of the rest.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.trust.interval import clopper_pearson
from shoal.contracts import keys
from shoal.contracts.pools import SAMPLER, PoolSampler
from shoal.contracts.signed import Signed
from shoal.contracts.verdicts import Verdict
from shoal.storage import Store
from shoal.storage.store import open_folder

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "arithmetic" / "trainingrun.yaml"
EVERY_ROW = 100_000
"""`probationFiles`: no node of a run of minutes hands in as many."""
RUN_SECONDS = 900.0
STOP_SECONDS = 60.0
RUNS: Mapping[str, PoolSampler] = {"seeds redone": SAMPLER, "distributions alone": "none"}
"""`sampler` of the pools of each: with every token drawn again, and without."""


def measure(home: Path) -> dict[str, Any]:
    """Some seven minutes a run on two quiet cores."""
    rows = [one_run(name, sampler, home / f"run-{number}") for number, (name, sampler) in enumerate(RUNS.items())]
    files, rejected = (sum(row[name] for row in rows) for name in ("files", "rejected"))
    return {
        "dtype": "float32",
        "runs": rows,
        "files": files,
        "rejected_files": rejected,
        "not_confirmed_files": sum(row["not_confirmed"] for row in rows),
        "interval_95": list(clopper_pearson(rejected, files)),
    }


def one_run(name: str, sampler: PoolSampler, home: Path) -> dict[str, Any]:
    """One run to its end, or to its deadline: what was judged by then counts. Raises RuntimeError when nothing was."""
    manifest = yaml.safe_load(EXAMPLE.read_text())
    run = manifest["metadata"]["name"]
    manifest["spec"]["validator"]["validation"] |= {"probationFiles": EVERY_ROW}
    for pool in manifest["spec"]["inferencePools"]:
        pool["sampler"] = sampler
    home.mkdir(parents=True)
    (home / "run.yaml").write_text(yaml.safe_dump(manifest))
    command = [str(Path(sys.executable).parent / "shoal"), "up", "-f", str(home / "run.yaml"), "--no-tty"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--runs-dir", str(home / "runs")], stdout=log, stderr=log)
        try:
            process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(STOP_SECONDS)
    row = counted(name, open_folder(home / "runs" / run / "volumes" / f"{run}-store", f"shoal/{run}"))
    if row["files"] == 0:
        raise RuntimeError(f"no file was judged in {name}:\n{(home / 'log').read_text(errors='replace')[-3000:]}")
    return row


def counted(name: str, store: Store) -> dict[str, Any]:
    """What became of the files in a run's store; those that came too late were not judged and count nowhere."""
    verdicts = [Signed[Verdict].from_json(store.get(info.key)).document for info in store.list(keys.VERDICTS)]
    judged = [verdict for verdict in verdicts if verdict.outcome in ("accept", "reject")]
    rejected = [verdict for verdict in judged if verdict.outcome == "reject"]
    doubted = {info.key.rsplit("/", 1)[0] for info in store.list(keys.OPINIONS)}
    confirmed = Counter(keys.opinions(verdict.node, verdict.sha256).rstrip("/") for verdict in rejected)
    return {
        "run": name,
        "files": len(judged),
        "sequences": sum(verdict.rows for verdict in judged),
        "rejected": len(rejected),
        "not_confirmed": len(doubted - confirmed.keys()),
        "every_row_checked": all(
            verdict.proof_rows == verdict.rows for verdict in judged if verdict.outcome == "accept"
        ),
        "evidence": next((f"{verdict.reason}: {verdict.evidence}"[:500] for verdict in rejected), ""),
    }
