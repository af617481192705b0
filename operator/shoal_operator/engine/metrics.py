"""Metrics under the names that controller-runtime gave them, so that dashboards for operators fit; and a few of our own.

One registry a process, made by `manager.py`; served by `health.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from shoal_operator.engine.informer import Informer
from shoal_operator.engine.kinds import Key
from shoal_operator.engine.queue import WorkQueue
from shoal_operator.engine.relist import WatchedKind

QUEUE = "shoal"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""From a reconcile that finds nothing to do, to a queue that is a resync behind."""

disable_created_metrics()


class Metrics:
    """Counters and histograms; also the queue's observer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for each in (ProcessCollector, PlatformCollector, GCCollector):
            each(registry=self.registry)
        by_controller, by_queue, registry = ("controller",), ("name",), self.registry
        self._reconciles = Counter(
            "controller_runtime_reconcile_total",
            "Reconciles by result: success, requeue_after or error.",
            ("controller", "result"),
            registry=registry,
        )
        self._errors = Counter(
            "controller_runtime_reconcile_errors_total", "Reconciles that failed.", by_controller, registry=registry
        )
        self._seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconcile.",
            by_controller,
            buckets=SECONDS,
            registry=registry,
        )
        self._adds = Counter("workqueue_adds_total", "Keys added to the queue.", by_queue, registry=registry)
        self._retries = Counter(
            "workqueue_retries_total", "Keys added again after a failure.", by_queue, registry=registry
        )
        self._queued = Histogram(
            "workqueue_queue_duration_seconds",
            "Time that a key waits in the queue.",
            by_queue,
            buckets=SECONDS,
            registry=registry,
        )
        self._worked = Histogram(
            "workqueue_work_duration_seconds",
            "Time that a worker spends on a key.",
            by_queue,
            buckets=SECONDS,
            registry=registry,
        )
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server by method and status; code 0 means no answer.",
            ("method", "code"),
            registry=registry,
        )
        self._kopf_restarts = Counter(
            "shoal_operator_kopf_restarts_total",
            "Restarts of kopf, which watches the operator's own kinds, after it ended or went silent.",
            registry=registry,
        )

    def kopf_restarted(self) -> None:
        self._kopf_restarts.inc()

    def reconciled(self, key: Key, result: str, seconds: float) -> None:
        controller = key.kind.lower()
        self._reconciles.labels(controller, result).inc()
        self._seconds.labels(controller).observe(seconds)
        if result == "error":
            self._errors.labels(controller).inc()

    def requested(self, method: str, status: int) -> None:
        self._requests.labels(method, str(status)).inc()

    def added(self, key: Key) -> None:
        self._adds.labels(QUEUE).inc()

    def started(self, key: Key, queued_seconds: float) -> None:
        self._queued.labels(QUEUE).observe(queued_seconds)

    def finished(self, key: Key, work_seconds: float) -> None:
        self._worked.labels(QUEUE).observe(work_seconds)

    def retried(self, key: Key) -> None:
        self._retries.labels(QUEUE).inc()


class Gauges(Collector):
    """What is looked up when it is scraped: the queue, the watches, stalled runs, who leads."""

    def __init__(
        self,
        queue: WorkQueue,
        informers: Iterable[Informer],
        own: Iterable[WatchedKind],
        leads: Callable[[], bool],
        clock: Callable[[], float],
        stalled: Callable[[], Iterable[tuple[Key, str]]] = tuple,
    ) -> None:
        self._stalled = stalled
        self._queue, self._informers, self._own = queue, list(informers), list(own)
        self._leads, self._clock = leads, clock

    def describe(self) -> Iterable[Metric]:
        """Nothing is read when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        running = self._queue.running_seconds()
        yield _gauge("workqueue_depth", "Keys that wait for a worker.", ["name"], {(QUEUE,): self._queue.depth()})
        yield _gauge(
            "workqueue_unfinished_work_seconds",
            "Seconds that unfinished reconciles have been running, summed.",
            ["name"],
            {(QUEUE,): sum(running)},
        )
        yield _gauge(
            "workqueue_longest_running_processor_seconds",
            "Seconds that the longest unfinished reconcile has been running.",
            ["name"],
            {(QUEUE,): max(running, default=0.0)},
        )
        ages: dict[tuple[str, ...], float] = {}
        missing: dict[tuple[str, ...], float] = {}
        now = self._clock()
        watches: list[Informer | WatchedKind] = [*self._informers, *self._own]
        for watch in watches:
            kind = (watch.resource.kind,)
            ages[kind] = max(ages.get(kind, 0.0), now - watch.event_at)
        for place in self._own:
            kind = (place.resource.kind,)
            missing[kind] = max(missing.get(kind, 0.0), float(place.missing))
        yield _gauge(
            "shoal_operator_watch_last_event_age_seconds",
            "Time since a watch's last event or bookmark; for the operator's own kinds, since the last event or matching list.",
            ["kind"],
            ages,
        )
        yield _gauge("shoal_operator_crd_missing", "1 if the CRD of the kind is missing.", ["kind"], missing)
        yield _gauge(
            "shoal_run_stalled",
            "1 for a run whose condition Stalled is True, by its cause; 0 without one where it is not.",
            ["namespace", "run", "reason"],
            {(key.namespace, key.name, reason): float(bool(reason)) for key, reason in self._stalled()},
        )
        yield _gauge(
            "leader_election_master_status",
            "1 if this replica is the leader.",
            ["name"],
            {("shoal-operator",): 1.0 if self._leads() else 0.0},
        )


def _gauge(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    """A gauge with its values by their labels."""
    made = GaugeMetricFamily(name, text, labels=labels)
    for row, value in values.items():
        made.add_metric(row, value)
    return made
