"""Attempts of a trainer with several pods, which are only started again together; queues; a run's deadline and its time to live."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, holds, put, running, said, status

from shoal_operator.engine.apply import HASH_ANNOTATION
from shoal_operator.reconcile import reconcile
from shoal_operator.reconcile.decisions import (
    TrainerAttempt,
    TrainerDecision,
    decide_trainer,
    failure_text,
    pause_seconds,
    time_is_up,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SEVERAL = {"trainer": {"replicas": 4}}


def failed(number: int, seconds_ago: float) -> dict[str, Any]:
    """The Job of an attempt that failed some time ago, as it would be built now."""
    when = (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Failed", "status": "True", "message": "rank 3 died", "lastTransitionTime": when}
    metadata = {"name": f"sums-trainer-{number}", "annotations": {HASH_ANNOTATION: "same"}}
    return {"metadata": metadata, "status": {"conditions": [condition]}}


def decide(
    jobs: dict[int, dict[str, Any]], remembered: TrainerAttempt, version: int = 0, limit: int = 3
) -> TrainerDecision:
    return decide_trainer(
        wanted=True,
        complete=False,
        jobs=jobs,
        remembered=remembered,
        latest_version=version,
        template_hashes=dict.fromkeys(jobs, "same"),
        limit=limit,
        now=NOW,
    )


def test_an_attempt_without_a_version_is_followed_by_another_after_a_pause() -> None:
    early = decide({1: failed(1, seconds_ago=9)}, TrainerAttempt(1))
    assert (early.delete, early.failed) == ((), None)
    assert early.remember == TrainerAttempt(1, 0, failures=1, last_failed=1)
    later = decide({1: failed(1, seconds_ago=11)}, early.remember)
    assert later.delete == ("sums-trainer-1",)
    assert later.remember == early.remember, "one failure is counted once"
    assert decide({}, later.remember) == TrainerDecision(2, TrainerAttempt(2, 0, failures=1, last_failed=1))


def test_the_pause_doubles_up_to_five_minutes() -> None:
    assert [pause_seconds(failures) for failures in (1, 2, 3, 5, 6, 9, 10_000)] == [10, 20, 40, 160, 300, 300, 300]


def test_a_run_fails_after_the_limit_of_failures_in_a_row() -> None:
    last = decide({3: failed(3, seconds_ago=999)}, TrainerAttempt(3, 0, failures=2, last_failed=2))
    assert last.failed is not None
    assert failure_text(last.failed) == "Job sums-trainer-3: rank 3 died; read its log, and delete the Job to try again"
    assert last.delete == ()


def test_a_new_version_resets_the_count_of_failures() -> None:
    after = decide({2: failed(2, seconds_ago=0)}, TrainerAttempt(2, 5, failures=2, last_failed=1), version=6)
    assert after.delete == ("sums-trainer-2",), "no pause: the trainer works"
    assert decide({}, after.remember, version=6).remember == TrainerAttempt(3, 6, failures=0, last_failed=1)


def test_deleting_the_last_failed_job_resets_the_count_of_failures() -> None:
    assert decide({}, TrainerAttempt(3, 0, failures=3, last_failed=3)).remember == TrainerAttempt(
        4, 0, failures=0, last_failed=3
    )


def test_no_attempt_is_counted_while_the_run_waits_for_something() -> None:
    waits = decide_trainer(
        wanted=True, complete=False, jobs={}, remembered=TrainerAttempt(2, 5, 1, 1), latest_version=7, template_hashes={}, limit=3,
        now=NOW, waits=True,
    )  # fmt: skip
    assert waits == TrainerDecision(None, TrainerAttempt(2, 5, 1, 1))


def test_a_run_with_several_trainer_pods_survives_a_lost_attempt(cluster: MemoryCluster) -> None:
    put(cluster, **SEVERAL)
    running(cluster)
    cluster.job_ends("sums-trainer-1", "Failed", "a node was lost")
    cluster.settle()
    cluster.pods_end()
    cluster.settle()
    assert "sums-trainer-2" in cluster.names("Job")
    assert "Failed" not in holds(cluster)
    assert status(cluster)["trainer"]["failures"] == 1


def test_all_ranks_must_be_ready(cluster: MemoryCluster) -> None:
    put(cluster, **SEVERAL)
    running(cluster)
    assert said(cluster, "TrainerReady")["message"] == "Job sums-trainer-1: 1 of 4 pods are ready"
    cluster.objects.set_status("Job", "sums-trainer-1", {"active": 4, "ready": 4})
    cluster.settle()
    assert "Ready" in holds(cluster)


# Deadline and time to live.


@pytest.mark.parametrize(
    ("start", "deadline", "expected"),
    [
        ("2026-11-21T11:59:00Z", 60, True),
        ("2026-11-21T11:59:01Z", 60, False),
        ("2026-11-21T11:59:00Z", None, False),
        (None, 60, False),
        ("yesterday", 60, False),
    ],
)
def test_a_deadline_counts_from_the_start(start: str | None, deadline: int | None, expected: bool) -> None:
    assert time_is_up(start, deadline, NOW) is expected


def test_a_run_that_takes_too_long_fails_and_stops(cluster: MemoryCluster) -> None:
    put(cluster, activeDeadlineSeconds=3600)
    running(cluster)
    cluster.time += timedelta(hours=1)
    cluster.settle()
    assert "Failed" in holds(cluster)
    assert said(cluster, "Failed")["reason"] == "DeadlineExceeded"
    assert said(cluster, "Ready")["message"] == (
        "the run was active for longer than 3600 s (spec.activeDeadlineSeconds); raise it to continue"
    )
    cluster.pods_end()
    cluster.settle()
    assert cluster.names("Job") == ["sums-prepare"]
    put(cluster, activeDeadlineSeconds=36000)
    cluster.settle()
    assert "Failed" not in holds(cluster)
    assert "completionTime" not in status(cluster)


def test_suspension_restarts_the_deadline(cluster: MemoryCluster) -> None:
    put(cluster, activeDeadlineSeconds=3600)
    running(cluster)
    put(cluster, activeDeadlineSeconds=3600, suspend=True)
    cluster.settle()
    assert "startTime" not in status(cluster)
    cluster.time += timedelta(hours=2)
    put(cluster, activeDeadlineSeconds=3600)
    cluster.settle()
    assert "Failed" not in holds(cluster)


def test_a_complete_run_has_met_its_deadline(cluster: MemoryCluster) -> None:
    put(cluster, activeDeadlineSeconds=3600)
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.time += timedelta(hours=2)
    cluster.settle()
    assert "Complete" in holds(cluster)
    assert "Failed" not in holds(cluster)


def test_a_finished_run_is_deleted_after_its_time_to_live(cluster: MemoryCluster) -> None:
    put(cluster, ttlSecondsAfterFinished=600)
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    again = reconcile(cluster, "TrainingRun", "sums")
    assert again is not None
    assert 500 < again <= 600
    assert cluster.objects.deleting() == []
    cluster.time += timedelta(seconds=600)
    reconcile(cluster, "TrainingRun", "sums")
    assert "sums" in [each["metadata"]["name"] for each in cluster.objects.deleting()]


def test_a_run_without_a_time_to_live_stays(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.time += timedelta(days=3650)
    assert reconcile(cluster, "TrainingRun", "sums") is None
    assert cluster.objects.deleting() == []


def test_more_steps_save_a_finished_run_whose_time_to_live_is_over(
    cluster: MemoryCluster,
) -> None:
    """The operator was away when the author went on with a finished run."""
    put(cluster, ttlSecondsAfterFinished=600)
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.time += timedelta(seconds=6000)
    put(cluster, ttlSecondsAfterFinished=600, steps=9)
    cluster.settle()
    assert "sums" not in {each["metadata"]["name"] for each in cluster.objects.deleting()}
    assert "Complete" not in holds(cluster)


def test_an_edit_without_new_work_does_not_save_a_finished_run(cluster: MemoryCluster) -> None:
    put(cluster, ttlSecondsAfterFinished=600)
    running(cluster)
    at_version(cluster, 4)
    cluster.settle()
    cluster.time += timedelta(seconds=6000)
    put(cluster, ttlSecondsAfterFinished=500)
    reconcile(cluster, "TrainingRun", "sums")
    assert "sums" in {each["metadata"]["name"] for each in cluster.objects.deleting()}
