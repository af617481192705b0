"""Reconciles a TrainingRun: keys, configuration, prepare, control plane, trainer attempts, our three other kinds, and the run's status.

Observe (`observe.py`), decide (`decisions.py`, `queue.py`, `children/scale.py`), children (`children/`), apply, status (`run_status.py`).
Nothing is remembered between calls but the status. Of that only times, the trainer's attempts and last words are read, and figures to see whether
they grow. `observe.py` says what bears the rest out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pydantic import TypeAdapter, ValidationError

from shoal.contracts.run import Addresses
from shoal_operator.api import TrainingRun
from shoal_operator.api.last_words import LastWords
from shoal_operator.children import ObservedRun, RunIdentity, names, training_run_children
from shoal_operator.children.below import below
from shoal_operator.children.control_plane import redis_claims
from shoal_operator.children.exposure import address_of
from shoal_operator.children.islands import group_of, group_problem, island_count, lighthouse_way_in, serves_lighthouse
from shoal_operator.children.own_kinds import template_replicas
from shoal_operator.children.queue import PodSet, pod_sets
from shoal_operator.children.releases import Builder, by_key, key_of
from shoal_operator.children.run_config import config_hashes, run_config
from shoal_operator.children.runner import runner_count
from shoal_operator.children.scale import Scale, decide_scale
from shoal_operator.children.sources import is_restored
from shoal_operator.children.trackers import tracker_claims
from shoal_operator.children.trainer import trainer_job
from shoal_operator.children.training_run import RunInputs, Stage, run_claims
from shoal_operator.children.ui import parts_map
from shoal_operator.engine.apply import hash_of, job_state, template_hash
from shoal_operator.engine.cluster import Cluster, ClusterError, Object
from shoal_operator.engine.conditions import Condition, is_true, message_of
from shoal_operator.plan_facts import misfits
from shoal_operator.reconcile.common import (
    ChildName,
    adopt,
    apply_children,
    grow_claims,
    names_of,
    owned,
    parse,
    prune,
    write_status,
)
from shoal_operator.reconcile.components import part_state, part_states
from shoal_operator.reconcile.decisions import (
    TrainerAttempt,
    TrainerDecision,
    bounded_time,
    decide_stage,
    decide_trainer,
    failure_text,
    rfc3339,
    seconds_left,
    time_is_up,
)
from shoal_operator.reconcile.keys import ensure_identity, ensure_tickets, ensure_ui_token
from shoal_operator.reconcile.last_words import said_by
from shoal_operator.reconcile.observe import Observed, component_problem, last_failures, observe, workloads
from shoal_operator.reconcile.offline_filter import FilterState, sample_first
from shoal_operator.reconcile.other_runs import Wait
from shoal_operator.reconcile.queue import Quota, Rest, quota_of, rest_of, take, tell_ready, turn
from shoal_operator.reconcile.releases import Upgrade, rolled, settled, upgrade_of
from shoal_operator.reconcile.routes import run_exposed
from shoal_operator.reconcile.run_status import HEARD, Failure, Findings, as_heard, run_conditions, run_status
from shoal_operator.reconcile.schedulers import require_one_scheduler
from shoal_operator.reconcile.stalled import PROGRESS_SECONDS, WorkSeen, is_due, last_progress, stall
from shoal_operator.reconcile.volumes import Problem, require_volumes, volumes_condition

BUILDER = Builder(TypeAdapter(RunInputs), RunInputs.children)

LOOK_SECONDS, LOOK_AT_TROUBLE_SECONDS, LOOK_AT_WORK_SECONDS = 5.0, 10.0, 60.0
"""How soon to look at a run again though nothing has changed: before it works and while it is rolled, while it lacks parts, and while all is well.
What changes, figures of the orchestrator too, comes by itself; deadlines are looked at when they are over. A roll waits for children of the run's
children, whose changes are events of their owners alone.
"""

NOT_HEARD_SECONDS = 10.0
"""Latest look at a run whose orchestrator is being asked for the first time."""

RESTS = ("suspended", "queued")
"""Stages of a run that works later."""

STORE_GOES = "StoreTerminating"
"""Reason why nothing is known of a run whose store was deleted."""

SOON_SECONDS = 1.0
"""Earliest deletion: a finished run whose time to live is over may have been edited, and is reconciled once more first."""

PRUNED = (
    "InferencePool", "RelayServer", "Validator", "Service", "Ingress", "HTTPRoute", "Deployment", "StatefulSet", "PodDisruptionBudget",
    "NetworkPolicy", "ConfigMap",
)  # fmt: skip
"""Kinds of children that a change of the spec may make superfluous. Volumes and keys are never among them."""


def reconcile_training_run(cluster: Cluster, name: str) -> float | None:
    """Reconcile the children and the status of a run; returns after how many seconds to look again."""
    live = cluster.get("TrainingRun", name)
    if live is None or live["metadata"].get("deletionTimestamp"):
        return None
    run, now = parse(TrainingRun, live), cluster.now()
    if run.spec.managed_by is not None:
        return None
    before = as_heard(cluster, live)
    require_volumes(cluster, run)
    require_one_scheduler(cluster, run)
    uid, keys = live["metadata"]["uid"], run.spec.keys
    cluster.unchanged("adopt", uid, lambda: adopt(cluster, live, name))
    identity = cluster.unchanged(
        "identity",
        (uid, before.get("runPublicKey"), island_count(run), None if keys is None else keys.model_dump_json()),
        lambda: ensure_identity(cluster, live, island_count(run), keys),
    )
    seen = observe(cluster, live, run, cluster.addresses(name, 0).orchestrator, before)
    if seen is None:
        return NOT_HEARD_SECONDS  # what it says decides: nobody waits for that here
    ensure_tickets(cluster, live, _pools(run, seen), identity)
    if run.spec.ui is not None:
        ensure_ui_token(cluster, live)
    born = live["metadata"].get("creationTimestamp")
    start_time = None if run.spec.suspend else bounded_time(before.get("startTime"), born, now) or rfc3339(now)
    late = time_is_up(start_time, run.spec.active_deadline_seconds, now)
    complete = seen.complete_at is not None
    has_counts = seen.prepared or is_restored(run)
    sampled = sample_first(cluster, live, run, seen.references, prepared=has_counts, rest=run.spec.suspend or late)
    own_key = identity.islands.get(names.island_names(1)[0]) if group_of(run) is not None else None
    ungrouped = group_problem(run, own_key)
    wait = next((each for each in (seen.waits, Wait(ungrouped), sampled.waits) if each.text), Wait())
    waits_for = wait.text

    inputs = _inputs(cluster, run, identity, seen)
    upgrade = _upgrade(cluster, live, run, inputs, seen)
    quota = quota_of(cluster, live)
    decide = partial(
        _decide_trainer,
        cluster,
        live,
        run,
        identity,
        seen,
        lambda made: _as_released(upgrade, quota, made),
        "" if quota.live is not None else upgrade.made_of,  # nodes of a queue are in no digest
        complete=complete,
    )
    trainer = decide(wanted=seen.prepared and not run.spec.suspend and not late, waits=bool(waits_for))
    stage = decide_stage(
        suspend=run.spec.suspend,
        complete=complete,
        late=late,
        prepare=seen.prepare,
        prepared=seen.prepared,
        filter_failure=sampled.failure,
        trainer_failed=trainer.failed is not None,
    )
    rest, queue, sets = Rest(), None, list[PodSet]()
    if run.spec.queue_name is not None or quota.live is not None:
        sets = _sets(cluster, run, identity, inputs, upgrade, stage)
        rest = rest_of(cluster, live)
        queue = turn(
            run.spec.queue_name,
            sets,
            quota.live,
            rest,
            served=cluster.serves("Workload"),
            ended=stage in ("complete", "failed"),
            waits=bool(waits_for),
            priority=run.spec.queue_priority or 0,
            now=now,
        )
    if queue is not None and queue.holds:
        stage, start_time = "queued", None
        trainer = decide(wanted=False, waits=True)
    elif quota.unreadable is not None and sets:
        raise quota.unreadable
    if ungrouped and stage == "running":
        # Nothing new is made of such a list. What trains continues with the one before, until the list is right.
        trainer = replace(trainer, delete=())
    for job in trainer.delete:
        cluster.delete("Job", job)
    if stage in RESTS and job_state(seen.prepare) == "running":
        cluster.delete("Job", names.prepare(name))

    finished = stage in ("complete", "failed")
    began = max(
        filter(None, [born, *(job["metadata"].get("creationTimestamp") for job in seen.trainer_jobs.values())]),
        default=None,
    )
    completion_time = (bounded_time(before.get("completionTime"), began, now) or rfc3339(now)) if finished else None
    left = seconds_left(completion_time, run.spec.ttl_seconds_after_finished, now)
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
        # In a queue nothing has pods without quota: what speaks of the work ends after it.
        stands=queue is None or stage in ("preparing", "running") or not rest.work,
        prepares=run.spec.queue_name is None or stage == "preparing",
    )
    kept, failed, children = list[Problem](), None, frozenset[ChildName]()
    # What has nothing to do stops, whatever it would wait for to continue.
    makes = (not waits_for or stage in (*RESTS, "complete", "failed")) and not sampled.failure

    def make() -> tuple[list[Problem], frozenset[ChildName]]:
        wanted = upgrade.children(lighthouse_way_in(run), work=False) if ungrouped else []
        if makes:
            made = training_run_children(run, identity, observed, _addresses(cluster, run, seen, scales))
            wanted = [quota.place(each) for each in upgrade.children(made, work=stage == "running")]
            if run.spec.queue_name is not None:
                wanted = [quota.cap(each, works=stage == "running") for each in wanted]
        return apply_children(cluster, live, wanted), names_of(wanted) if makes else frozenset()

    try:
        # In a queue children are also what their quota says.
        if upgrade.made_of and makes and queue is None:
            of = (
                uid,
                upgrade.made_of,
                stage,
                trainer.build,
                seen.prepared,
                seen.complete_at,
                tuple(scales.items()),
            )
            kept, children = cluster.unchanged("children", of, make)
        else:
            kept, children = make()
    except ClusterError as error:
        if error.passing:
            raise
        failed = error
    volumes = _volumes(cluster, run, kept, grow=bool(children))
    if queue is not None:
        why = _failure(run, stage, trainer, seen, sampled, "", (), late=late).message
        take(cluster, live, run, sets, quota.live, queue, why)
    parts = workloads(cluster, live, run, trainer.remember.number)
    failures = last_failures(cluster, live, parts, prepared=seen.prepared)
    problem = None
    if not seen.prepared:
        preparing = cluster.get("Job", names.prepare(name))
        problem = component_problem(cluster, name, "prepare", preparing, message_of(live, "Prepared"))
    # Also while something is waited for, or was refused: it is what whoever looks at the page wants to know.
    told = [parts_map(name, part_states(parts))] if run.spec.ui is not None and seen.prepared else []
    apply_children(cluster, live, told)
    if failed is not None:
        raise failed
    # Also before prepare has succeeded: it may have succeeded in a Job that a suspension had ended already, and an operator that stopped before
    # it wrote that down has left what it made.
    if children:
        stays = children | names_of(told)
        cluster.unchanged("prune", (uid, stays), lambda: prune(cluster, live, name, PRUNED, stays))

    not_known, exposed = _not_known(cluster, name, seen), run_exposed(cluster, run)
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
        not_known=not_known,
        waits_for=waits_for,
        volumes=volumes,
        exposed=exposed,
        run_key=identity.run_key,
        roster=identity.roster,
        run_keys_away=identity.run_keys_away,
        attempt=trainer.remember,
        start_time=start_time,
        completion_time=completion_time,
        endpoint=_endpoint(cluster, run),
        island_key=own_key,
        lighthouse=_lighthouse(cluster, run),
        has_islands=island_count(run) > 0,
        group_problem=ungrouped,
        misfits=misfits(run, seen.progress, volumes=cluster.enforces_volumes),
        upgrade=upgrade,
        queue=queue if run.spec.queue_name is not None else None,
    )
    status, deadlines = run_status(findings, before), [seconds_left(start_time, run.spec.active_deadline_seconds, now)]
    work = WorkSeen(
        stage=stage,
        parts=parts,
        progress=seen.progress,
        waits_for=waits_for,
        waits_well=wait.well,
        prepare=names.prepare(name),
        prepare_problem=findings.prepare_problem,
        store_goes=not_known[1] if not_known is not None and not_known[0] == STORE_GOES else "",
    )
    if is_due(work):
        anew = seen.prepared and not is_true(live, "Prepared")
        earliest = start_time
        if children and not seen.prepared:  # also a Job that was deleted to try again has its whole time
            earliest = rfc3339(now) if seen.prepare is None else seen.prepare["metadata"].get("creationTimestamp")
        since = last_progress(before, status, run.spec.mode, anew=anew, earliest=earliest or start_time, now=now)
        stalled = stall(work, since, run.spec.progress_deadline_seconds, now)
        if stalled is None:
            deadlines.append(seconds_left(since, run.spec.progress_deadline_seconds or PROGRESS_SECONDS, now))
        findings = replace(findings, last_progress_time=since, stall=stalled)
        status = run_status(findings, before)
    if seen.progress is not None:
        cluster.heard.keep(cluster.namespace, name, uid, {key: status[key] for key in HEARD})
    write_status(cluster, live, status, run_conditions(findings))
    if queue is not None and stage in ("preparing", "running"):
        started = (seen.prepare or {}).get("status", {}).get("ready", 0) > 0
        tell_ready(cluster, quota.live, ready=started if stage == "preparing" else not findings.missing)
    rolling = upgrade.reached is not None and not upgrade.waits_for_step
    return _next_look(findings, quota, left, deadlines, rolling=rolling)


def _next_look(
    found: Findings, quota: Quota, left: float | None, deadlines: Sequence[float | None], *, rolling: bool
) -> float | None:
    """Seconds until the run is looked at again though nothing changes; None: never.

    `left`: seconds until a finished run is deleted. `deadlines`: seconds until those of a running one are over.
    """
    if found.stage in ("complete", "failed"):
        if quota.live is not None and not is_true(quota.live, "Finished"):
            return LOOK_SECONDS
        return left if left is None else max(left, SOON_SECONDS)
    if found.stage == "suspended" and quota.live is None:
        return None
    if found.stage != "running" or found.waits_for or rolling:
        return LOOK_SECONDS
    exposed = found.exposed
    well = all(part_state(each).ready for each in found.parts) and (exposed is None or exposed["status"] == "True")
    usual = LOOK_AT_WORK_SECONDS if well else LOOK_AT_TROUBLE_SECONDS
    return max(SOON_SECONDS, min([usual, *(each for each in deadlines if each is not None and each > 0)]))


def _volumes(cluster: Cluster, run: TrainingRun, kept: list[Problem], *, grow: bool) -> Condition | None:
    """Claims of the run's own children: their growth where a StatefulSet has made them, and their condition. Pools and relays have their own."""
    if not cluster.enforces_volumes:
        return None
    name = run.metadata.name
    own = [cluster.get("PersistentVolumeClaim", each["metadata"]["name"]) for each in run_claims(run)]
    claims, problems = [each for each in own if each is not None], list(kept)
    for set_name, wanted in ((names.redis(name), redis_claims(run)), (names.tracker(name), tracker_claims(run))):
        made = cluster.list("PersistentVolumeClaim", {names.RUN_LABEL: name, names.SET_LABEL: set_name})
        if grow and wanted:
            problems += grow_claims(cluster, made, set_name, wanted)
        claims += made
    return volumes_condition(claims, problems, cluster.storage_classes)


def _not_known(cluster: Cluster, run: str, seen: Observed) -> tuple[str, str] | None:
    """Reason and message for a run whose parts may be ready while nothing is known of it, or its store goes. Two reads of the cache."""
    claim = cluster.get("PersistentVolumeClaim", names.store(run))
    if claim is not None and claim["metadata"].get("deletionTimestamp"):
        return (
            STORE_GOES,
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


def _inputs(cluster: Cluster, run: TrainingRun, identity: RunIdentity, seen: Observed) -> RunInputs:
    """Its addresses are those of a run at work: a suspension is no other input."""
    return RunInputs.of(
        run, identity, seen.references, _addresses(cluster, run, seen, _scales(cluster, run, "running"))
    )


def _sets(
    cluster: Cluster, run: TrainingRun, identity: RunIdentity, inputs: RunInputs, upgrade: Upgrade, stage: Stage
) -> list[PodSet]:
    """What a run that is to work asks its queue for. Its children are rendered once more, some milliseconds whatever the run's size."""
    if stage not in ("preparing", "running") or run.spec.queue_name is None:
        return []
    config = run_config(run, inputs.references, inputs.addresses, identity.roster, identity.run_key, identity.islands)
    hashes = config_hashes(config)
    plain = inputs.children()
    known = by_key(plain)
    children: list[Object] = []
    for own in upgrade.children(plain, work=True):
        try:
            pods = below(own, identity, inputs.addresses, hashes)
        except ValidationError:  # a later release made it, with fields that this one does not know
            pods = below(known.get(key_of(own), {"kind": ""}), identity, inputs.addresses, hashes)
        children += [own, *pods]
    return pod_sets(run, [cluster.at_site(each) for each in children], prepares=stage == "preparing")


def _as_released(upgrade: Upgrade, quota: Quota, made: Object) -> Object | None:
    """A child by its release, on the nodes that its queue gave it."""
    found = upgrade.child(made)
    return found if found is None else quota.place(found)


def _upgrade(cluster: Cluster, live: Object, run: TrainingRun, inputs: RunInputs, seen: Observed) -> Upgrade:
    """Releases of the run's children.

    The trainer's turn comes when a version has just been announced. It comes at once where it is not at work, makes no versions, or the run
    is stalled: that deadline bounds the wait.
    """
    upgrade = upgrade_of(cluster, live, run.metadata.name, BUILDER, inputs, run.spec.release)
    if upgrade.others == upgrade.target:
        return upgrade  # no other release is known, so that nothing can be rolled
    trainer = seen.trainer_jobs.get(max(seen.trainer_jobs, default=0))
    idle = trainer is None or trainer["metadata"].get("deletionTimestamp") or not settled(cluster, trainer)
    made_one = seen.latest_version > (live.get("status", {}).get("policyVersion") or 0)
    edge = idle or made_one or run.spec.mode == "Generate" or is_true(live, "Stalled")
    return rolled(upgrade, cluster, live, inputs.children(), trainer, edge=bool(edge))


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
        if own is not None and run.spec.queue_name is not None:
            relays = min(relays, own.template)  # its queue reserves no more, whatever is asked for
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


def _template_hash(cluster: Cluster, owner: Object, wanted: Object, job: Object) -> str:
    """Of the trainer's Job as it would be made now. One that this cluster no longer allows is not made again: it stays until something ends it, such
    as a suspension. That it is refused is said when the children are applied."""
    try:
        return template_hash(owned(cluster.at_site(wanted), owner, cluster.namespace))
    except ClusterError:
        return hash_of(job) or ""


def _decide_trainer(
    cluster: Cluster,
    live: Object,
    run: TrainingRun,
    identity: RunIdentity,
    seen: Observed,
    as_released: Callable[[Object], Object | None],
    made_of: str,
    *,
    complete: bool,
    wanted: bool,
    waits: bool,
) -> TrainerDecision:
    name, trainer = run.metadata.name, run.spec.trainer
    before = live.get("status", {}).get("trainer", {})

    def hashes() -> dict[int, str]:
        """Of each attempt's Job as it would be made now."""
        addresses = cluster.addresses(name, 0, islands=serves_lighthouse(run))
        config = run_config(run, seen.references, addresses, identity.roster, identity.run_key, identity.islands)
        config_hash = config_hashes(config)["trainer"]
        secret = names.held_secret(name, identity.roster.document, "trainer")
        return {
            number: _template_hash(cluster, live, made, job)
            for number, job in seen.trainer_jobs.items()
            if (made := as_released(trainer_job(run, number, config_hash, secret))) is not None
        }

    of = made_of, tuple((number, hash_of(job)) for number, job in seen.trainer_jobs.items())
    return decide_trainer(
        wanted=wanted,
        complete=complete,
        jobs=seen.trainer_jobs,
        remembered=TrainerAttempt(
            before.get("attempt", 0),
            before.get("startedAtVersion", 0),
            before.get("failures", 0),
            before.get("lastFailed", 0),
        ),
        latest_version=seen.latest_version,
        template_hashes=cluster.unchanged("trainer", of, hashes) if made_of else hashes(),
        # A trainer of one pod is started again in its place, as often as the policy says, before its Job fails.
        limit=run.spec.failure_policy.max_trainer_attempts if trainer.replicas > 1 else 1,
        now=cluster.now(),
        waits=waits,
    )
