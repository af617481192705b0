"""Waiting together: every rank waits for the same thing, in short turns, so that none of them sits in a collective while another looks for a batch.

In: a question that the leader asks. Out: its answer on every rank, or `Stopped` on every rank when one was asked to stop, or the error of the
background. Each wait is logged, measured and has a deadline (`telemetry.wait_for`). Called by `loop`.
"""

from collections.abc import Callable
from typing import TypeVar

from shoal import telemetry
from shoal.training.handover import Handover
from shoal.training.parallel import Ranks
from shoal.training.progress import ProgressReporter

Value = TypeVar("Value")

POLL_SECONDS = 0.25
HANDOVER_DEADLINE_SECONDS = 2 * 3600.0
"""Hundreds of gigabytes to an object store take tens of minutes; after two hours something is broken."""


class Waits:
    """The waits of one trainer."""

    def __init__(
        self,
        ranks: Ranks,
        handover: Handover,
        saving: Handover,
        progress: ProgressReporter,
        liveness: telemetry.Liveness,
    ) -> None:
        """`handover` publishes versions, `saving` saves their states."""
        self._ranks = ranks
        self._handover = handover
        self._saving = saving
        self._progress = progress
        self._liveness = liveness

    def beat(self) -> None:
        """Called after every micro-batch, equally often on all ranks. Raises `Stopped` on all when one was asked to stop."""
        self._turn()
        if self._ranks.any(telemetry.STOP.is_set(), "whether to stop"):
            raise telemetry.Stopped("asked to stop while training; the step starts over at the next start")

    def leader(self, what: str, ask: Callable[[], Value | None], *, deadline_seconds: float) -> Value:
        """The first answer of `ask` that is not None. Only the leader asks, all ranks get it."""

        def poll() -> Value | None:
            self._turn(what)
            return self._ranks.broadcast(ask() if self._ranks.leader else None, what)

        return self._wait(what, poll, deadline_seconds)

    def idle(self) -> None:
        """Until nothing runs in the background of any rank: all host buffers and the background's groups are free then."""
        self.handed_over()
        self._until(self._saving, "the state of the version before to be saved")

    def handed_over(self) -> None:
        """Until no rank hands a version over; the state of one may still be on its way."""
        self._until(self._handover, "the version before to be handed over")

    def saved(self) -> bool:
        """Whether no rank saves a state now."""
        return self._ranks.all(self._saving.idle(), "whether a state is still being saved")

    def _until(self, background: Handover, what: str) -> None:
        def poll() -> bool | None:
            self._turn(what)
            return self._ranks.all(background.idle(), what) or None

        self._wait(what, poll, HANDOVER_DEADLINE_SECONDS)

    def _wait(self, what: str, poll: Callable[[], Value | None], deadline_seconds: float) -> Value:
        return telemetry.wait_for(
            what,
            poll,
            deadline_seconds=deadline_seconds,
            interval_seconds=POLL_SECONDS,
            stop=None,  # ranks must stop at the same place, see `_turn`
            liveness=self._liveness,
        )

    def _turn(self, what: str | None = None) -> None:
        """One turn of a wait: signs of life, errors of the background, and, in a wait, the question whether to stop."""
        self._liveness.progress()
        self._progress.beat()
        self._handover.check()
        self._saving.check()
        if what is not None and self._ranks.any(telemetry.STOP.is_set(), "whether to stop"):
            raise telemetry.Stopped(f"asked to stop while waiting for {what}")
