"""Two hours of a run in OpenMetrics: every metric that the catalogue declares, as the processes of one run would have told it.

Series come from the declared metrics themselves, filled through prometheus-client and rendered by it, so that names, suffixes and buckets are
those of the code; then each sample is repeated a minute apart, counters growing. Labels of the target are those of the chart's PodMonitors.
"""

import importlib
from collections.abc import Iterator
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from tools.observability.catalogue import PARTS, _own, families, values_of

from shoal.contracts.steps import StepMetrics, TypeMeans
from shoal_operator.engine.kinds import Key
from shoal_operator.engine.metrics import Gauges, Metrics
from shoal_operator.engine.queue import WorkQueue

MINUTES = 120
KINDS = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
BOUNDED = 64
"""Combinations of labels that are filled, of each metric."""

FINISHED = StepMetrics(
    run="arithmetic", step=6, policy_version=7, attempt="trainer-0", started_unix=0.0, finished_unix=100.0, reward=0.5, task_reward=0.6,
    length_penalty=0.1, loss=-0.01, gradient_norm=0.2, gradient_norm_max=0.4, skipped_updates=0, clip_low=0.01, clip_high=0.02,
    clip_delta=0.001, entropy=0.7, kl=0.001, mismatch_kl=0.0001, policy_lag_mean=1.5, policy_lag_max=2, rows=256, completion_tokens=20_000,
    completion_length_mean=78.0, packing_density=0.98, learning_rate=3e-7, warnings=["one", "two"],
    phase_seconds={"wait": 40.0, "read": 1.0, "old_logprobs": 9.0, "update": 45.0, "save": 5.0},
    by_task_type={
        "sums": TypeMeans(
            groups=24, rows=192, task_reward=0.6, reward=0.5, completion_length_mean=60.0, share=0.75, sampled_share=0.75, signal_share=0.5
        ),
        "programs": TypeMeans(
            groups=8, rows=64, task_reward=0.6, reward=0.5, completion_length_mean=120.0, share=0.25, sampled_share=0.25, signal_share=0.4
        ),
    },
)  # fmt: skip
"""What the trainer's own code is told, so that its gauges hold what it makes of it."""


def target(part: str) -> dict[str, str]:
    """Labels that Prometheus adds to what a container tells."""
    if part == "operator":
        return {"namespace": "shoal-system", "container": "operator", "pod": "shoal-operator-0"}
    pods = {
        "sync": "relay",
        "fetch": "pool",
        "agent": "pool",
        "worker": "pool",
        "publisher": "trainer",
        "collector": "trainer",
    }
    pod = pods.get(part, part)
    return {
        "namespace": "research",
        "run": "arithmetic",
        "component": pod,
        "container": part,
        "pod": f"arithmetic-{pod}-0",
    }


def _filled(part: str, name: str, kind: str, labels: tuple[str, ...], text: str) -> Metric:
    """One family with values for every combination of its labels."""
    metric = KINDS[kind](name, text, labels, registry=CollectorRegistry())
    for values in list(product(*(values_of(part, name, label) for label in labels)))[:BOUNDED]:
        one = metric.labels(*values) if labels else metric
        if kind == "counter":
            one.inc(1.0)
        elif kind == "histogram":
            one.observe(0.2)
        else:
            one.set(1.0)
    [family] = metric.collect()
    return family


def _of_part(part: str) -> Iterator[Metric]:
    for module in PARTS[part]:
        own = {metric._name: metric for metric in _own(importlib.import_module(module))}
        for name, kind, labels, text in families(module):
            yield (
                _with_buckets(part, own[name])
                if kind == "histogram" and name in own
                else _filled(part, name, kind, labels, text)
            )


def _with_buckets(part: str, metric: MetricWrapperBase) -> Metric:
    """A histogram of the code has the code's buckets."""
    copy = Histogram(
        metric._name,
        metric._documentation,
        metric._labelnames,
        buckets=metric._kwargs["buckets"],
        registry=CollectorRegistry(),
    )
    for values in product(*(values_of(part, metric._name, label) for label in metric._labelnames)):
        (copy.labels(*values) if values else copy).observe(0.2)
    [family] = copy.collect()
    return family


def operators_own() -> list[Metric]:
    """What the operator's own code counts when it is told of a reconcile and of a request."""
    metrics = Metrics()
    key = Key("TrainingRun", "research", "arithmetic")
    metrics.added(key)
    metrics.started(key, 0.01)
    metrics.finished(key, 0.02)
    metrics.retried(key)
    metrics.reconciled(key, "success", 0.02)
    metrics.reconciled(key, "error", 0.02)
    metrics.requested("PATCH", 200)
    metrics.registry.register(Gauges(WorkQueue(metrics), [], [], lambda: True, lambda: 0.0))
    ours = (family for family in metrics.registry.collect() if not family.name.startswith(("python_", "process_")))
    return [family for family in ours if family.samples]


def trainers_own() -> list[Metric]:
    """What the trainer's own code makes of a finished step."""
    from shoal.training import progress
    from shoal.training.stability import Signals

    telling = progress.ProgressReporter("arithmetic", None, None)
    telling.environment = "arithmetic"
    telling.begin(6)
    telling.finished(FINISHED, Signals(incident=1.0))
    return [family for metric in _own(progress) for family in metric.collect()]


def openmetrics(end_unix: int) -> str:
    """Samples a minute apart until `end_unix`, as one OpenMetrics text."""
    said: dict[str, tuple[str, list[tuple[str, dict[str, str], float]]]] = {}
    for part in PARTS:
        found = {family.name: family for family in _of_part(part)}
        if part == "trainer":
            found |= {family.name: family for family in trainers_own()}
        if part == "operator":
            found |= {family.name: family for family in operators_own()}
        for family in found.values():
            samples = said.setdefault(family.name, (family.type, []))[1]
            samples += [
                (sample.name, {**target(part), **sample.labels}, sample.value)
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
    lines = []
    for name, (kind, samples) in said.items():
        lines.append(f"# TYPE {name} {kind}")
        for sample_name, labels, value in samples:
            text = ",".join(f'{label}="{what}"' for label, what in labels.items())
            for minute in range(MINUTES + 1):
                now = value if kind == "gauge" else value * (minute + 1)
                lines.append(f"{sample_name}{{{text}}} {now} {end_unix - 60 * (MINUTES - minute)}")
    return "\n".join([*lines, "# EOF", ""])
