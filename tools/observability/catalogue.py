"""Every metric that a process of ours declares, read from the code itself: name, kind, labels, help, and which processes have it.

In: the modules of `PARTS`, imported; collectors that make their series when they are scraped are scraped once. Out: `declared()`. The one place
where labels are described (`LABELS`): a label that is not there is not bounded, and a test refuses it. Called by `page`, `dashboards` and tests.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import get_args

from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from shoal.broadcast.nginx_status import NginxStatus
from shoal.contracts.protocol import NodeState
from shoal.contracts.verdicts import RejectReason
from shoal.sampling.curriculum import POOLS
from shoal.telemetry.disk import FOLDERS, DiskSpace
from shoal_operator.engine.kinds import OWN_KINDS
from shoal_operator.engine.metrics import Gauges, Metrics
from shoal_operator.engine.queue import WorkQueue

EVERYWHERE = ("shoal.telemetry.metrics", "shoal.telemetry.disk")
PARTS: dict[str, tuple[str, ...]] = {
    "trainer": (
        *EVERYWHERE, "shoal.training.progress", "shoal.training.handover", "shoal.training.optimizer",
        "shoal.training.extensions.islands.membership", "shoal.training.extensions.prime.extension", "shoal.training.extensions.vine.extension",
    ),
    "publisher": (
        *EVERYWHERE, "shoal.broadcast.origin", "shoal.broadcast.encoding", "shoal.broadcast.gate", "shoal.broadcast.nginx_status",
    ),
    "sync": (
        *EVERYWHERE, "shoal.broadcast.relay", "shoal.broadcast.gate", "shoal.broadcast.traffic", "shoal.broadcast.transfer",
        "shoal.broadcast.documents", "shoal.broadcast.nginx_status",
    ),
    "fetch": (*EVERYWHERE, "shoal.broadcast.fetch", "shoal.broadcast.transfer", "shoal.broadcast.documents"),
    "worker": (*EVERYWHERE, "shoal.inference.metrics", "shoal.rewards.sandbox.pool"),
    "agent": EVERYWHERE,
    "validator": (*EVERYWHERE, "shoal.validation.metrics", "shoal.rewards.sandbox.pool"),
    "orchestrator": (*EVERYWHERE, "shoal.orchestrator.metrics", "shoal.ledger.checkpoints"),
    "discovery": EVERYWHERE,
    "runner": (*EVERYWHERE, "shoal.rewards.runner.service", "shoal.rewards.sandbox.pool"),
    "collector": (*EVERYWHERE, "shoal.collection.collector"),
    "operator": ("shoal_operator.engine.metrics",),
}  # fmt: skip
"""Modules that declare metrics, by the container that imports them (docs/architecture.md; the collector runs in mode Generate)."""

NODES_SHOWN = "at most 64 nodes: the run's own, then strangers by accepted files"
LABELS: dict[str, tuple[str, str]] = {
    "phase": ("what the process works on", "fixed words in the code"),
    "for_what": ("what is waited for, in words", "fixed phrases in the code"),
    "folder": ("volume of the pod", ", ".join(FOLDERS)),
    "place": ("beside other versions, or over one that was held", "beside, over"),
    "outcome": ("how it ended", "fixed words in the code"),
    "reason": ("why", "`RejectReason` of contracts/verdicts.py, or fixed words in the code"),
    "status": ("the answer", "status codes, or fixed words in the code"),
    "state": ("state of nodes or connections", "`NodeState` of contracts/protocol.py, or nginx's four"),
    "kind": ("kind of groups, or of objects", "fixed words in the code, or watched kinds"),
    "boundary": ("cut of a completion, 0 for the prompt", "`segments` + 1 of the recipe, at most 65"),
    "estimate": ("measured, or the upper end of its 95 % interval", "two"),
    "node": ("first 12 characters of a node id", NODES_SHOWN),
    "pool": ("pool of the node", "pools of the run"),
    "environment": ("environment of the run's tasks", "one, which the manifest names"),
    "benchmark": ("name in `spec.evaluation`", "at most 16"),
    "task_type": ("source of `spec.tasks.mixture`, or word of an environment", "at most 64"),
    "use": ("a row, or why a place has none", "fixed words in the code"),
    "cause": ("why nothing is decoded", "fixed words in the code"),
    "bound": ("end of the 95 % interval", "two"),
    "island": ("a member of the group", "`members` of the group, one at a time"),
    "setting": ("what a member has otherwise, as the manifest says it", "settings of a group"),
    "server": ("server and version", "one a pod"),
    "engine": ("engine", "one a pod"),
    "version": ("version of the engine", "one a pod"),
    "with": ("what the validator's first run of a program disagreed with", "two"),
    "ended": ("how a program ended", "fixed words in the code"),
    "isolation": ("how programs are isolated", "four"),
    "controller": ("kind in lower case", "our four kinds"),
    "namespace": ("namespace of the run", "one a namespace with a stalled run"),
    "run": ("name of the run", "one a stalled run"),
    "result": ("success, requeue_after or error", "three"),
    "name": ("queue or lease", "one"),
    "method": ("HTTP method", "those that the operator uses"),
    "code": ("HTTP status", "status codes"),
}
"""Label -> (meaning, what bounds its values)."""

VALUES: dict[tuple[str, str], tuple[str, ...]] = {
    ("shoal_files", "outcome"): ("accepted", "rejected", "expired", "inconclusive", "pending"),
    ("shoal_rejected_files", "reason"): get_args(RejectReason),
    ("shoal_nodes", "state"): get_args(NodeState),
    ("shoal_heartbeats", "state"): get_args(NodeState),
    ("shoal_step_groups", "kind"): ("accepted", "needed", "pending"),
    ("shoal_judged_groups", "outcome"): ("kept", "dropped"),
    ("shoal_curriculum_problems", "pool"): POOLS,
    ("shoal_curriculum_solve_rate", "pool"): POOLS,
    ("shoal_curriculum_groups", "pool"): POOLS,
    ("shoal_leases", "outcome"): ("granted", "quota", "refused"),
    ("shoal_upload_grants", "outcome"): ("granted", "quota", "refused"),
    ("shoal_submissions", "status"): ("queued", "accepted", "rejected", "expired"),
    ("shoal_false_reject_ratio", "estimate"): ("measured", "upper_bound"),
    ("shoal_evaluation_score_bound", "bound"): ("low", "high"),
    ("shoal_validator_verdicts", "outcome"): ("accept", "reject", "expired", "inconclusive"),
    ("shoal_validator_verdicts", "reason"): ("", *get_args(RejectReason)),
    ("shoal_validator_program_disagreements", "with"): ("claim", "own runs"),
    ("shoal_worker_submissions", "status"): ("queued", "accepted", "rejected", "expired", "refused"),
    ("shoal_worker_slot_seconds", "use"): ("row", "no-lease", "swap", "upload", "tail", "no-version"),
    ("shoal_worker_engine_idle_seconds", "cause"): ("no-lease", "swap", "upload", "tail", "no-version"),
    ("shoal_worker_lost_tokens", "reason"): ("leaving", "sealed", "tool", "late", "failed", "refused", "swap"),
    ("shoal_worker_returned", "reason"): ("leaving", "sealed", "tool", "late", "failed", "swap"),
    ("shoal_relay_served_requests", "status"): ("200", "206", "403", "404", "429"),
    ("shoal_relay_token_checks", "outcome"): ("granted", "refused", "excluded"),
    ("shoal_relay_sync_seconds", "outcome"): ("sealed", "stalled", "abandoned", "changed"),
    ("shoal_nginx_connections", "state"): ("active", "reading", "writing", "waiting"),
    ("shoal_operator_watch_last_event_age_seconds", "kind"): OWN_KINDS,
    ("shoal_operator_crd_missing", "kind"): OWN_KINDS,
    ("controller_runtime_reconcile", "result"): ("success", "requeue_after", "error"),
    ("rest_client_requests", "code"): ("200", "409", "500"),
    ("trainer", "phase"): ("wait", "read", "old_logprobs", "reference_logprobs", "update", "save"),
    ("worker", "phase"): ("start", "swap", "generate", "score", "submit"),
    ("validator", "phase"): ("download", "parse", "prefill", "redraw"),
}
"""Values that a label takes, by the metric's family name or by the container, where a query may name one."""


@dataclass(frozen=True)
class Declared:
    """One metric. `name` is as PromQL sees it: with `_total` for a counter; a histogram has `_bucket`, `_sum` and `_count`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    parts: tuple[str, ...]

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series."""
        return (
            tuple(self.name + end for end in ("_bucket", "_sum", "_count"))
            if self.kind == "histogram"
            else (self.name,)
        )


class _Answering(NginxStatus):
    """An nginx that answers: its collector then has every series."""

    def read(self) -> dict[str, int]:
        return dict.fromkeys(("active", "accepts", "handled", "requests", "reading", "writing", "waiting"), 1)


def _own(module: ModuleType) -> Iterator[MetricWrapperBase]:
    """Metrics among a module's names, those in a dict or tuple included."""
    for value in vars(module).values():
        found: Iterable[object] = (value,)
        if isinstance(value, Mapping):
            found = value.values()
        elif isinstance(value, tuple):
            found = value
        yield from (each for each in found if isinstance(each, MetricWrapperBase))


def families(module_name: str) -> list[tuple[str, str, tuple[str, ...], str]]:
    """(family name, kind, labels, help) of what a module declares, each once. The operator's makes its series in objects."""
    module = importlib.import_module(module_name)
    wrappers = {metric._name: metric for metric in _own(module)}
    found: list[tuple[str, str, tuple[str, ...], str]] = [
        (name, str(metric._type), tuple(metric._labelnames), metric._documentation) for name, metric in wrappers.items()
    ]
    made: list[Metric] = []
    if module_name == "shoal.broadcast.nginx_status":
        made = list(_Answering(None).collect())
    elif module_name == "shoal.telemetry.disk":
        made = list(DiskSpace(Path("/nonexistent")).collect())
    elif module_name == "shoal_operator.engine.metrics":
        metrics = Metrics()
        found += [
            (metric._name, str(metric._type), tuple(metric._labelnames), metric._documentation)
            for metric in vars(metrics).values()
            if isinstance(metric, MetricWrapperBase)
        ]
        made = list(Gauges(WorkQueue(metrics), [], [], lambda: True, lambda: 0.0).collect())
    return found + [
        (family.name, str(family.type), tuple(family._labelnames), family.documentation)  # type: ignore[attr-defined]  # all are MetricFamily
        for family in made
    ]


def declared() -> list[Declared]:
    """Every metric of every part, by name. Raises ValueError when two modules declare one name differently."""
    seen: dict[str, tuple[str, tuple[str, ...], str]] = {}
    parts: dict[str, list[str]] = {}
    for part, modules in PARTS.items():
        for module in modules:
            for family, kind, labels, text in families(module):
                name = f"{family}_total" if kind == "counter" else family
                if seen.setdefault(name, (kind, labels, text)) != (kind, labels, text):
                    raise ValueError(f"{name} is declared twice, and not alike")
                parts.setdefault(name, []).append(part)
    return [Declared(name, *seen[name], tuple(dict.fromkeys(parts[name]))) for name in sorted(seen)]


def values_of(part: str, family: str, label: str) -> tuple[str, ...]:
    """Values that a label may take in a process, for samples: those of `VALUES`, or an example."""
    examples = {"node": ("0123456789ab", "ba9876543210"), "pool": ("pool",), "folder": FOLDERS, "phase": ("work",)}
    family = family.removesuffix("_total")
    return VALUES.get((family, label)) or VALUES.get((part, label)) or examples.get(label) or ("example",)
