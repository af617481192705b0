"""Where a run is and which attempt of the trainer should exist: pure decisions of the TrainingRun reconciler.

The rules of the trainer's attempts, one a row of the tests:

- nothing before prepare has succeeded, nothing while suspended;
- an attempt whose template is no longer what we want is deleted, and the next one made once it is gone;
- an attempt that failed for good (Kubernetes' backoff limit) is followed by another if it made a policy version, and fails the run if it made none;
- deleting a failed Job is the way to say "try again";
- a run is complete when version `steps` is announced, whatever the Job then does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal_operator.children.training_run import Stage
from shoal_operator.engine.apply import hash_of, job_message, job_state
from shoal_operator.engine.cluster import Object


@dataclass(frozen=True)
class Attempt:
    """What is remembered of the trainer's current attempt."""

    number: int = 0
    started_at_version: int = 0


@dataclass(frozen=True)
class TrainerDecision:
    """Which attempt to build (None: none), what to remember, which Jobs to delete, and why the run has failed, if it has."""

    build: int | None
    remember: Attempt
    delete: tuple[str, ...] = ()
    failure: str = ""


def is_complete(steps: int, latest_version: int) -> bool:
    """Version `v` is the weights after `v` steps: the run ends with version `steps`."""
    return latest_version >= steps


def decide_stage(
    *, suspend: bool, complete: bool, prepare: Object | None, prepared: bool, trainer_failure: str
) -> Stage:
    """The one stage that a run is in; the first that applies."""
    if suspend:
        return "suspended"
    if complete:
        return "complete"
    if not prepared:
        return "failed" if job_state(prepare) == "failed" else "preparing"
    return "failed" if trainer_failure else "running"


def decide_trainer(
    *,
    wanted: bool,
    complete: bool,
    jobs: Mapping[int, Object],
    remembered: Attempt,
    latest_version: int,
    template_hashes: Mapping[int, str],
) -> TrainerDecision:
    """Which attempt of the trainer should exist.

    Args:
        wanted: the run is prepared and not suspended.
        complete: nothing is left to train.
        jobs: live trainer Jobs by attempt, those being deleted too.
        remembered: from the status.
        latest_version: newest announced policy version.
        template_hashes: hash of the Job that we would build, for each attempt in `jobs`.
    """
    live = {number: job for number, job in jobs.items() if not job["metadata"].get("deletionTimestamp")}
    if not wanted:
        return TrainerDecision(None, remembered, tuple(job["metadata"]["name"] for job in live.values()))
    newest = max([remembered.number, *jobs])
    if complete:
        # The last attempt ends by itself, after its last version has been announced.
        return TrainerDecision(None, remembered)
    if newest not in live:
        if jobs:
            return TrainerDecision(None, remembered, tuple(job["metadata"]["name"] for job in live.values()))
        return TrainerDecision(newest + 1, Attempt(newest + 1, latest_version))
    older = tuple(job["metadata"]["name"] for number, job in live.items() if number != newest)
    current = live[newest]
    # Made by us, but not remembered: the status write after it was lost.
    attempt = remembered if remembered.number == newest else Attempt(newest, latest_version)
    if hash_of(current) != template_hashes[newest]:
        return TrainerDecision(None, attempt, (*older, current["metadata"]["name"]))
    if job_state(current) == "failed":
        if latest_version > attempt.started_at_version:
            return TrainerDecision(None, attempt, (*older, current["metadata"]["name"]))
        return TrainerDecision(None, attempt, older, failure_text(current))
    return TrainerDecision(newest, attempt, older)


def failure_text(job: Object) -> str:
    """Why the run failed, and what to do."""
    name = job["metadata"]["name"]
    message = job_message(job) or "it failed as often as it may"
    return f"Job {name}: {message}; read its log, and delete the Job to try again"
