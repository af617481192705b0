"""Where a run is, which attempt of the trainer should exist, and when a run's time is up: pure decisions of the TrainingRun reconciler.

The rules of the trainer's attempts, one a row of the tests:

- nothing before prepare has succeeded, nothing while suspended, nothing after the deadline;
- no new one while the run waits for something, because it makes no children then;
- an attempt whose template is no longer the desired state is deleted, and the next one made once it is gone;
- an attempt that failed for good is followed by another if it made a policy version;
- if it made none, it is followed by another after a pause that doubles, until `limit` of them in a row have failed: then the run has failed;
- deleting a failed Job is the way to say "try again", and restarts the count;
- a run is complete when version `steps` is announced, or its data set, whatever the Job then does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shoal.retries import doubled
from shoal_operator.children.training_run import Stage
from shoal_operator.engine.apply import hash_of, job_message, job_state
from shoal_operator.engine.cluster import Object

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 300.0
"""Between attempts that made nothing, as a kubelet's between restarts of a container."""


@dataclass(frozen=True)
class TrainerAttempt:
    """What is remembered of the trainer's current attempt.

    Attributes:
        number: of its Job.
        started_at_version: newest policy version when it began.
        failures: attempts in a row that failed without a new version.
        last_failed: number of the last attempt that was counted there.
    """

    number: int = 0
    started_at_version: int = 0
    failures: int = 0
    last_failed: int = 0


@dataclass(frozen=True)
class TrainerDecision:
    """Which attempt to build (None: none), what to remember, which Jobs to delete, and the Job with which the run has failed, if it has."""

    build: int | None
    remember: TrainerAttempt
    delete: tuple[str, ...] = ()
    failed: Object | None = None


def is_complete(steps: int | None, latest_version: int, *, said: bool, scored: bool = False) -> bool:
    """Version `v` is the weights after `v` steps: the run ends with version `steps`.

    A run that makes no versions (mode Generate, `steps` is None) is complete when its orchestrator once said so; one whose versions are `scored`
    (`spec.evaluation`) when its orchestrator says so of the last one.
    """
    if steps is None:
        return said
    return latest_version >= steps and (said or not scored)


def decide_stage(
    *,
    suspend: bool,
    complete: bool,
    late: bool,
    prepare: Object | None,
    prepared: bool,
    filter_failure: str = "",
    trainer_failed: bool,
) -> Stage:
    """The one stage that a run is in; the first that applies."""
    if suspend:
        return "suspended"
    if complete:
        return "complete"
    if late:
        return "failed"
    if not prepared:
        return "failed" if filter_failure or job_state(prepare) == "failed" else "preparing"
    return "failed" if trainer_failed else "running"


def decide_trainer(
    *,
    wanted: bool,
    complete: bool,
    jobs: Mapping[int, Object],
    remembered: TrainerAttempt,
    latest_version: int,
    template_hashes: Mapping[int, str],
    limit: int,
    now: datetime,
    waits: bool = False,
) -> TrainerDecision:
    """Which attempt of the trainer should exist.

    Args:
        wanted: the run is prepared, not suspended, and its time is not up.
        complete: nothing is left to train.
        jobs: live trainer Jobs by attempt, those being deleted too.
        remembered: from the status, which anyone may have edited: no more of it is taken than the Jobs and the versions allow.
        latest_version: newest announced policy version.
        template_hashes: hash of the Job that we would build, for each attempt in `jobs`.
        limit: attempts in a row that may fail without a new version.
        now: the time, for the pause between attempts.
        waits: the run waits for something before its children are made.
    """
    remembered = _bounded(remembered, jobs, latest_version)
    live = {number: job for number, job in jobs.items() if not job["metadata"].get("deletionTimestamp")}
    if not wanted:
        return TrainerDecision(None, remembered, tuple(job["metadata"]["name"] for job in live.values()))
    newest = max(jobs, default=remembered.number)
    if complete:
        # The last attempt ends by itself, after its last version has been announced.
        return TrainerDecision(None, remembered)
    if newest not in live:
        if jobs:
            return TrainerDecision(None, remembered, tuple(job["metadata"]["name"] for job in live.values()))
        if waits:
            return TrainerDecision(None, remembered)
        return TrainerDecision(newest + 1, _next_attempt(newest + 1, remembered, latest_version, limit))
    older = tuple(job["metadata"]["name"] for number, job in live.items() if number != newest)
    current = live[newest]
    # Made by us, but not remembered: the status write after it was lost.
    attempt = (
        remembered
        if remembered.number == newest
        else replace(remembered, number=newest, started_at_version=latest_version)
    )
    if hash_of(current) != template_hashes[newest]:
        return TrainerDecision(None, attempt, (*older, current["metadata"]["name"]))
    if job_state(current) == "failed":
        return _after_failure(current, attempt, older, latest_version, limit, now)
    return TrainerDecision(newest, attempt, older)


def _bounded(remembered: TrainerAttempt, jobs: Mapping[int, Object], latest_version: int) -> TrainerAttempt:
    """What may be true of what is remembered: no attempt after the last Job, no version after the last, no more failures than attempts."""
    number = min(remembered.number, max(jobs, default=remembered.number))
    return TrainerAttempt(
        number,
        min(remembered.started_at_version, latest_version),
        min(remembered.failures, number),
        min(remembered.last_failed, number),
    )


def _next_attempt(number: int, remembered: TrainerAttempt, latest_version: int, limit: int) -> TrainerAttempt:
    """What is remembered of a new attempt: the count of failures continues, unless a version was made or someone said "try again"."""
    began_anew = latest_version > remembered.started_at_version or remembered.failures >= limit
    failures = 0 if began_anew else remembered.failures
    return TrainerAttempt(number, latest_version, failures, remembered.last_failed)


def _after_failure(
    job: Object, attempt: TrainerAttempt, older: tuple[str, ...], latest_version: int, limit: int, now: datetime
) -> TrainerDecision:
    name = job["metadata"]["name"]
    if latest_version > attempt.started_at_version:
        return TrainerDecision(None, attempt, (*older, name))
    if attempt.last_failed != attempt.number:
        attempt = replace(attempt, failures=attempt.failures + 1, last_failed=attempt.number)
    if attempt.failures >= limit:
        return TrainerDecision(None, attempt, older, failed=job)
    ended = failed_at(job)
    if ended is not None and now < ended + timedelta(seconds=pause_seconds(attempt.failures)):
        return TrainerDecision(None, attempt, older)
    return TrainerDecision(None, attempt, (*older, name))


def pause_seconds(failures: int) -> float:
    """How long the next attempt waits after this number of attempts that made nothing."""
    return doubled(failures - 1, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


def failed_at(job: Object) -> datetime | None:
    """When a Job failed, from its condition."""
    conditions = job.get("status", {}).get("conditions", [])
    return parse_time(next((each.get("lastTransitionTime") for each in conditions if each["type"] == "Failed"), None))


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time as Kubernetes writes it, or None."""
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def time_is_up(start_time: str | None, deadline_seconds: int | None, now: datetime) -> bool:
    """Whether a run has exceeded its active deadline."""
    left = seconds_left(start_time, deadline_seconds, now)
    return left is not None and left <= 0


def bounded_time(text: str | None, earliest: str | None, now: datetime) -> str | None:
    """A remembered time, moved to between `earliest`, where that is known, and now; None for none, and for what nobody can read as a time."""
    found, first = parse_time(text), parse_time(earliest)
    if found is None:
        return None
    if found > now:
        return rfc3339(now)
    return earliest if first is not None and found < first else text


def rfc3339(time: datetime) -> str:
    """A time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_left(since: str | None, seconds: int | None, now: datetime) -> float | None:
    """What is left of some seconds that began at a time: 0 or less when they are over, None for no end."""
    began = parse_time(since)
    if began is None or seconds is None:
        return None
    return (began + timedelta(seconds=seconds) - now).total_seconds()


def failure_text(job: Object, pod_problem: str = "", last_words: str = "") -> str:
    """Why the run failed, and what to do.

    `pod_problem`: what the Job's pods say, which says more than the Job; `last_words`: what they said before they were gone.
    """
    name = job["metadata"]["name"]
    message = pod_problem or "; ".join(filter(None, [job_message(job) or "it failed as often as it may", last_words]))
    return f"Job {name}: {message}; read its log, and delete the Job to try again"
