"""Between the operator's local run and what `shoal up` shows.

`Driver` owns an `OperatorRun` (reconcile and supervision, called from the main thread), a `ProgressReader` and the `Sampler`; it gives `Snapshot`s,
and writes one a second into the run's folder for `shoal ui`.
"""

import contextlib
import time

from shoal.cli.local_run import OperatorRun
from shoal.contracts.protocol import NodeState
from shoal.files import write_atomically
from shoal.report.progress import ProgressReader
from shoal.report.run_folders import LIVE_FILE, METRICS_FILE
from shoal.report.sampler import METRIC_PORTS, SampledProcess, Sampler
from shoal.report.snapshot import Part, Snapshot, snapshot_bytes

LIVE_SECONDS = 1.0
MEMBERS: tuple[NodeState, ...] = ("Healthy", "Unhealthy")
"""States of nodes that send heartbeats."""


class Driver:
    """Runs one `OperatorRun`. `start`, then `tick` some four times a second, then `end_readings` and `stop`."""

    def __init__(self, local: OperatorRun) -> None:
        self._local = local
        self._parts: tuple[Part, ...] = ()
        self._ended_badly: dict[str, None] = {}
        self._written_unix = 0.0
        self._progress = ProgressReader(self._orchestrator_url)
        self._sampler = Sampler(local.run_dir / METRICS_FILE, self._targets)

    def start(self) -> None:
        self._local.start()
        self._progress.start()
        self._sampler.start()

    def tick(self) -> Snapshot:
        """Reconcile and supervise once, and return the snapshot."""
        self._local.tick()
        self._parts = self._local.parts()
        self._ended_badly |= {part.name: None for part in self._parts if part.last_exit not in (None, 0)}
        snapshot = self._snapshot()
        self._leave(snapshot)
        return snapshot

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            unix=time.time(),
            run=self._local.name,
            steps_total=self._local.steps,
            parts=self._parts,
            progress=self._progress.newest(),
            message=self._local.message(),
            stalled=self._local.stalled(),
        )

    def _leave(self, snapshot: Snapshot) -> None:
        """Put the snapshot where `shoal ui` reads it. A full disk stops the page's updates, not the run."""
        if snapshot.unix - self._written_unix < LIVE_SECONDS:
            return
        self._written_unix = snapshot.unix
        with contextlib.suppress(OSError):
            write_atomically(self._local.run_dir / LIVE_FILE, snapshot_bytes(snapshot))

    def finished(self) -> str | None:
        return self._local.finished()

    def strangers(self) -> int:
        """Strangers' nodes of the run, as the orchestrator last reported."""
        progress = self._progress.newest()
        members = 0 if progress is None else sum(progress.nodes.get(state, 0) for state in MEMBERS)
        return max(0, members - sum(part.container == "agent" for part in self._parts))

    def ended_badly(self) -> list[str]:
        """Parts (`pod/container`) whose process ended with an error since the start, in order of the first time."""
        return list(self._ended_badly)

    def end_readings(self) -> Snapshot:
        """Take a last reading while the parts still run: it includes events since the previous reading, such as the score of the last version."""
        self._sampler.end_readings()
        self._progress.stop()
        self._progress.ask_once()
        return self._snapshot()

    def stop(self, outcome: str) -> None:
        """Stop every part in order; no process is left."""
        self._local.stop()
        self._sampler.stop(outcome)

    def kill(self) -> None:
        self._local.kill()

    def _orchestrator_url(self) -> str | None:
        addresses = (part.address for part in self._parts if part.container == "orchestrator" and part.address)
        address = next(addresses, None)
        return None if address is None else f"http://{address}:{METRIC_PORTS['orchestrator']}"

    def _targets(self) -> list[SampledProcess]:
        return [SampledProcess(part.pod, part.container, part.address, part.pid) for part in self._parts if part.pid]
