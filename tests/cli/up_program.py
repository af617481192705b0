"""A program for tests: `shoal.cli.up.up` with real processes in place of the operator's pods, so that signals and exit codes can be seen.

Arguments: runs-dir, behaviour (`complete`, `failed`, `forever`, `hangs` on stop, `breaks` in a tick, `scored`: complete, with
scores that the orchestrator tells only when it is asked last, and two joined machines).
"""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from shoal.cli import up as module
from shoal.contracts.protocol import RunProgress
from shoal.report.progress import ProgressReader
from shoal.report.snapshot import Part


class SmallRun:
    """One process that sleeps; what it does at the end is the test's choice."""

    name, steps = "demo", 3

    def __init__(self, runs_dir: Path, behaviour: str) -> None:
        self.run_dir = runs_dir / self.name
        self.behaviour = behaviour
        self.process: subprocess.Popen[bytes] | None = None
        self.ticks = 0

    def start(self) -> None:
        self.process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(f"pid {self.process.pid}", flush=True)

    def tick(self) -> None:
        self.ticks += 1
        if self.behaviour == "breaks":
            raise RuntimeError("the disk is on fire")

    def parts(self) -> tuple[Part, ...]:
        assert self.process is not None
        return (Part("demo-trainer-1-0", "trainer", "Running", True, pid=self.process.pid, address="127.17.0.8"),)

    def stalled(self) -> str:
        return ""

    def message(self) -> str:
        return ""

    def finished(self) -> str | None:
        done = self.ticks > 2
        return (
            {"complete": "complete", "scored": "complete", "failed": "failed: the trainer gave up"}.get(self.behaviour)
            if done
            else None
        )

    def stop(self) -> None:
        if self.behaviour == "hangs":
            time.sleep(600)
        self.kill()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def tell_scores_at_the_end() -> None:
    """An orchestrator's answers, in place of its server: the first at once, another one when `up` asks for the last time."""
    said = {"run": "demo", "steps_total": 3, "open_step": None, "latest_version": 2, "complete": True}
    scores = [
        {"version": 1, "benchmark": "sums", "slices": 2, "slices_done": 1, "ended": True},
        {"version": 2, "benchmark": "sums", "slices": 2, "slices_done": 2, "ended": True, "avg_at_k": 1.0},
    ]
    first, last = (
        RunProgress.model_validate(said | {"evaluations": each, "nodes": {"Healthy": 2}}) for each in ([], scores)
    )
    module.FAREWELL_SECONDS = 0.5

    def ask_once(reader: ProgressReader) -> None:
        reader._newest = (time.monotonic(), last)

    ProgressReader.start = lambda reader: setattr(reader, "_newest", (time.monotonic(), first))
    ProgressReader.ask_once = ask_once


def main() -> int:
    runs_dir, behaviour = Path(sys.argv[1]), sys.argv[2]
    module.open_local_run = lambda manifest, where: SmallRun(where, behaviour)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if behaviour == "scored":
        tell_scores_at_the_end()
    fresh = "--fresh" in sys.argv
    return module.up(SimpleNamespace(name="demo"), runs_dir, console, live=False, fresh=fresh)


if __name__ == "__main__":
    sys.exit(main())
