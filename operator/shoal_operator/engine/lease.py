"""Leader election over the API server: one thread that reads, takes, renews and at the end releases the Lease, as `election.py` says.

A replica that loses the Lease after it led ends at once (`lost` is called, which exits): nothing it has in hand may be written any more.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from shoal_operator.engine.api_server import ApiError, ApiServer, micro_time
from shoal_operator.engine.cluster import Object
from shoal_operator.engine.election import JITTER, Election, ElectionRecord, ElectionTiming, Move
from shoal_operator.engine.kinds import LEASE
from shoal_operator.engine.permissions import LEASE_NAME

log = logging.getLogger(__name__)

CALL_SECONDS = 3.0
"""For one call with its retries: a renewal that hangs must leave time for another before the deadline."""


class LeaseHolder:
    """Runs for the Lease of `namespace`. `elected` is called once, `lost` never returns to this process's work."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        identity: str,
        *,
        elected: Callable[[], None],
        lost: Callable[[str], None],
        timing: ElectionTiming = ElectionTiming(),  # noqa: B008 - frozen
    ) -> None:
        self._api, self._namespace = api, namespace
        self._election = Election(identity, timing)
        self._elected, self._lost = elected, lost
        self._live: Object | None = None
        self._led = self._released = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._guard = threading.Thread(target=self._watch_deadline, name="lease-deadline", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._guard.start()

    def leads(self) -> bool:
        """Whether this replica may write now; never again once it gave the Lease back."""
        return not self._released and self._election.leads(time.monotonic())

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self._guard.is_alive()

    def release(self) -> None:
        """Give the Lease back, so that another replica leads at once. Nothing may be written after this."""
        self._stopping.set()
        self._thread.join(CALL_SECONDS + 1)
        led, self._released = self.leads(), True
        if self._live is None or not led:
            return
        try:
            self._put(self._live, holder="", duration=1)
            log.info("released the Lease")
        except ApiError as error:
            log.warning("could not release the Lease, so the next leader waits until it expires: %s", error)

    def step(self) -> None:
        """Look at the Lease and do what is due; raises ApiError."""
        election = self._election
        if self._live is None or election.record is None or election.record.holder != election.identity:
            self._live = self._read()
            election.see(None if self._live is None else record_of(self._live), time.monotonic())
        sent_at = time.monotonic()
        move = election.move(sent_at)
        if move is Move.WAIT:
            return
        try:
            live = self._create() if move is Move.CREATE or self._live is None else self._put(self._live)
        except ApiError as error:
            if error.status != 409:
                raise
            self._live = None
            election.refused()
            return
        self._live = live
        election.wrote(record_of(live), sent_at, time.monotonic())
        if not self._led:
            self._led = True
            log.info("this replica leads")
            self._elected()

    def _run(self) -> None:
        retry = self._election.timing.retry
        while not self._stopping.is_set():
            try:
                self.step()
            except ApiError as error:
                self._live = None  # it is not known whether a write was done
                log.warning("the Lease could not be read or written: %s", error)
            except Exception:
                self._live = None
                log.exception("the Lease could not be read or written")
            self._stopping.wait(retry * (1 + JITTER * random.random()))

    def _watch_deadline(self) -> None:
        """A thread of its own: a call that hangs must not keep a leader that was not renewed alive."""
        while not self._stopping.wait(0.2):
            if self._election.lost(time.monotonic()):
                self._lost(
                    f"the Lease {self._namespace}/{LEASE_NAME} was not renewed in time, or another replica holds it"
                )
                return

    def _read(self) -> Object | None:
        try:
            return self._api.call("get", LEASE, self._namespace, LEASE_NAME, budget_seconds=CALL_SECONDS)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _create(self) -> Object:
        now = micro_time()
        spec = self._spec(self._election.identity, self._election.timing.duration) | {
            "acquireTime": now,
            "leaseTransitions": 0,
        }
        body = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
            "spec": spec,
        }
        return self._api.call("create", LEASE, self._namespace, body=body, budget_seconds=CALL_SECONDS, fenced=False)

    def _put(self, live: Object, holder: str | None = None, duration: int | None = None) -> Object:
        """Replace the Lease that was read; the server refuses with 409 when it has changed since."""
        identity = self._election.identity if holder is None else holder
        before = live.get("spec", {})
        spec = {**before, **self._spec(identity, duration or self._election.timing.duration)}
        if identity != before.get("holderIdentity") and identity:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = before.get("leaseTransitions", 0) + 1
        return self._api.call(
            "update",
            LEASE,
            self._namespace,
            LEASE_NAME,
            body={**live, "spec": spec},
            budget_seconds=CALL_SECONDS,
            fenced=False,
        )

    def _spec(self, holder: str, duration: int) -> dict[str, Any]:
        return {"holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": micro_time()}


def record_of(live: Object) -> ElectionRecord:
    """A Lease as the election sees it. One without a duration is over at once."""
    spec = live.get("spec", {})
    return ElectionRecord(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        version=str(live["metadata"]["resourceVersion"]),
        transitions=spec.get("leaseTransitions") or 0,
    )
