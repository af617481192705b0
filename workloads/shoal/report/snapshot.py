"""What the local run looks like at one moment: the one input of the live view and of the plain lines.

`Snapshot` is made by `driver.py` from the operator's `LocalRun` and the orchestrator's `/v1/run`; everything that shows something takes only this, so
that views can be tested without a single process. `shoal up` leaves the newest one in the run's folder, where `shoal ui` reads it.
"""

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from shoal.contracts.protocol import RunProgress


@dataclass(frozen=True)
class Part:
    """One container of one pod; `container` is empty for a pod that has none yet. `phase`: Pending, Running, Waiting, Stopping, Succeeded, Failed."""

    pod: str
    container: str
    phase: str
    ready: bool = False
    restarts: int = 0
    address: str = ""
    last_exit: int | None = None
    pid: int | None = None
    message: str = ""

    @property
    def name(self) -> str:
        return f"{self.pod}/{self.container}" if self.container else self.pod

    @property
    def state(self) -> str:
        """One word for people: `ready`, `starting`, `waiting`, `pending`, `stopping`, `done`, `failed`."""
        if self.phase == "Running":
            return "ready" if self.ready else "starting"
        return {"Succeeded": "done"}.get(self.phase, self.phase.lower())


@dataclass(frozen=True)
class Snapshot:
    """The whole run. `progress` is None while the orchestrator cannot be asked; `message` says what the operator waits for then."""

    unix: float
    run: str
    steps_total: int
    parts: tuple[Part, ...] = field(default_factory=tuple)
    progress: RunProgress | None = None
    message: str = ""
    stalled: str = ""
    """Why the run makes no progress, since when, and what to do; empty while it does."""


_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)


def snapshot_bytes(snapshot: Snapshot) -> bytes:
    """A snapshot as a file."""
    return _SNAPSHOT.dump_json(snapshot)


def parse_snapshot(data: bytes) -> Snapshot:
    """A snapshot of such a file; raises `pydantic.ValidationError`."""
    return _SNAPSHOT.validate_json(data)
