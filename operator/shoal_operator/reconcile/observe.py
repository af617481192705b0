"""What a TrainingRun's reconcile reads from the cluster, once, at its start; and the live workloads behind its status.

Everything that the reconciler decides on is in `Observed`; only `workloads` is read again after children were applied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from shoal.contracts.protocol import RunProgress
from shoal_operator.api import InferencePool, RelayServer, TrainingRun, Validator
from shoal_operator.api.last_words import LastWords
from shoal_operator.children import References, names
from shoal_operator.children.islands import island_count, serves_lighthouse
from shoal_operator.children.own_kinds import template_replicas
from shoal_operator.children.runner import runner_count
from shoal_operator.children.sources import is_restored
from shoal_operator.children.workloads import set_selector
from shoal_operator.engine.apply import job_state
from shoal_operator.engine.cluster import Cluster, NotHeard, Object
from shoal_operator.engine.conditions import is_true, message_of
from shoal_operator.reconcile.common import owned_by, parse, replica_counts
from shoal_operator.reconcile.components import SEVERAL, ComponentPart, part_state
from shoal_operator.reconcile.decisions import is_complete
from shoal_operator.reconcile.last_words import failed_containers, merged
from shoal_operator.reconcile.other_runs import Wait, recorded_version, waits_for_others
from shoal_operator.reconcile.pod_problems import pods_problem

WITH_PODS = ("Redis", "Discovery", "Orchestrator", "Lighthouse", "Trainer", "Island", "Runner", "Tracker", "Ui")
"""Components whose pods are looked at here when they are not ready; our own kinds say it themselves."""

REMEMBERED_POOLS = 1024
"""Parsed pools that runs refer to, 9 KiB each. To parse one takes ten times as long as to read it."""


@dataclass(frozen=True)
class Observed:
    """The observed state of one run.

    Attributes:
        latest_version: newest announced policy version; while the orchestrator is silent what was shown last, which decides nothing for good.
        complete_at: policy version at which the orchestrator called the run complete, now or earlier; None if it never did.
        waits: for what must exist before its children are made.
    """

    prepare: Object | None
    trainer_jobs: dict[int, Object]
    progress: RunProgress | None
    latest_version: int
    complete_at: int | None
    prepared: bool
    references: References
    waits: Wait


def observe(
    cluster: Cluster, live: Object, run: TrainingRun, orchestrator_url: str, before: Mapping[str, Any]
) -> Observed | None:
    """Read what a reconcile of this run decides on. `before`: `as_heard`. None: its orchestrator is being asked for the first time."""
    name = run.metadata.name
    prepare = cluster.get("Job", names.prepare(name))
    if prepare is not None and not owned_by(prepare, live):
        prepare = None  # of an earlier run of this name: what it made is not this run's
    orchestrator = cluster.get("Deployment", names.orchestrator(name))
    # A Job of prepare may be gone. What is made only after it then says whether the status is right.
    remembered = is_true(live, "Prepared") and orchestrator is not None and owned_by(orchestrator, live)
    prepared = job_state(prepare) == "succeeded" or remembered
    # Only an orchestrator that is ready is asked: one that is not cannot answer.
    progress = cluster.run_progress(orchestrator_url) if replica_counts(orchestrator)[2] > 0 else None
    if isinstance(progress, NotHeard):
        return None
    if progress is not None and progress.run != name:
        progress = None  # someone else's: an address that is no longer ours
    references, missing = _references(cluster, run)
    trainer_jobs = {
        int(job["metadata"]["labels"][names.ATTEMPT_LABEL]): job
        for job in cluster.list("Job", names.selector(name, "trainer"))
        if owned_by(job, live)
    }
    latest_version, complete_at = _how_far(cluster, live, run, progress, before.get("policyVersion") or 0)
    return Observed(
        prepare=prepare,
        trainer_jobs=trainer_jobs,
        progress=progress,
        latest_version=latest_version,
        complete_at=complete_at,
        prepared=prepared,
        references=references,
        # Later the pods that mount the credentials say what they lack; a request at each reconcile would be too many.
        waits=_first_wait(cluster, run, missing, prepared=prepared),
    )


def _first_wait(cluster: Cluster, run: TrainingRun, missing: str, *, prepared: bool) -> Wait:
    """`missing`: a reference."""
    if missing or prepared:
        return Wait(missing)
    lacking = _missing_credentials(cluster, run)
    return Wait(lacking) if lacking or is_restored(run) else waits_for_others(cluster, run)


def _how_far(
    cluster: Cluster, live: Object, run: TrainingRun, progress: RunProgress | None, heard: int
) -> tuple[int, int | None]:
    """Newest policy version, and the one at which the run was called complete. The orchestrator is right whenever it says one.

    While it is silent the record of it holds, then the version that was `heard` last. No request.
    """
    recovers = run.spec.steps is not None and progress is not None and progress.latest_version is None
    if progress is not None and not recovers:
        version = progress.latest_version or 0
        scored = run.spec.evaluation is not None
        return version, version if is_complete(run.spec.steps, version, said=progress.complete, scored=scored) else None
    recorded = recorded_version(cluster, live)
    if recorded is None:
        return heard, None
    # A later edit may have asked for more steps.
    return recorded, recorded if is_complete(run.spec.steps, recorded, said=True) else None


def _references(cluster: Cluster, run: TrainingRun) -> tuple[References, str]:
    """Objects that the run refers to, and what to do about a missing or wrong one."""
    spec, missing = run.spec, ""

    def find(kind: str, name: str | None, field: str) -> Object | None:
        nonlocal missing
        if name is None:
            return None
        found = cluster.get(kind, name)
        serves = None if found is None else found["spec"].get("run")
        if serves != run.metadata.name:
            why = "which does not exist" if found is None else f"whose spec.run is {serves}"
            missing = missing or f"waits for {kind} {name} (spec.{field}), {why}"
            return None
        return found

    relay = find("RelayServer", spec.relay_server_ref, "relayServerRef")
    validator = find("Validator", spec.validator_ref, "validatorRef")
    for name in spec.inference_pool_refs:
        find("InferencePool", name, "inferencePoolRefs")
    own = {name for kind, name in template_replicas(run) if kind == "InferencePool"}
    references = References(
        relay_server=parse(RelayServer, relay) if relay else None,
        validator=parse(Validator, validator) if validator else None,
        pools=tuple(
            pool
            for name in cluster.serving("InferencePool", run.metadata.name)
            if name not in own and (pool := _pool(cluster, name)) is not None
        ),
    )
    return references, missing


def _pool(cluster: Cluster, name: str) -> InferencePool | None:
    """A pool's name and spec, which are all that the run is made of."""
    live = cluster.get("InferencePool", name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    bare = {key: live[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}}
    return _parsed_pool(orjson.dumps(bare))


@lru_cache(maxsize=REMEMBERED_POOLS)
def _parsed_pool(text: bytes) -> InferencePool:
    return parse(InferencePool, orjson.loads(text))


def _missing_credentials(cluster: Cluster, run: TrainingRun) -> str:
    """What to do about missing store credentials; empty when none are missing."""
    s3 = run.spec.storage.s3
    if s3 is None or s3.credentials_secret is None:
        return ""  # pods without their service account are refused, and their workload says so
    secret = cluster.read_foreign("Secret", s3.credentials_secret)
    if secret is None:
        return (
            f"waits for Secret {s3.credentials_secret} with accessKey and secretKey (spec.storage.s3.credentialsSecret)"
        )
    lacking = [key for key in ("accessKey", "secretKey") if key not in secret.get("data", {})]
    if not lacking:
        return ""
    return f"waits for {' and '.join(lacking)} in Secret {s3.credentials_secret} (spec.storage.s3.credentialsSecret)"


def workloads(cluster: Cluster, live: Object, run: TrainingRun, attempt: int) -> tuple[ComponentPart, ...]:
    """The live workload behind each part of the run, with the problems of its pods where it is not ready. `live`: the run's object."""
    name, spec = run.metadata.name, run.spec
    own = [
        ("Redis", "StatefulSet", names.redis(name)),
        ("Discovery", "Deployment", names.discovery(name)),
        ("Orchestrator", "Deployment", names.orchestrator(name)),
        ("Trainer", "Job", names.trainer_job(name, attempt)),
        *([("Runner", "StatefulSet", names.runner(name))] if runner_count(run) else []),
        *([("Tracker", "StatefulSet", names.tracker(name))] if spec.trackers is not None else []),
        *([("Ui", "Deployment", names.ui(name))] if spec.ui is not None else []),
        *([("Lighthouse", "StatefulSet", names.lighthouse(name))] if serves_lighthouse(run) else []),
        *(
            ("Island", "StatefulSet", names.island(name, island))
            for island in names.island_names(island_count(run))[1:]
        ),
    ]
    made = [(kind, kind, child) for kind, child in template_replicas(run)]
    refs = [
        ("RelayServer", "RelayServer", spec.relay_server_ref),
        ("Validator", "Validator", spec.validator_ref),
        *(("InferencePool", "InferencePool", ref) for ref in spec.inference_pool_refs),
    ]
    # Each once: a reference may be repeated, or name a pool of the run's own, and a status with two parts of one name is refused.
    listed = dict.fromkeys([*own, *made, *((component, kind, ref) for component, kind, ref in refs if ref is not None)])
    return tuple(
        _with_problem(cluster, live, ComponentPart(component, child, cluster.get(kind, child)))
        for component, kind, child in listed
    )


def last_failures(
    cluster: Cluster, live: Object, parts: Iterable[ComponentPart], *, prepared: bool
) -> tuple[LastWords, ...]:
    """How containers of the run ended that failed, now and before. The run's pods are read from the cache, only while a part is not ready."""
    pods: list[Object] = []
    if not prepared or not all(part_state(part).ready for part in parts):
        run = live["metadata"]["name"]
        pods = [*cluster.failed_pods(run), *cluster.list("Pod", {names.RUN_LABEL: run})]
    # A record, not derived: the pods go, so what a status says of them stands.
    return tuple(merged(live.get("status", {}).get("lastFailures"), failed_containers(pods)))


def _with_problem(cluster: Cluster, live: Object, part: ComponentPart) -> ComponentPart:
    """Our own kinds say themselves what is wrong with their pods; for the others pods are looked at, when they are not ready."""
    if part.workload is None or part.component not in WITH_PODS:
        return part
    if part_state(part).ready:
        return part
    of_set = part.name if part.component in SEVERAL else None
    run, former = live["metadata"]["name"], message_of(live, f"{part.component}Ready")
    problem = component_problem(cluster, run, part.component.lower(), part.workload, former, of_set)
    return ComponentPart(part.component, part.name, part.workload, problem)


def component_problem(
    cluster: Cluster, run: str, component: str, workload: Object | None, former: str, of_set: str | None = None
) -> tuple[str, str] | None:
    """Reason and message of the worst problem of a component's pods; of one StatefulSet's where a run has several parts of the component.

    `former`: what the component's condition says so far.
    """
    labels = names.selector(run, component) if of_set is None else set_selector(of_set, run, component)
    return pods_problem(cluster, cluster.list("Pod", labels), workload, former)
