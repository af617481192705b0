"""Each part that computes, started by its real program as a pod with a GPU starts it, here without one. For tests and `benchmarks.release`."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from samples import run_config

ROOT = Path(__file__).parent.parent
PREPARE = "shoal.environments.prepare"
ROLES: dict[str, list[str]] = {
    "trainer": ["-m", "shoal.training"],
    "trainer of two ranks": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "shoal.training"],
    "validator": ["-m", "shoal.validation"],
    "worker": ["-m", "shoal.inference"],
    "prepare": ["-m", PREPARE],
}  # fmt: skip
"""Trainers are also islands and those of mode SFT; workers also those of an offline filter and of benchmarks; prepare calibrates proofs."""
PROMISED = {"SHOAL_GPUS": "1"}


@dataclass(frozen=True)
class Ended:
    """How a part ended."""

    code: int
    output: str

    @property
    def said(self) -> list[str]:
        """The lines about GPUs."""
        return [line for line in self.output.splitlines() if "the GPUs that this part was promised" in line]


def lay_out(home: Path) -> None:
    """Put a run's configuration and an empty store into a home, for prepare."""
    (home / "config").mkdir()
    (home / "config" / "run.json").write_bytes(run_config().to_json())
    (home / "store").mkdir(exist_ok=True)


def start(command: list[str], home: Path, variables: Mapping[str, str] = PROMISED, *, seconds: float = 120.0) -> Ended:
    """Run one part without any configuration: it must end before it looks for one. Prepare looks first whether its store has everything."""
    if any(PREPARE in part for part in command):
        lay_out(home)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'workloads'}:{ROOT / 'operator'}",
        "HOME": str(home),
    }
    environment |= {"SHOAL_HOME": str(home), "SHOAL_POD": "a-pod", "SHOAL_BIND": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment | variables,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    return Ended(done.returncode, done.stdout)
