"""Which objects of closed work may go, and their deletion: `storage.retention` of the manifest.

In: leases in the store, the ledger's view, the run's settings. Out: deletions. A lease's key goes last, so what a crash left half done is found again
by it, and every deletion may be repeated. Cost: a listing of `leases/`, which holds the kept steps, every five minutes; then `BATCH` leases every two
seconds, four reads and four deletions each, 64 files a second. Training states and versions have rules of their own (`training.retention`).
Called by the background work.
"""

import re
from collections import deque
from dataclasses import dataclass

from shoal.contracts import keys
from shoal.contracts.storage import Retention
from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work
from shoal.orchestrator import completeness
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.open_work import closed, known
from shoal.orchestrator.work.records import LeaseRecord, SubmissionRecord
from shoal.orchestrator.work.uploads import find_record, find_verdict
from shoal.storage import find
from shoal.storage.parallel import in_parallel
from shoal.telemetry import get_logger

BATCH = 128
"""Leases a turn: a turn takes a second or two with a store that answers in 50 ms."""
YOUNG_SECONDS = 7200.0
"""Younger leases stay: a file may take an hour to arrive, and its notice may be repeated."""
STATE = re.compile(r"(?:islands/[^/]+/)?trainer/state/(v[0-9]{6})/.+")


@dataclass(frozen=True)
class Border:
    """What is past at one moment. `step`: the first that is kept whole; `state`: the oldest version that training can be taken up from."""

    step: int
    state: int | None


class OldObjects:
    """Collects what a run's manifest lets go, a batch a turn. One thread uses it."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._policy = state.config.storage.retention or Retention()
        self._border = Border(0, None)
        self._leases: deque[str] = deque()
        self._gone = 0

    def look(self) -> None:
        """Find what may go by now; nothing is deleted."""
        state = self._state
        if self._policy.keep == "Everything" or self._leases:
            return
        if self._gone:
            get_logger().info("objects of closed work deleted", objects=self._gone)
            self._gone = 0
        sealed = sorted(state.view.sealed)
        self._border = Border(
            step=sealed[-self._policy.steps] if len(sealed) >= self._policy.steps else 0,
            state=self._oldest_state() if self._policy.keep == "Verify" else None,
        )
        young = state.clock() - YOUNG_SECONDS
        for info in state.store.list(keys.LEASES):
            number = int(info.key.split("/")[1])
            if info.modified_unix < young and self._is_past(known(state, number)):
                self._leases.append(info.key)

    def turn(self) -> None:
        """Delete the next batch."""
        batch = [self._leases.popleft() for _ in range(min(BATCH, len(self._leases)))]
        self._gone += sum(in_parallel(self._collect, batch))

    def _is_past(self, work: Work | None) -> bool:
        """Whether leases of this work may go. With `Verify` its files go with them, so what reads them must be over."""
        state, files = self._state, self._policy.keep == "Verify"
        if not closed(state, work):
            return False
        match work:
            case None:
                return True
            case TrainingStep(number=step):
                trained = self._border.state is not None and step < self._border.state
                return step < self._border.step and (trained or not files)
            case TableSlice(number=step):
                return step < self._border.step and (completeness.complete(state) or not files)
            case EvaluationSlice(version=version, benchmark=benchmark):
                return version < self._border.step and (version, benchmark.name) in state.evaluations

    def _oldest_state(self) -> int | None:
        """The oldest version with a training state, the run's or an island's; None: there is none."""
        store = self._state.store
        found = [
            STATE.fullmatch(info.key) for folder in (keys.TRAINER_STATE, keys.ISLANDS) for info in store.list(folder)
        ]
        return min((int(each[1][1:]) for each in found if each is not None), default=None)

    def _collect(self, key: str) -> int:
        """Delete what belongs to a lease, the lease last; how many objects."""
        store = self._state.store
        record = find(store, key, LeaseRecord.from_json)
        if record is None:  # another orchestrator was quicker
            return 0
        lease = record.lease
        going = [keys.lease_file(lease.lease), key]
        file = find(store, going[0], SubmissionRecord.from_json)
        if file is None:
            store.delete(key)
            return 1
        name = (file.node, file.sha256)
        if (find_record(self._state, *name) or file).lease == lease.lease:  # else the same bytes are another lease's
            late = name not in self._state.view.settled
            if late and not store.exists(keys.expired(*name)):
                if not self._accepted_too_late(file):
                    return 0  # its verdict is not concluded
                store.create(keys.expired(*name), b"{}")
            if late or self._policy.keep == "Verify":
                going = [keys.upload(*name), keys.submission(*name), *going]
        for each in going:
            store.delete(each)
        return len(going)

    def _accepted_too_late(self, file: SubmissionRecord) -> bool:
        """Whether an unmarked file has a concluded verdict without an entry: what precedes the seal of its step is in the view."""
        state, name = self._state, (file.node, file.sha256)
        if not isinstance(known(state, file.step), TrainingStep | TableSlice):
            return False
        return find_verdict(state, *name) is not None and not state.store.exists(keys.waiting(file.step, *name))
