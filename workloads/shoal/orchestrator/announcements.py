"""What the trainer's pod says: announced versions, checked against the sealed manifest in the store, a written data set, and its progress."""

import hashlib

from shoal.contracts import keys
from shoal.contracts.problems import ProblemCode, Refusal
from shoal.contracts.protocol import DatasetAnnouncement, TrainerProgress, VersionAnnouncement
from shoal.contracts.signed import BadSignature, Signed
from shoal.contracts.weights import WeightsManifest
from shoal.ledger.entries import DatasetPublished, VersionPublished
from shoal.orchestrator.run_state import RunState
from shoal.orchestrator.work.open_work import openable_steps
from shoal.storage import NotFound
from shoal.telemetry import get_logger


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
                f"version {version} is made from step {version - 1}, but that step has no batch yet (mode {state.config.mode})",
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
    if version == state.view.latest_version:
        state.version_bytes = announcement.total_size


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
        raise Refusal(ProblemCode.DATASET_NOT_STORED, f"{error}: write every file before announcing") from error
    found = hashlib.sha256(card).hexdigest()
    if found != announcement.card_digest:
        raise Refusal(
            ProblemCode.DATASET_CHANGED,
            f"{keys.dataset_card(name)} has SHA-256 {found[:12]}..., announced was {announcement.card_digest[:12]}...",
        )
    if open_steps := openable_steps(state):
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
        manifest = Signed[WeightsManifest].from_json(state.store.get(key)).verified(state.keys.of("trainer"))
    except NotFound as error:
        raise Refusal(
            ProblemCode.VERSION_NOT_STORED, f"{key} is missing: publish every piece before announcing"
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
