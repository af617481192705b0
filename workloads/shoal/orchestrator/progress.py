"""`GET /v1/run`: the run in aggregates, for status, live view and report. Reads memory and a few keys of Redis, never the store.

Also takes what the trainer says: announced versions (checked against the sealed manifest in the store) and its progress.
"""

import hashlib

from shoal.contracts import keys
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import DatasetAnnouncement, RunProgress, TrainerProgress, VersionAnnouncement
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.weights import WeightsManifest
from shoal.ledger.entries import DatasetPublished, VersionPublished
from shoal.orchestrator.evaluation import evaluations
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work import handout
from shoal.storage import NotFound
from shoal.telemetry import get_logger


def run_progress(state: RunState) -> RunProgress:
    """Aggregates of the whole run."""
    view, config = state.view, state.config
    open_step = state.open_step()
    load = state.loads([open_step])[0] if open_step is not None else None
    nodes = state.nodes.counts()
    return RunProgress(
        run=config.run,
        steps_total=state.schedule.steps,
        open_step=open_step,
        waiting_for=waiting_for(state, open_step, nodes.get("Healthy", 0)),
        latest_version=view.latest_version,
        accepted_groups=load.accepted_groups if load is not None else 0,
        needed_groups=state.schedule.needed_groups,
        pending_groups=load.pending_groups if load is not None else 0,
        files_accepted=view.files_accepted,
        files_rejected=view.files_rejected,
        files_expired=state.files_expired,
        files_inconclusive=int(state.redis.get(f"{state.prefix}:inconclusive") or 0),
        files_pending=state.queue.size(),
        reject_reasons=dict(view.reject_reasons),
        nodes=nodes,
        completion_tokens_accepted=view.tokens_accepted,
        groups_accepted_total=view.groups_with_signal,
        groups_dropped_total=view.groups_judged - view.groups_with_signal,
        judged_groups=load.judged_groups if load is not None else 0,
        stalled_on_signal=handout.stalled_text(load) if load is not None and state.schedule.stalled(load) else "",
        trainer_phase=state.trainer.phase if state.trainer is not None else "",
        trainer_note=state.trainer.note if state.trainer is not None else "",
        last_step=state.last_step,
        proofs=state.proof_terms(),
        dataset=state.trainer.dataset if state.trainer is not None else None,
        evaluations=evaluations.progress(state),
        best_version=evaluations.best(state),
        islands=state.trainer.islands if state.trainer is not None else None,
        complete=state.complete,
    )


def waiting_for(state: RunState, open_step: int | None, healthy_nodes: int) -> str:
    """What must happen before the run can go on, in words; empty while nodes work on an open step."""
    if state.complete:
        return ""
    if open_step is not None:
        return "" if healthy_nodes else f"a healthy node to work on step {open_step}"
    if state.trained:
        return f"version {state.config.steps}, the last one, to be scored"
    return state.schedule.waits_for(state.view.sealed, state.view.latest_version)


def announce_version(state: RunState, announcement: VersionAnnouncement) -> None:
    """Record a published version; the same announcement again is fine. Raises `Refusal` when it contradicts the ledger or the store."""
    version, run = announcement.version, state.config.run
    if announcement.run != run:
        raise Refusal(ProblemCode.VERSION_OF_ANOTHER_RUN, f"announced for run {announcement.run!r}, this is {run!r}")
    known = state.view.versions.get(version)
    if known is None:
        if not state.schedule.may_announce(version, state.view.sealed):
            raise Refusal(
                ProblemCode.VERSION_TOO_EARLY,
                f"version {version} is made from step {version - 1}, which has no batch yet (mode {state.config.mode})",
            )
        _check_manifest(state, announcement)
        state.ledger.append(VersionPublished(version=version, weights=announcement.weights_digest))
        known = state.view.versions[version]
        get_logger().info("version published", version=version, digest=announcement.weights_digest)
    if known != announcement.weights_digest:
        raise Refusal(
            ProblemCode.VERSION_CHANGED,
            f"version {version} was announced with digest {known[:12]}..., now {announcement.weights_digest[:12]}...;"
            " a number never changes its bytes",
        )


def announce_dataset(state: RunState, announcement: DatasetAnnouncement) -> None:
    """Record a written data set, which completes a run of mode Generate; the same again is fine. Raises `Refusal` when it is not this run's."""
    name, run = announcement.name, state.config.run
    if announcement.run != run:
        raise Refusal(ProblemCode.DATASET_OF_ANOTHER_RUN, f"announced for run {announcement.run!r}, this is {run!r}")
    if state.config.mode != "Generate" or name != state.config.generate.dataset:
        raise Refusal(
            ProblemCode.NO_SUCH_DATASET, f"data set {name!r} is not what run {run!r} (mode {state.config.mode}) makes"
        )
    try:
        card = state.store.get(keys.dataset_card(name))
    except NotFound as error:
        raise Refusal(ProblemCode.DATASET_NOT_STORED, f"{error}: write every file, then announce") from error
    found = hashlib.sha256(card).hexdigest()
    if found != announcement.card_digest:
        raise Refusal(
            ProblemCode.DATASET_CHANGED,
            f"{keys.dataset_card(name)} has SHA-256 {found[:12]}..., announced was {announcement.card_digest[:12]}...",
        )
    if open_steps := state.openable_steps():
        raise Refusal(ProblemCode.DATASET_TOO_EARLY, f"step {open_steps[0]} has no batch yet")
    state.ledger.append(DatasetPublished(card=found, name=name))
    get_logger().info("data set published", name=name, digest=found)


def note_progress(state: RunState, progress: TrainerProgress) -> None:
    """Keep what the trainer says that it is doing. Raises `Refusal` for another run's trainer."""
    if progress.run != state.config.run:
        raise Refusal(
            ProblemCode.TRAINER_OF_ANOTHER_RUN, f"progress is for run {progress.run!r}, this is {state.config.run!r}"
        )
    state.trainer = progress
    metrics = progress.metrics
    if metrics is not None and (state.last_step is None or metrics.step >= state.last_step.step):
        state.last_step = metrics


def _check_manifest(state: RunState, announcement: VersionAnnouncement) -> None:
    """The sealing manifest must be in the store, signed by the trainer, with the announced digest."""
    key = keys.version_weights(announcement.version)
    try:
        manifest = Signed[WeightsManifest].from_json(state.store.get(key)).verified(state.roster.keys["trainer"])
    except NotFound as error:
        raise Refusal(
            ProblemCode.VERSION_NOT_STORED, f"{key} is missing: publish every piece, then announce"
        ) from error
    except (BadSignature, ValueError) as error:
        raise Refusal(ProblemCode.MANIFEST_NOT_VALID, f"{key}: {str(error)[:500]}") from error
    if (manifest.run, manifest.version, manifest.sha256) != (
        state.config.run,
        announcement.version,
        announcement.weights_digest,
    ):
        raise Refusal(
            ProblemCode.VERSION_CHANGED,
            f"{key} is version {manifest.version} of run {manifest.run!r} with digest {manifest.sha256[:12]}...,"
            f" announced was {announcement.weights_digest[:12]}...",
        )
