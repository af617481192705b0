"""The orchestrator's background tasks: repair or rebuild what failed, invite, reap, end leases, settle late files, report, collect.

Three threads: the housekeeper, the inviter, which waits for discovery, and the one that rebuilds; neither delays the first, which goes on while
Redis has the run's state. Each task may fail when a peer does not answer; it is logged and retried at the next round, so that every loop survives a
restart of its peers.
"""

import random
import threading
from collections.abc import Callable

from shoal.contracts import keys
from shoal.ledger.checkpoints import Checkpoints
from shoal.orchestrator import key_changes, recovery
from shoal.orchestrator.completeness import complete
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.metrics import report, report_details
from shoal.orchestrator.nodes import membership
from shoal.orchestrator.nodes.inviting import Inviter
from shoal.orchestrator.retention import OldObjects
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.verdicts.verdicts import expire, over
from shoal.orchestrator.work import handout, leases
from shoal.orchestrator.work.open_work import closed, known, openable_steps
from shoal.orchestrator.work.sealing import seal_if_full
from shoal.storage import StoreUnavailable
from shoal.storage.unfinished import UnfinishedUploads
from shoal.telemetry import Liveness, get_logger
from shoal.transport import SignedClient

ROUND_SECONDS = 0.5
"""Short against every time that it looks after (heartbeats 10 s, leases a minute); one round costs a few reads of Redis."""
PAUSE_AFTER_FAILURE_SECONDS = 2.0  # a peer that is away is not back within half a second, and the log stays readable
NODE_ROUNDS = 4
"""Nodes are looked at every two seconds: their times are ten seconds and more, and each look reads all their records."""
CATCH_UP_ROUNDS = 10  # other writers are rare (a rolling update), and every append catches up anyway
SWEEP_ROUNDS = 600  # five minutes: listing a folder costs little, but not nothing
STAGED_SECONDS = 7200.0
"""A staged file older than this belongs to no grant any more: grants live for minutes, a gigabyte over a slow line for an hour."""
UNFINISHED_SECONDS = 172_800.0
"""Age at which an upload by parts is nobody's any more. The trainer gives up a handover after two hours (`HANDOVER_DEADLINE_SECONDS`), and 65 GB
in two days are 0.4 MB/s. MinIO drops uploads after one day by itself."""
INVITE_SECONDS = 1.0  # a new node waits this long at most before its invite is there
LIVENESS_SECONDS = 120.0  # a round that waits for the store may take its deadline several times


class Background:
    """Starts and stops the threads; `wake` asks for a look at what failed."""

    def __init__(self, state: RunState, discovery: SignedClient) -> None:
        self._state = state
        self._inviter = Inviter(state, discovery)
        self._old_objects = OldObjects(state)
        self._unfinished = UnfinishedUploads(state.config)
        self._checkpoints = Checkpoints(state.ledger, state.keys.notice.roster)
        self._stop = threading.Event()
        self._soon = threading.Event()
        self._knows = threading.Event()  # this process has read the run's state, and Redis still has it
        self.liveness = Liveness(LIVENESS_SECONDS)
        self._threads = [
            threading.Thread(target=self._rebuilding, name="rebuilding", daemon=True),
            threading.Thread(target=self._housekeeping, name="housekeeping", daemon=True),
            threading.Thread(target=self._inviting, name="inviting", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._soon.set()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def wake(self) -> None:
        """Something went wrong between store and Redis, or Redis is empty: repair or rebuild at once."""
        self._soon.set()

    def _rebuilding(self) -> None:
        while not self._stop.is_set():
            if not self._attempt("repair", self._repair):
                self._stop.wait(PAUSE_AFTER_FAILURE_SECONDS)
            self._soon.wait(ROUND_SECONDS)
            self._soon.clear()

    def _look(self) -> None:
        """Whether there is something to keep."""
        if recovery.is_built(self._state):
            self._knows.set()
        else:
            self._knows.clear()

    def _housekeeping(self) -> None:
        rounds = 0
        fine: list[bool] = []

        def attempt(what: str, task: Callable[[], object]) -> None:
            fine.append(self._attempt(what, task))

        while not self._stop.is_set():
            fine.clear()
            attempt("look for the state in Redis", self._look)
            if self._knows.is_set():
                attempt("end leases", lambda: handout.end_overdue_leases(self._state))
                attempt("settle late files", lambda: settle_late(self._state))
                attempt("seal steps", self._seal)
                attempt("fold evaluations", lambda: evaluations.fold(self._state))
                attempt(
                    "write checkpoints",
                    lambda: self._checkpoints.write_due(self._state.clock(), complete=complete(self._state)),
                )
                if rounds % NODE_ROUNDS == 0:
                    attempt("reap nodes", lambda: membership.reap(self._state))
                    attempt("report", lambda: report(self._state))
                    attempt("collect old objects", self._old_objects.turn)
                if rounds % CATCH_UP_ROUNDS == 0:
                    attempt("read the ledger", lambda: catch_up(self._state))
                    attempt("keep the terms", self._state.terms.keep)
                    attempt("tell of changed keys", lambda: key_changes.publish(self._state))
                    attempt("report nodes", lambda: report_details(self._state))
                if rounds % SWEEP_ROUNDS == SWEEP_ROUNDS - 1:
                    attempt("sweep staging", lambda: sweep_staging(self._state))
                    attempt(
                        "abort unfinished uploads",
                        lambda: self._unfinished.abort(self._state.clock() - UNFINISHED_SECONDS),
                    )
                    attempt("look at old notes", lambda: recovery.sweep_waiting(self._state))
                    attempt("look for old objects", self._old_objects.look)
            rounds += 1
            self.liveness.progress()
            self._stop.wait(ROUND_SECONDS if all(fine) else PAUSE_AFTER_FAILURE_SECONDS)

    def _repair(self) -> None:
        if recovery.must_rebuild(self._state):
            recovery.rebuild(self._state)
        else:
            recovery.repair(self._state)

    def _seal(self) -> None:
        for step in openable_steps(self._state):
            seal_if_full(self._state, step)

    def _inviting(self) -> None:
        while not self._stop.is_set():
            if self._knows.is_set():
                self._attempt("invite nodes", self._inviter.round)
            self._stop.wait(INVITE_SECONDS * random.uniform(0.8, 1.2))

    def _attempt(self, what: str, task: Callable[[], object]) -> bool:
        """Run one task, and whether it could; whatever it raises is logged and left to the next round, because the other tasks must continue."""
        try:
            task()
        except Exception as error:
            if not self._stop.is_set():
                get_logger().warning(
                    "task failed; it will be retried", what=what, error=f"{type(error).__name__}: {str(error)[:300]}"
                )
            return False
        return True


def catch_up(state: RunState) -> None:
    """Read what others wrote into the ledger. Each five seconds this asks the store, so it also notes since when that is away."""
    began = state.clock()
    try:
        state.ledger.catch_up()
    except StoreUnavailable:
        if state.store_away_since is None:
            state.store_away_since = began
        raise
    state.store_away_since = None


def settle_late(state: RunState) -> None:
    """Settle waiting files of sealed steps and evicted nodes as expired, and forget leases of sealed steps after a while."""
    for job in state.queue.all():
        if reason := over(state, job.record):
            expire(state, job.record, reason)
    old = state.clock() - leases.MEMORY_SECONDS
    for record in state.leases.all():
        if record.lease.expires_unix < old and closed(state, known(state, record.lease.step)):
            state.leases.forget(record.lease)


def sweep_staging(state: RunState) -> int:
    """Delete staged files that nobody confirmed in time; returns how many."""
    old = [info.key for info in state.store.list(keys.STAGING) if info.modified_unix < state.clock() - STAGED_SECONDS]
    for key in old:
        state.store.delete(key)
    return len(old)
