"""What goes on now in a run on a cluster: what the operator says of the parts (`config/parts.json`) and what the orchestrator answers.

The file is a ConfigMap's: kubelets bring a change within a minute or so, and a torn or missing one leaves the map empty, and the page says why.
"""

import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from shoal.contracts.protocol import RunProgress
from shoal.contracts.run import RunConfig
from shoal.contracts.run_parts import PartState, RunParts
from shoal.report.snapshot import Part, Snapshot

LARGEST_FILE_BYTES = 1 << 20  # a ConfigMap holds no more
PENDING = frozenset({"Absent", "Queued"})
COMING = frozenset({"NotObserved", "PodsNotReady"})


def part_of(state: PartState) -> Part:
    """A row of the map: the part's object instead of a pod."""
    return Part(pod=state.name, container="", phase=_phase(state), ready=state.ready, message=state.message)


def _phase(state: PartState) -> str:
    """As of a container: what is well and has no pods is done, what lacks pods starts, and what has a problem waits."""
    if state.ready:
        return "Running" if state.pods_desired else "Succeeded"
    if state.reason in PENDING:
        return "Pending"
    if state.reason in COMING:
        return "Running"
    return "Failed" if state.reason == "JobFailed" else "Waiting"


def read_parts(path: Path, run: str) -> tuple[Part, ...] | None:
    """The parts of `run` as the operator last told them, or None when the file says nothing of it."""
    try:
        with path.open("rb") as file:
            told = RunParts.from_json(file.read(LARGEST_FILE_BYTES))
    except (OSError, ValidationError):
        return None
    return tuple(part_of(state) for state in told.parts) if told.run == run else None


def snapshots(config: RunConfig, path: Path, progress: Callable[[], RunProgress | None]) -> Callable[[], Snapshot]:
    """A function that gives the newest snapshot of a run on a cluster."""

    def newest() -> Snapshot:
        parts, now = read_parts(path, config.run), progress()
        lacking = "" if parts is not None else "the operator has not reported the run's parts"
        return Snapshot(
            time.time(),
            config.run,
            now.steps_total if now is not None else config.steps,
            parts=parts or (),
            progress=now,
            message=lacking if now is not None else "the orchestrator does not answer",
        )

    return newest
