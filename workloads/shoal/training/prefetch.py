"""The next step's rows, read while the current one trains.

In: a step number; the store. Out: its rows when its batch was there in time. A reader thread looks for `batch.json`, fetches and checks
the files. Whatever goes wrong in it is forgotten: the step then reads for itself, with its own deadline and its own errors. Every rank reads
for itself, since files are named by their digests and checked by whoever reads them. Called by `loop`.
"""

import threading
from dataclasses import dataclass
from pathlib import Path

from shoal.contracts.run import RunConfig
from shoal.contracts.signed import Signer
from shoal.contracts.steps import StepBatch
from shoal.storage import LocalDiskFull, NotFound, Store, StoreUnavailable
from shoal.telemetry import Stopped
from shoal.training.rollouts import BadBatch, RowLimits, StepRows, read_batch, read_groups
from shoal.transport import Unavailable

LOOK_SECONDS = 1.0
"""Between looks for a batch that is not there yet."""


@dataclass(frozen=True)
class Reader:
    """Reads rows of batches as one run allows."""

    config: RunConfig
    store: Store
    limits: RowLimits
    signer: Signer | None = None
    """Of verdicts; None: who holds the validators' key by now, as `config.trust` has it."""
    within: Path | None = None
    """A folder of the trainer's `tmp/`, where a file lies while it is read; None: `TMPDIR`."""

    def rows(self, batch: StepBatch) -> StepRows:
        """Raises BadBatch and `StoreUnavailable` as `read_groups` does, and `Unavailable` as its signer does (`keys_watch.AskedKeys`)."""
        try:
            return read_groups(
                self.store,
                batch,
                self.signer or self.config.trust.of("validator"),
                self.limits,
                leave_out=self.config.failure_policy.bad_data == "LeaveOut",
                within=self.within,
            )
        except LocalDiskFull as error:
            if self.within is None:
                raise
            raise LocalDiskFull(f"{error}: give trainer.temporaryVolume more room, or the node's disk") from error


class Prefetch:
    """At most one step ahead."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._current: _Reading | None = None

    def start(self, step: int) -> None:
        """Begin to look for step `step`'s batch; gives up whatever was looked for before."""
        self.stop()
        if step < self._reader.config.steps:
            self._current = _Reading(self._reader, step)

    def rows(self, batch: StepBatch) -> StepRows:
        """The batch's rows: those that were read ahead if they are of this batch, else read now."""
        reading, self._current = self._current, None
        if reading is not None and reading.found_batch:
            reading.thread.join()
            if reading.batch == batch and reading.rows is not None:
                return reading.rows
        elif reading is not None:
            reading.give_up.set()
        return self._reader.rows(batch)

    def stop(self) -> None:
        """Look no further."""
        if self._current is not None:
            self._current.give_up.set()
            self._current = None


class _Reading:
    def __init__(self, reader: Reader, step: int) -> None:
        self.batch: StepBatch | None = None
        self.rows: StepRows | None = None
        self.give_up = threading.Event()
        self._reader = reader
        self._step = step
        self.thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self.thread.start()

    @property
    def found_batch(self) -> bool:
        return self.batch is not None

    def _run(self) -> None:
        while not self.give_up.is_set():
            try:
                self.batch = read_batch(self._reader.store, self._reader.config.run, self._step)
                self.rows = self._reader.rows(self.batch)
                return
            except NotFound:
                self.give_up.wait(LOOK_SECONDS)
            except (BadBatch, StoreUnavailable, Unavailable, Stopped):
                return
