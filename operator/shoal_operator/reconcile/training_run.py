"""Reconciles a TrainingRun: keys, configuration, prepare, control plane, trainer attempts, our three other kinds, and the run's status.

Observe, decide (`decisions.py`), children (`children/`), apply, status (`run_status.py`). Nothing is remembered between calls but the status.
"""

from dataclasses import dataclass

from shoal.contracts.protocol import RunProgress
from shoal_operator.api import TrainingRun
from shoal_operator.children import ObservedRun, RunIdentity, names, training_run_children
from shoal_operator.children.trainer import trainer_job
from shoal_operator.children.training_run import config_hashes, run_config
from shoal_operator.engine.apply import job_state, template_hash
from shoal_operator.engine.cluster import Cluster, Object
from shoal_operator.engine.conditions import is_true
from shoal_operator.reconcile.common import apply_children, owned, parse, replica_counts, write_status
from shoal_operator.reconcile.decisions import (
    Attempt,
    TrainerDecision,
    decide_stage,
    decide_trainer,
    failure_text,
    is_complete,
)
from shoal_operator.reconcile.keys import ensure_identity
from shoal_operator.reconcile.run_status import Findings, run_conditions, run_status

POLL_SECONDS = 5.0
"""How often the orchestrator is asked for progress while a run is running."""


@dataclass(frozen=True)
class _Seen:
    """The world of one run, read once at the start of a reconcile."""

    prepare: Object | None
    trainer_jobs: dict[int, Object]
    progress: RunProgress | None
    latest_version: int
    prepared: bool
    waits_for: str


def reconcile_training_run(cluster: Cluster, name: str) -> float | None:
    """Make the children and the status of a run right; returns after how many seconds to look again."""
    live = cluster.get("TrainingRun", name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    run = parse(TrainingRun, live)
    identity = ensure_identity(cluster, live)
    addresses = cluster.addresses(name, run.spec.relay_server.replicas)
    seen = _observe(cluster, live, run, addresses.orchestrator)
    complete = is_complete(run.spec.steps, seen.latest_version)

    trainer = _decide_trainer(cluster, live, run, identity, seen, complete=complete)
    stage = decide_stage(
        suspend=run.spec.suspend,
        complete=complete,
        prepare=seen.prepare,
        prepared=seen.prepared,
        trainer_failure=trainer.failure,
    )
    for job in trainer.delete:
        cluster.delete("Job", job)
    if stage == "suspended" and job_state(seen.prepare) == "running":
        cluster.delete("Job", names.prepare(name))

    observed = ObservedRun(stage=stage, trainer_attempt=trainer.build, prepared=seen.prepared)
    if not seen.waits_for:
        apply_children(cluster, live, training_run_children(run, identity, observed, addresses))

    failure = trainer.failure
    if stage == "failed" and not failure and seen.prepare is not None:
        failure = failure_text(seen.prepare)
    findings = Findings(
        stage=stage,
        steps=run.spec.steps,
        prepare=seen.prepare,
        prepared=seen.prepared,
        workloads=_workloads(cluster, run, trainer.remember.number),
        progress=seen.progress,
        latest_version=seen.latest_version if seen.prepared else None,
        failure=failure if stage == "failed" else "",
        waits_for=seen.waits_for,
        run_key=identity.run_key,
        attempt=trainer.remember,
    )
    write_status(cluster, live, run_status(findings, live.get("status", {})), run_conditions(findings))
    return POLL_SECONDS if stage in ("preparing", "running") else None


def _observe(cluster: Cluster, live: Object, run: TrainingRun, orchestrator_url: str) -> _Seen:
    name = run.metadata.name
    prepare = cluster.get("Job", names.prepare(name))
    # Only an orchestrator that is ready is asked: one that is not would cost a time-out at each reconcile.
    ready = replica_counts(cluster.get("Deployment", names.orchestrator(name)))[2] > 0
    progress = cluster.run_progress(orchestrator_url) if ready else None
    if progress is not None and progress.run != name:
        progress = None  # someone else's: an address that is no longer ours
    announced = progress.latest_version if progress is not None else None
    return _Seen(
        prepare=prepare,
        trainer_jobs={
            int(job["metadata"]["labels"][names.ATTEMPT_LABEL]): job
            for job in cluster.list("Job", names.selector(name, "trainer"))
        },
        progress=progress,
        # Versions only grow, so what the status says still holds while the orchestrator is away.
        latest_version=max(announced or 0, live.get("status", {}).get("policyVersion") or 0),
        prepared=job_state(prepare) == "succeeded" or is_true(live, "Prepared"),
        waits_for=_missing_credentials(cluster, run),
    )


def _missing_credentials(cluster: Cluster, run: TrainingRun) -> str:
    """What to do about store credentials that are not there; empty when all is well."""
    s3 = run.spec.storage.s3
    if s3 is None:
        return ""
    secret = cluster.get("Secret", s3.credentials_secret)
    if secret is None:
        return (
            f"waits for Secret {s3.credentials_secret} with accessKey and secretKey (spec.storage.s3.credentialsSecret)"
        )
    lacking = [key for key in ("accessKey", "secretKey") if key not in secret.get("data", {})]
    if not lacking:
        return ""
    return f"waits for {' and '.join(lacking)} in Secret {s3.credentials_secret} (spec.storage.s3.credentialsSecret)"


def _decide_trainer(
    cluster: Cluster, live: Object, run: TrainingRun, identity: RunIdentity, seen: _Seen, *, complete: bool
) -> TrainerDecision:
    name = run.metadata.name
    before = live.get("status", {}).get("trainer", {})
    addresses = cluster.addresses(name, run.spec.relay_server.replicas)
    config_hash = config_hashes(run_config(run, identity, addresses))["trainer"]
    return decide_trainer(
        wanted=seen.prepared and not run.spec.suspend,
        complete=complete,
        jobs=seen.trainer_jobs,
        remembered=Attempt(before.get("attempt", 0), before.get("startedAtVersion", 0)),
        latest_version=seen.latest_version,
        template_hashes={
            number: template_hash(owned(trainer_job(run, number, config_hash), live, cluster.namespace))
            for number in seen.trainer_jobs
        },
    )


def _workloads(cluster: Cluster, run: TrainingRun, attempt: int) -> dict[str, Object | None]:
    """The live workload behind each component's condition."""
    name = run.metadata.name
    return {
        "Redis": cluster.get("StatefulSet", names.redis(name)),
        "Discovery": cluster.get("Deployment", names.discovery(name)),
        "Orchestrator": cluster.get("Deployment", names.orchestrator(name)),
        "Trainer": cluster.get("Job", names.trainer_job(name, attempt)),
        "RelayServer": cluster.get("RelayServer", names.relay(name)),
        "Validator": cluster.get("Validator", names.validator(name)),
        "InferencePool": cluster.get("InferencePool", names.pool(name, run.spec.inference_pool.name)),
    }
