"""The engine as a whole: kopf and informers fill the cache, changes fill the queue, workers reconcile while this replica leads.

`kopf_loop.py` starts and stops it, `handlers.py` passes on what kopf sees of our own kinds. Every replica keeps its cache warm and serves health and
metrics; only the leader's workers run, and only once every kind has been listed: a reconcile of half a world would make what is there already.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kubernetes.client import Configuration

from shoal_operator.children.site import Site
from shoal_operator.engine.api_server import CATCHES_UP_SECONDS, TERMINATING, UNMAPPED, ApiServer, NotLeader
from shoal_operator.engine.cache import Cache
from shoal_operator.engine.cluster import Cluster, ClusterError, Object
from shoal_operator.engine.election import ElectionTiming
from shoal_operator.engine.events import EventRecorder
from shoal_operator.engine.health import HealthServer
from shoal_operator.engine.informer import DEAF_SECONDS, Informer
from shoal_operator.engine.informer import Timing as WatchTiming
from shoal_operator.engine.kinds import CHILDREN, MANAGED_SELECTOR, MAYBE_SERVED, OWN, POD, Key
from shoal_operator.engine.kubernetes_cluster import KubernetesCluster, Parts
from shoal_operator.engine.lease import LeaseHolder
from shoal_operator.engine.metrics import Gauges, Metrics
from shoal_operator.engine.progress import RunProgressReader
from shoal_operator.engine.queue import MAX_RETRY_SECONDS, WorkQueue
from shoal_operator.engine.relist import Relister, RelistTiming, WatchedKind
from shoal_operator.engine.storage_classes import StorageClasses
from shoal_operator.engine.unchanged import Unchanged
from shoal_operator.engine.warning_events import WarningEvents

log = logging.getLogger(__name__)

RESYNC_SECONDS = 600.0
"""Each object is looked at this often though nothing changed (a fifth sooner or later, so that they spread). It costs no request."""

STUCK_SECONDS = 300.0
"""A reconcile takes milliseconds, and at worst a few calls with all their retries; beyond this it hangs, and a restart is better."""

GRACE_SECONDS = 15.0
"""For reconciles in hand when the operator is told to stop: one call's whole budget."""

LOST_LEASE_EXIT = 3
"""Exit code of a replica that lost its Lease; it is started again and stands by."""


@dataclass(frozen=True)
class Options:
    """What the command line decides."""

    namespaces: Sequence[str] = ()
    """Namespaces that are served; none means all."""
    lease_namespace: str = "default"
    home: str = ""
    """The operator's own namespace, from which alone runs let it in; empty outside a cluster."""
    identity: str = "shoal-operator"
    workers: int = 4
    bind: str = ""
    port: int = 8080
    site: Site = field(default_factory=Site)
    """What the admin says about the pods of all runs."""
    watch: WatchTiming = field(default_factory=WatchTiming)
    relist: RelistTiming = field(default_factory=RelistTiming)
    election: ElectionTiming = field(default_factory=ElectionTiming)


def exit_at_once(why: str) -> None:
    """End the process without finishing anything: another replica may lead already."""
    log.critical("this replica is no longer the leader and exits: %s", why)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(LOST_LEASE_EXIT)


class Manager:
    """One replica of the operator."""

    def __init__(
        self,
        configuration: Configuration,
        options: Options,
        reconcile: Callable[[Cluster, str, str], float | None],
        *,
        lost: Callable[[str], None] = exit_at_once,
    ) -> None:
        """`reconcile(cluster, kind, name)` returns after how many seconds it asks to be called again, and raises ClusterError to be tried again."""
        self._reconcile = reconcile
        self.metrics = Metrics()
        # Half of the workers are free for what people change.
        self.queue = WorkQueue(self.metrics, routine_places=max(1, options.workers // 2))
        namespaces: Sequence[str | None] = list(options.namespaces) or [None]
        # A watch holds a connection, and lists and calls need some beside them.
        self.api = ApiServer(
            configuration,
            connections=(len(CHILDREN) + 1 + len(MAYBE_SERVED)) * len(namespaces) + options.workers + 5,
            counted=self.metrics.requested,
        )
        self.cache = Cache(self.queue)
        self._informers = [
            Informer(self.api, self.cache, resource, namespace, MANAGED_SELECTOR, timing=options.watch)
            for namespace in namespaces
            for resource in (*CHILDREN.values(), POD)
        ]
        self._informers += [
            Informer(self.api, self.cache, resource, namespace, MANAGED_SELECTOR, optional=True, timing=options.watch)
            for namespace in namespaces
            for resource in MAYBE_SERVED
        ]
        self.restart_kopf: Callable[[str], None] = lambda why: None
        """Starts kopf again, for a reason in words, and returns at once; set by `kopf_loop.py`."""
        self._relister = Relister(
            self.api,
            self.cache,
            [(resource, namespace) for namespace in namespaces for resource in OWN.values()],
            lambda why: self.restart_kopf(why),
            timing=options.relist,
        )
        self._lease = LeaseHolder(
            self.api,
            options.lease_namespace,
            options.identity,
            elected=self._elected,
            lost=lost,
            timing=options.election,
        )
        self.api.may_write = self._lease.leads
        self._events = EventRecorder(self.api, options.identity)
        self._parts = Parts(
            self.api,
            self.cache,
            RunProgressReader(self.queue.add, routine=self.queue.add_routine),
            self._events,
            StorageClasses(self.api),
            WarningEvents(self.api),
            Unchanged(self.cache),
            site=options.site,
            home=options.home,
            missing=lambda kind, namespace: any(each.lacks(kind, namespace) for each in self._informers),
        )
        self.metrics.registry.register(
            Gauges(
                self.queue,
                self._informers,
                self._relister.places,
                self._lease.leads,
                time.monotonic,
                self.cache.stalled,
            )
        )
        self._health = HealthServer(options.bind, options.port, self.metrics.registry, self.unhealthy, self.unready)
        self._workers = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True)
            for number in range(options.workers)
        ]
        self._errors: dict[Key, str] = {}
        self._stopping = threading.Event()

    @property
    def port(self) -> int:
        """Port of health and metrics."""
        return self._health.port

    def start(self) -> None:
        """Start every thread; returns at once."""
        self._health.start()
        self._events.start()
        for informer in self._informers:
            informer.start()
        self._relister.start()
        self._lease.start()

    def stop(self) -> None:
        """Finish what is in hand, give the Lease back, end every thread. The other replica leads from here on."""
        self._stopping.set()
        self.queue.close()
        if not self.queue.wait_idle(GRACE_SECONDS):
            log.warning("running reconciles did not end within %.0f s; the next leader repeats them", GRACE_SECONDS)
        self._events.stop()
        self._lease.release()
        self.api.stop()
        self._parts.progress.close()
        self._relister.stop()
        for informer in self._informers:
            informer.stop()
        for informer in self._informers:
            informer.join(1.0)
        self._health.stop()

    def seen(self, event: str, found: Object) -> None:
        """An event of one of our own kinds that kopf's watch saw: ADDED, MODIFIED, DELETED, or LISTED."""
        self.cache.observe(event, found)
        self._relister.passed(event, Key(found["kind"], found["metadata"]["namespace"], found["metadata"]["name"]))

    def kopf_restarted(self) -> None:
        """kopf had ended and is started again: what it missed is looked for."""
        self.metrics.kopf_restarted()
        self._relister.all_soon()

    def unhealthy(self) -> str:
        """What a restart would heal."""
        now = time.monotonic()
        wrong = [f"the watch of {each} has ended" for each in self._informers if not each.alive]
        wrong += [
            f"the watch of {each} has received nothing for {now - each.heard_at:.0f} s"
            for each in self._informers
            if now - each.heard_at > DEAF_SECONDS
        ]
        wrong += self._relister.unhealthy()
        if not self._parts.progress.alive:
            wrong.append("nothing reads the progress of runs any more")
        if (longest := max(self.queue.running_seconds(), default=0.0)) > STUCK_SECONDS:
            wrong.append(f"a reconcile has run for {longest:.0f} s")
        if not self._lease.alive and not self._stopping.is_set():
            wrong.append("the Lease is not being renewed")
        return "; ".join(wrong)

    def unready(self) -> str:
        """What this replica waits for before it could lead."""
        missing = [str(each) for each in self._watched() if not each.synced.is_set()]
        return f"not listed yet: {', '.join(missing)}" if missing else ""

    def _watched(self) -> list[Informer | WatchedKind]:
        return [*self._relister.places, *self._informers]

    def _elected(self) -> None:
        threading.Thread(target=self._begin, name="begin", daemon=True).start()

    def _begin(self) -> None:
        """Start the workers once every kind is listed. All our objects are in the queue then: each was news to the cache."""
        for each in self._watched():
            while not each.synced.wait(1.0):
                if self._stopping.is_set():
                    return
        log.info("listed every kind; %d objects to reconcile", self.queue.depth())
        for worker in self._workers:
            worker.start()

    def _work(self) -> None:
        while (key := self.queue.get()) is not None:
            try:
                self._one(key)
            finally:
                self.queue.done(key)

    def _one(self, key: Key) -> None:
        """Reconcile one key, and decide when it is to be looked at again."""
        began = time.monotonic()
        result = "success"
        try:
            again = self._reconcile(KubernetesCluster(self._parts, key), key.kind, key.name)
        except NotLeader:
            result = "error"  # the process ends in a moment; the next leader looks at everything
        except ClusterError as error:
            result = "error"
            if TERMINATING in str(error):
                self.queue.succeeded(key)  # its namespace goes, and it with it
            else:
                wait = self.queue.failed(key, CATCHES_UP_SECONDS if UNMAPPED in str(error) else MAX_RETRY_SECONDS)
                self._say(key, str(error), f"tried again in {wait:.1f} s")
        except Exception as error:
            # Whatever it is, the other keys must continue.
            result = "error"
            self.queue.failed(key)
            self._say(key, f"unexpected {type(error).__name__}: {error}", "tried again later", error)
        else:
            self.queue.succeeded(key)
            self._errors.pop(key, None)
            if self.cache.entry(key) is None:
                self._parts.progress.forget(key)
                self._parts.kept.forget(key)
                if key.kind == "TrainingRun":
                    self._parts.heard.forget(key.namespace, key.name)
            else:
                resync = RESYNC_SECONDS * random.uniform(0.8, 1.2)
                result = "success" if again is None else "requeue_after"
                self.queue.add_after(key, resync if again is None else min(again, resync))
        self.metrics.reconciled(key, result, time.monotonic() - began)

    def _say(self, key: Key, text: str, then: str, error: Exception | None = None) -> None:
        """Log a failure, with its traceback when it was not foreseen; the same one of the same key only once."""
        level = logging.DEBUG if self._errors.get(key) == text else logging.WARNING if error is None else logging.ERROR
        self._errors[key] = text
        log.log(level, "%s: %s; %s", key, text, then, exc_info=error)
