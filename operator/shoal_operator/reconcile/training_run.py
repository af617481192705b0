"""Reconciles a TrainingRun: keys, configuration, prepare, control plane, trainer attempts, our three other kinds, and the run's status.

Observe (`observe.py`), decide (`decisions.py`, `children/scale.py`), children (`children/`), apply, status (`run_status.py`). Nothing is remembered
between calls but the status. Of that only times, the trainer's attempts and last words are read. `observe.py` says what bears the rest out.
"""

from collections.abc import Sequence
from dataclasses import replace

from shoal.contracts.run import Addresses
from shoal_operator.api import TrainingRun
from shoal_operator.api.last_words import LastWords
from shoal_operator.children import ObservedRun, RunIdentity, names, training_run_children
from shoal_operator.children.exposure import address_of
from shoal_operator.children.islands import group_of, group_problem, island_count, lighthouse_way_in, serves_lighthouse
from shoal_operator.children.own_kinds import template_replicas
from shoal_operator.children.run_config import config_hashes, run_config
from shoal_operator.children.runner import runner_count
from shoal_operator.children.scale import Scale, decide_scale
from shoal_operator.children.trackers import tracker_claims
from shoal_operator.children.trainer import trainer_job
from shoal_operator.children.training_run import Stage
from shoal_operator.children.ui import parts_map
from shoal_operator.engine.apply import job_state, template_hash
from shoal_operator.engine.cluster import Cluster, ClusterError, Object
from shoal_operator.plan_facts import misfits
from shoal_operator.reconcile.common import adopt, apply_children, grow_claims, owned, parse, prune, write_status
from shoal_operator.reconcile.components import part_states
from shoal_operator.reconcile.decisions import (
    TrainerAttempt,
    TrainerDecision,
    bounded_time,
    decide_stage,
    decide_trainer,
    failure_text,
    rfc3339,
    seconds_to_live,
    time_is_up,
)
from shoal_operator.reconcile.keys import ensure_identity, ensure_tickets, ensure_ui_token
from shoal_operator.reconcile.last_words import said_by
from shoal_operator.reconcile.observe import Observed, last_failures, observe, pods_problem, workloads
from shoal_operator.reconcile.offline_filter import FilterState, sample_first
from shoal_operator.reconcile.refused_pods import refused_pods
from shoal_operator.reconcile.run_status import Failure, Findings, run_conditions, run_status

POLL_SECONDS = 5.0
"""Seconds between two requests for progress while a run is running."""

SOON_SECONDS = 1.0
"""Earliest deletion: a finished run whose time to live is over may have been edited, and is reconciled once more first."""

PRUNED = (
    "InferencePool", "RelayServer", "Validator", "Service", "Ingress", "Deployment", "StatefulSet", "PodDisruptionBudget",
    "NetworkPolicy", "ConfigMap",
)  # fmt: skip
"""Kinds of children that a change of the spec may make superfluous. Volumes and keys are never among them."""


def reconcile_training_run(cluster: Cluster, name: str) -> float | None:
    """Reconcile the children and the status of a run; returns after how many seconds to look again."""
    live = cluster.get("TrainingRun", name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    run, now = parse(TrainingRun, live), cluster.now()
    before = live.get("status", {})
    adopt(cluster, live, name)
    identity = ensure_identity(cluster, live, island_count(run), run.spec.keys)
    seen = observe(cluster, live, run, cluster.addresses(name, 0).orchestrator)
    ensure_tickets(cluster, live, _pools(run, seen), identity)
    if run.spec.ui is not None:
        ensure_ui_token(cluster, live)
    born = live["metadata"].get("creationTimestamp")
    start_time = None if run.spec.suspend else bounded_time(before.get("startTime"), born, now) or rfc3339(now)
    late = time_is_up(start_time, run.spec.active_deadline_seconds, now)
    complete = seen.complete_at is not None
    sampled = sample_first(cluster, live, run, seen.references, prepared=seen.prepared, rest=run.spec.suspend or late)
    own_key = identity.islands.get(names.island_names(1)[0]) if group_of(run) is not None else None
    ungrouped = group_problem(run, own_key)
    waits_for = seen.waits_for or ungrouped or sampled.waits_for

    trainer = _decide_trainer(cluster, live, run, identity, seen, complete=complete, late=late, waits=bool(waits_for))
    stage = decide_stage(
        suspend=run.spec.suspend,
        complete=complete,
        late=late,
        prepare=seen.prepare,
        prepared=seen.prepared,
        filter_failure=sampled.failure,
        trainer_failed=trainer.failed is not None,
    )
    if ungrouped and stage == "running":
        # Nothing new is made of such a list. What trains continues with the one before, until the list is right.
        trainer = replace(trainer, delete=())
    for job in trainer.delete:
        cluster.delete("Job", job)
    if stage == "suspended" and job_state(seen.prepare) == "running":
        cluster.delete("Job", names.prepare(name))

    finished = stage in ("complete", "failed")
    began = max(
        filter(None, [born, *(job["metadata"].get("creationTimestamp") for job in seen.trainer_jobs.values())]),
        default=None,
    )
    completion_time = (bounded_time(before.get("completionTime"), began, now) or rfc3339(now)) if finished else None
    left = seconds_to_live(completion_time, run.spec.ttl_seconds_after_finished, now)
    if left is not None and left <= 0 and before.get("completionTime"):
        cluster.delete("TrainingRun", name)
        return None

    scales = _scales(cluster, run, stage)
    observed = ObservedRun(
        stage=stage,
        trainer_attempt=trainer.build,
        prepared=seen.prepared,
        references=seen.references,
        scales=scales,
        complete_at=seen.complete_at,
    )
    refused, failed, children = "", None, list[Object]()
    wanted = lighthouse_way_in(run) if ungrouped else []
    # What has nothing to do stops, whatever it would wait for to continue.
    if (not waits_for or stage in ("suspended", "complete", "failed")) and not sampled.failure:
        wanted = children = training_run_children(run, identity, observed, _addresses(cluster, run, seen, scales))
    try:
        refused = apply_children(cluster, live, wanted)
    except ClusterError as error:
        if error.passing:
            raise
        failed = error
    if children and (claims := tracker_claims(run)):
        refused = refused or grow_claims(cluster, names.tracker(name), name, claims)
    parts = workloads(cluster, run, trainer.remember.number)
    failures = last_failures(cluster, live, parts, prepared=seen.prepared)
    problem = None
    if not seen.prepared:
        problem = pods_problem(cluster, name, "prepare") or refused_pods(
            cluster, cluster.get("Job", names.prepare(name))
        )
    # Also while something is waited for, or was refused: it is what whoever looks at the page wants to know.
    told = [parts_map(name, part_states(parts))] if run.spec.ui is not None and seen.prepared else []
    apply_children(cluster, live, told)
    if failed is not None:
        raise failed
    # Also before prepare has succeeded: it may have succeeded in a Job that a suspension had ended already, and an operator that stopped before
    # it wrote that down has left what it made.
    if children:
        prune(cluster, live, name, PRUNED, [*children, *told])

    findings = Findings(
        stage=stage,
        mode=run.spec.mode,
        steps=run.spec.steps,
        prepare=seen.prepare,
        prepared=seen.prepared,
        prepare_problem=problem if stage == "preparing" else None,
        parts=parts,
        progress=seen.progress,
        latest_version=seen.latest_version if seen.prepared else None,
        failure=_failure(run, stage, trainer, seen, sampled, problem[1] if problem else "", failures, late=late),
        last_failures=failures,
        not_known=_not_known(cluster, name, seen),
        waits_for=waits_for,
        not_grown=refused,
        run_key=identity.run_key,
        roster=identity.roster,
        attempt=trainer.remember,
        start_time=start_time,
        completion_time=completion_time,
        endpoint=_endpoint(cluster, run),
        island_key=own_key,
        lighthouse=_lighthouse(cluster, run),
        has_islands=island_count(run) > 0,
        group_problem=ungrouped,
        misfits=misfits(run, seen.progress, volumes=cluster.enforces_volumes),
    )
    write_status(cluster, live, run_status(findings, before), run_conditions(findings))
    if finished:
        return left if left is None else max(left, SOON_SECONDS)
    return None if stage == "suspended" else POLL_SECONDS


def _not_known(cluster: Cluster, run: str, seen: Observed) -> tuple[str, str] | None:
    """Reason and message for a run whose parts may be ready while nothing is known of it, or its store goes. Two reads of the cache."""
    claim = cluster.get("PersistentVolumeClaim", names.store(run))
    if claim is not None and claim["metadata"].get("deletionTimestamp"):
        return (
            "StoreTerminating",
            f"PersistentVolumeClaim {names.store(run)} was deleted and goes with the last pod that mounts it: copy the store before any pod ends",
        )
    if seen.progress is None:
        return (
            "OrchestratorSilent",
            f"Deployment {names.orchestrator(run)} does not say how far the run is: read its log, and let the operator reach its port"
            f" {names.ORCHESTRATOR_PORT}",
        )
    return None


def _failure(
    run: TrainingRun,
    stage: Stage,
    trainer: TrainerDecision,
    seen: Observed,
    sampled: FilterState,
    said_last: str,
    kept: Sequence[LastWords],
    *,
    late: bool,
) -> Failure:
    """`said_last`: by the pods of prepare."""
    if stage != "failed":
        return Failure()
    if late:
        seconds = run.spec.active_deadline_seconds
        return Failure(
            "DeadlineExceeded",
            f"the run was active for longer than {seconds} s (spec.activeDeadlineSeconds); raise it to continue",
        )
    if sampled.failure:
        return Failure("FilterFailed", sampled.failure)
    job = trainer.failed or seen.prepare
    if job is None:
        return Failure("JobFailed")
    words = said_by(job["metadata"]["name"], kept)
    return Failure("JobFailed", failure_text(job, "" if trainer.failed else said_last, words))


def _pools(run: TrainingRun, seen: Observed) -> dict[str, str]:
    """Name of each pool of the run, by the name of its object."""
    if run.spec.mode == "SFT":
        return {}
    own = {names.pool(run.metadata.name, pool.name): pool.name for pool in run.spec.inference_pools}
    return own | {pool.metadata.name: pool.spec.pool for pool in seen.references.pools}


def _scales(cluster: Cluster, run: TrainingRun, stage: Stage) -> dict[str, Scale]:
    """Replicas of the kinds that the run makes: what others set with `kubectl scale` stands."""
    return {
        name: decide_scale(replicas, cluster.get(kind, name), work=stage == "running")
        for (kind, name), replicas in template_replicas(run).items()
    }


def _addresses(cluster: Cluster, run: TrainingRun, seen: Observed, scales: dict[str, Scale]) -> Addresses:
    """Where the parts are, from inside and from outside. As many relays as work are listed: a suspended run keeps its configuration."""
    name, others = run.metadata.name, seen.references.relay_server
    if others is not None:
        inside = cluster.addresses(
            name, others.spec.replicas, others.metadata.name, runner_count(run), islands=serves_lighthouse(run)
        )
    else:
        own = scales.get(names.relay(name))  # none while the relays that the run refers to are not there
        relays = own.working if own is not None else 0
        inside = cluster.addresses(name, relays, runners=runner_count(run), islands=serves_lighthouse(run))
    served = cluster.get("RelayServer", others.metadata.name if others is not None else names.relay(name))
    outside = (served or {}).get("status", {}).get("addresses", [])
    return inside.model_copy(
        update={
            "public_relays": outside,
            "public_discovery": _public(cluster, run, "discovery"),
            "public_orchestrator": _public(cluster, run, "orchestrator"),
        }
    )


def _public(cluster: Cluster, run: TrainingRun, component: str) -> str | None:
    """URL of discovery or orchestrator from outside, or None."""
    service = names.public(f"{run.metadata.name}-{component}")
    exposure = run.spec.control_plane.exposure
    return address_of(service, exposure, cluster.get("Service", service), names.PORTS[component])


def _endpoint(cluster: Cluster, run: TrainingRun) -> str | None:
    """URL of discovery: from outside if the run is exposed."""
    if run.spec.control_plane.exposure.type == "ClusterIP":
        return cluster.addresses(run.metadata.name, 0).discovery
    return _public(cluster, run, "discovery")


def _lighthouse(cluster: Cluster, run: TrainingRun) -> str | None:
    """`host:port` of the lighthouse that the run serves to its group: from outside if it is exposed."""
    name, group = run.metadata.name, group_of(run)
    if group is None or not group.serve_lighthouse:
        return None
    url = cluster.addresses(name, 0, islands=True).lighthouse
    if group.exposure.type != "ClusterIP":
        service = names.public(names.lighthouse(name))
        url = address_of(service, group.exposure, cluster.get("Service", service), names.PORTS["lighthouse"])
    return None if url is None else url.removeprefix("http://")


def _decide_trainer(
    cluster: Cluster,
    live: Object,
    run: TrainingRun,
    identity: RunIdentity,
    seen: Observed,
    *,
    complete: bool,
    late: bool,
    waits: bool,
) -> TrainerDecision:
    name, trainer = run.metadata.name, run.spec.trainer
    before = live.get("status", {}).get("trainer", {})
    addresses = cluster.addresses(name, 0, islands=serves_lighthouse(run))
    config = run_config(run, seen.references, addresses, identity.roster, identity.run_key, identity.islands)
    config_hash = config_hashes(config)["trainer"]
    secret = names.held_secret(name, identity.roster.document, "trainer")
    return decide_trainer(
        wanted=seen.prepared and not run.spec.suspend and not late,
        complete=complete,
        jobs=seen.trainer_jobs,
        remembered=TrainerAttempt(
            before.get("attempt", 0),
            before.get("startedAtVersion", 0),
            before.get("failures", 0),
            before.get("lastFailed", 0),
        ),
        latest_version=seen.latest_version,
        template_hashes={
            number: template_hash(owned(trainer_job(run, number, config_hash, secret), live, cluster.namespace))
            for number in seen.trainer_jobs
        },
        # A trainer of one pod is started again in its place, as often as the policy says, before its Job fails.
        limit=run.spec.failure_policy.max_trainer_attempts if trainer.replicas > 1 else 1,
        now=cluster.now(),
        waits=waits,
    )
