"""Work behind the trainer's back: one job at a time in a thread, whose end somebody waits for and whose errors somebody sees.

In: jobs (hand a version over; save a state). Out: nothing but their effects. While one runs the next step trains; a second one waits
until the first is done, so that host buffers may be used again. The loop has one of these to publish and one to save.
"""

import threading
import time
from collections.abc import Callable

from prometheus_client import Gauge

from shoal.telemetry import unmeasured

IN_FLIGHT_SECONDS = unmeasured(Gauge("shoal_trainer_handover_seconds", "Time to hand over the last version."))
STATE_SECONDS = unmeasured(
    Gauge("shoal_trainer_state_seconds", "Time from the handover of a version to its saved state, for the last one.")
)
BLOCKED_SECONDS = unmeasured(
    Gauge(
        "shoal_trainer_handover_blocked_seconds",
        "Time that the last step waited for handover and state of previous versions.",
    )
)


class Handover:
    """One thread a job. Every method but `failed` is called from the main thread."""

    def __init__(self, seconds: Gauge = IN_FLIGHT_SECONDS) -> None:
        self._seconds = seconds
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, name: str, job: Callable[[], None]) -> None:
        """Run `job` in the background. The one before must be `idle`."""
        if not self.idle():
            raise RuntimeError(f"{name} was started while {self._thread.name if self._thread else ''} still runs")
        # A daemon: a process that is asked to stop does not wait for a long upload, what is not sealed is saved again.
        self._thread = threading.Thread(target=self._run, args=(job,), name=name, daemon=True)
        self._thread.start()

    def idle(self) -> bool:
        """Whether nothing runs. Raises the error of the job that ended, instead of an answer."""
        self.check()
        return self._thread is None or not self._thread.is_alive()

    def check(self) -> None:
        """Raise the error of the background, if there is one: it must end the process, or versions would silently stop."""
        if self._error is not None:
            raise self._error

    @property
    def failed(self) -> bool:
        """Whether a job ended with an error."""
        return self._error is not None

    def settle(self, seconds: float) -> bool:
        """Before the process ends: give the job this long, and say whether it is done. Errors are no longer of interest."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _run(self, job: Callable[[], None]) -> None:
        started = time.monotonic()
        try:
            job()
        except BaseException as error:  # raised in the main thread by `check`
            self._error = error
        self._seconds.set(time.monotonic() - started)
