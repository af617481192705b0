"""A run that makes no progress says so, with the cause, since when and what to do; one that works, rests or prepares does not."""

from datetime import timedelta
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, holds, neighbour, put, record_complete, running, said, status

from shoal.contracts.answers import LearningProgress
from shoal.contracts.protocol import DatasetProgress
from shoal_operator.engine.api_server import ApiError
from shoal_operator.engine.cluster import ClusterError
from shoal_operator.engine.events import transitions
from shoal_operator.reconcile import reconcile
from shoal_operator.reconcile.decisions import rfc3339
from shoal_operator.reconcile.stalled import PREPARE_SECONDS, grown

HOUR = 3600
NO_SIGNAL = LearningProgress(
    groups=64, decided=True, reason="AlwaysWrong", message="of the last 64 groups none carries"
)


def later(cluster: MemoryCluster, seconds: float = HOUR) -> None:
    cluster.time += timedelta(seconds=seconds)
    reconcile(cluster, "TrainingRun", "sums")


def works(cluster: MemoryCluster, **figures: Any) -> None:
    """A run with all its parts, two healthy nodes and nothing that waits."""
    running(cluster, version=1)
    at_version(cluster, 1, **{"nodes": {"Healthy": 2}, "groups_accepted_total": 8, **figures})
    cluster.settle()


def ready_pods(cluster: MemoryCluster, kind: str, name: str, ready: int) -> None:
    found = cluster.get(kind, name)
    assert found is not None
    cluster.objects.set_status(kind, name, {**found["status"], "readyReplicas": ready})


def no_relay(cluster: MemoryCluster) -> None:
    ready_pods(cluster, "StatefulSet", "sums-relay", 0)


def no_validator(cluster: MemoryCluster) -> None:
    ready_pods(cluster, "Deployment", "sums-validator", 0)
    at_version(cluster, 1, nodes={"Healthy": 2}, groups_accepted_total=8, files_pending=3)


def no_worker(cluster: MemoryCluster) -> None:
    ready_pods(cluster, "StatefulSet", "sums-pool", 0)
    at_version(cluster, 1, nodes={"Dead": 2}, groups_accepted_total=8)


def silent(cluster: MemoryCluster) -> None:
    cluster.progress = None


def no_orchestrator(cluster: MemoryCluster) -> None:
    ready_pods(cluster, "Deployment", "sums-orchestrator", 0)


def trainer_pending(cluster: MemoryCluster) -> None:
    cluster.objects.set_status("Job", "sums-trainer-1", {"active": 1, "ready": 0})


def store_deleted(cluster: MemoryCluster) -> None:
    cluster.objects.mark_deleted("PersistentVolumeClaim", "sums-store", cluster.time.isoformat())


def says(**figures: Any) -> Any:
    def play(cluster: MemoryCluster) -> None:
        known = {"nodes": {"Healthy": 2}, "groups_accepted_total": 8, **figures}
        at_version(cluster, 1, **known)
        if "open_step" in figures and cluster.progress is not None:
            cluster.progress = cluster.progress.model_copy(update={"open_step": figures["open_step"]})

    return play


def trainer_waiting(cluster: MemoryCluster) -> None:
    says(waiting_for="version 2 to be announced", trainer_phase="update")(cluster)
    assert cluster.progress is not None
    cluster.progress = cluster.progress.model_copy(update={"open_step": None})


CAUSES = {
    "store away": (says(store_away_since=1790000000.0), "StoreAway", "2026-09-21T14:13:20Z"),
    "store deleted": (store_deleted, "StoreAway", "copy the store before any pod ends"),
    "orchestrator silent": (silent, "OrchestratorSilent", "read its log"),
    "orchestrator not ready": (no_orchestrator, "OrchestratorSilent", "see OrchestratorReady"),
    "paused": (says(trainer_phase="paused", trainer_note="gradient norm"), "Paused", "acknowledgedVersion"),
    "trainer pending": (trainer_pending, "TrainerPending", "see TrainerReady"),
    "trainer waiting": (trainer_waiting, "TrainerWaiting", "(phase update)"),
    "sampling cap": (says(stalled_on_signal="sampled 4 times"), "NoSignal", "sampled 4 times"),
    "no signal": (says(learning=NO_SIGNAL), "NoSignal", "of the last 64 groups none carries"),
    "no relay": (no_relay, "NoRelay", "see RelayServerReady"),
    "no validator": (no_validator, "NoValidator", "3 files wait for a verdict"),
    "queue": (says(files_pending=900), "ValidationQueue", "900 files wait"),
    "no worker": (no_worker, "NoWorker", "0 of 2 pods are ready"),
    "no file": (says(reject_reasons={"computation": 3}), "NoFileAccepted", "computation 3"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_a_run_without_progress_names_the_cause(cluster: MemoryCluster, case: str) -> None:
    play, reason, words = CAUSES[case]
    works(cluster)
    since = status(cluster)["lastProgressTime"]
    play(cluster)
    cluster.settle()
    later(cluster, HOUR - 120)
    assert said(cluster, "Stalled")["status"] == "False"
    before = status(cluster)
    later(cluster, 240)
    found = said(cluster, "Stalled")
    assert (found["status"], found["reason"]) == ("True", reason), found
    assert words in found["message"]
    assert f"no progress since {since}, for more than 1 h 00 min" in found["message"]
    assert "Ready" not in holds(cluster)
    assert status(cluster)["phase"] in ("Stalled", "Paused")
    assert status(cluster)["lastProgressTime"] == since
    warnings = [each.note for each in transitions(before, status(cluster)) if each.type == "Warning"]
    assert any(note.startswith(f"Stalled is True: {reason}: ") for note in warnings), warnings


@pytest.mark.parametrize(
    "more",
    [{"latest_version": 2}, {"open_step": 2}, {"groups_accepted_total": 9}, {"open_step": None, "files_accepted": 1}],
)
def test_any_result_is_progress_and_ends_the_stall(cluster: MemoryCluster, more: dict[str, Any]) -> None:
    works(cluster)
    later(cluster, HOUR + 60)
    assert "Stalled" in holds(cluster)
    assert cluster.progress is not None
    cluster.progress = cluster.progress.model_copy(update=more)
    cluster.settle()
    assert "Stalled" not in holds(cluster)
    later(cluster, HOUR + 60)
    assert "Stalled" in holds(cluster)


@pytest.mark.parametrize("less", [{"files_accepted": 100}, {"files_rejected": 9}, {"groups_dropped_total": 64}])
def test_files_without_signal_are_no_progress(cluster: MemoryCluster, less: dict[str, Any]) -> None:
    works(cluster)
    since = status(cluster)["lastProgressTime"]
    says(**less)(cluster)
    later(cluster)
    assert status(cluster)["lastProgressTime"] == since


def test_a_restarted_orchestrator_that_says_the_same_again_is_no_progress(cluster: MemoryCluster) -> None:
    works(cluster)
    since, said_before = status(cluster)["lastProgressTime"], cluster.progress
    cluster.progress = None
    later(cluster, 100)
    cluster.progress = said_before
    later(cluster, 100)
    assert status(cluster)["lastProgressTime"] == since


def test_a_restarted_orchestrator_that_knows_less_for_a_while_is_no_progress(cluster: MemoryCluster) -> None:
    sampled = DatasetProgress(name="sums", steps=9, steps_collected=3)
    works(cluster, trainer_phase="wait", files_accepted=64, dataset=sampled)
    since, knows = status(cluster)["lastProgressTime"], cluster.progress
    assert knows is not None
    silent_trainer = {"trainer_phase": "", "dataset": None}
    nothing_read = {"latest_version": None, "open_step": None, "groups_accepted_total": 0, "files_accepted": 0}
    for lacks in ({**silent_trainer, **nothing_read}, silent_trainer, {}):
        cluster.progress = knows.model_copy(update=lacks)
        later(cluster, 100)
        assert status(cluster)["lastProgressTime"] == since, lacks
        assert status(cluster)["dataset"]["slicesCollected"] == 3
    cluster.progress = knows.model_copy(update={"dataset": sampled.model_copy(update={"steps_collected": 4})})
    later(cluster, 100)
    assert status(cluster)["lastProgressTime"] > since


def test_a_run_that_rests_or_ended_is_not_stalled_and_starts_its_clock_anew(cluster: MemoryCluster) -> None:
    works(cluster)
    put(cluster, suspend=True)
    later(cluster, 5 * HOUR)
    assert said(cluster, "Stalled") == {**said(cluster, "Stalled"), "status": "False", "reason": "Suspended"}
    assert "lastProgressTime" not in status(cluster)
    put(cluster)
    cluster.settle()
    cluster.pods_start()
    later(cluster, HOUR - 120)
    assert "Stalled" not in holds(cluster)
    at_version(cluster, 4)
    later(cluster, 5 * HOUR)
    assert said(cluster, "Stalled")["reason"] == "Complete"
    assert status(cluster)["eta"] == "0 s"


def test_preparation_has_a_longer_time_of_its_own_unless_something_keeps_it(cluster: MemoryCluster) -> None:
    cluster.settle()
    later(cluster, PREPARE_SECONDS - 120)
    assert "Stalled" not in holds(cluster)
    later(cluster, 300)
    assert said(cluster, "Stalled")["reason"] == "PrepareSlow"
    cluster.job_ends("sums-prepare", "Complete")
    cluster.settle()
    assert "Stalled" not in holds(cluster), "it has just begun to work"


def test_a_preparation_whose_pods_are_refused_or_that_waits_is_stalled_by_the_run_s_deadline(
    cluster: MemoryCluster,
) -> None:
    put(cluster, model={"run": "other"}, progressDeadlineSeconds=60)
    cluster.settle()
    later(cluster, 120)
    assert said(cluster, "Stalled")["reason"] == "Waiting"
    assert "other" in said(cluster, "Stalled")["message"]
    put(cluster, progressDeadlineSeconds=60)
    cluster.warnings["sums-prepare"] = "FailedCreate", "exceeded quota"
    cluster.settle()
    later(cluster, 120)
    assert said(cluster, "Stalled")["reason"] == "PodsRefused"


@pytest.mark.parametrize("filters", [False, True], ids=["another run", "its own filter"])
def test_nothing_is_due_while_another_run_works_for_it_and_then_it_has_its_whole_time(
    cluster: MemoryCluster, filters: bool
) -> None:
    other = "sums-filter" if filters else "start"
    if filters:
        put(cluster, tasks={"environment": "arithmetic", "offlineFilter": {"samples": 6}})
    else:
        neighbour(cluster, "start")
        put(cluster, model={"run": "start"})
    later(cluster)
    later(cluster, 9 * HOUR)
    assert (said(cluster, "Stalled")["status"], said(cluster, "Progressing")["reason"]) == ("False", "Waiting")
    before = cluster.get("TrainingRun", other)
    assert before is not None
    is_now(cluster, other, "Stalled")
    later(cluster)
    later(cluster, HOUR + 60)
    assert said(cluster, "Stalled")["reason"] == "Waiting"
    is_now(cluster, other)
    later(cluster, 9 * HOUR)
    assert "Stalled" not in holds(cluster)
    is_now(cluster, other, "Complete")
    for seconds in (60, 60, PREPARE_SECONDS - 300):
        later(cluster, seconds)
        assert "Stalled" not in holds(cluster)
    assert "sums-prepare" in cluster.names("Job")
    later(cluster, 300)
    assert said(cluster, "Stalled")["reason"] == "PrepareSlow"


def is_now(cluster: MemoryCluster, name: str, *conditions: str) -> None:
    """What its own reconcile says of another run."""
    said_there = [{"type": each, "status": "True", "reason": "R", "message": ""} for each in conditions]
    cluster.objects.set_status("TrainingRun", name, {"conditions": said_there})
    if "Complete" in conditions:
        record_complete(cluster, name)


@pytest.mark.parametrize("other", [["Failed"], ["Stalled"], {"suspend": True}], ids=str)
def test_a_run_that_waits_for_one_that_does_not_work_is_stalled_by_its_deadline(
    cluster: MemoryCluster, other: Any
) -> None:
    if isinstance(other, dict):
        neighbour(cluster, "start", **other)
    else:
        neighbour(cluster, "start", *other)
    put(cluster, model={"run": "start"})
    later(cluster)
    later(cluster, HOUR + 60)
    assert said(cluster, "Stalled")["reason"] == "Waiting"


def test_a_preparation_that_was_deleted_to_try_again_has_its_whole_time(cluster: MemoryCluster) -> None:
    cluster.settle()
    later(cluster, PREPARE_SECONDS + 60)
    assert "Stalled" in holds(cluster)
    cluster.objects.remove("Job", "sums-prepare")
    for seconds in (10, 10, PREPARE_SECONDS - 300):
        later(cluster, seconds)
        assert "Stalled" not in holds(cluster)
    later(cluster, 600)
    assert said(cluster, "Stalled")["reason"] == "PrepareSlow"


def failing(cluster: MemoryCluster, seconds: float) -> None:
    with pytest.raises(ClusterError):
        later(cluster, seconds)


def test_a_run_whose_reconcile_fails_is_stalled_by_its_deadline_and_not_while_it_is_suspended(
    cluster: MemoryCluster,
) -> None:
    works(cluster)
    since = status(cluster)["lastProgressTime"]
    cluster.objects.remove("StatefulSet", "sums-redis")
    cluster.refuses["StatefulSet/sums-redis"] = ApiError("403 Forbidden: exceeded quota", 403)
    failing(cluster, HOUR - 120)
    assert "Stalled" not in holds(cluster)
    failing(cluster, 240)
    found = said(cluster, "Stalled")
    assert (found["status"], found["reason"]) == ("True", "ReconcileFailed")
    assert f"no progress since {since}, for more than 1 h 00 min: 403 Forbidden" in found["message"]
    put(cluster, suspend=True)
    failing(cluster, 60)
    assert said(cluster, "Stalled")["reason"] == "Suspended"
    put(cluster)
    failing(cluster, 60)
    failing(cluster, HOUR - 120)
    assert "Stalled" not in holds(cluster)


def test_a_time_that_somebody_wrote_decides_at_most_the_condition(cluster: MemoryCluster) -> None:
    works(cluster)
    for lie in ("2099-01-01T00:00:00Z", "soon", "2020-01-01T00:00:00Z"):
        cluster.objects.set_status("TrainingRun", "sums", {**status(cluster), "lastProgressTime": lie})
        reconcile(cluster, "TrainingRun", "sums")
        shown = status(cluster)["lastProgressTime"]
        assert status(cluster)["startTime"] <= shown <= rfc3339(cluster.time)
        assert cluster.names("Job") == ["sums-prepare", "sums-trainer-1"]


def test_a_status_of_an_operator_that_knew_no_progress_gives_a_run_its_whole_time(cluster: MemoryCluster) -> None:
    works(cluster)
    cluster.time += timedelta(days=2)
    old = {key: value for key, value in status(cluster).items() if key != "lastProgressTime"}
    cluster.objects.set_status("TrainingRun", "sums", old)
    cluster.settle()
    assert "Stalled" not in holds(cluster)


def test_a_status_that_nothing_changed_is_not_written_again_while_a_run_is_stalled(cluster: MemoryCluster) -> None:
    works(cluster)
    later(cluster, 2 * HOUR)
    written = cluster.status_writes
    for _ in range(20):
        reconcile(cluster, "TrainingRun", "sums")
    assert cluster.status_writes == written


def test_a_slice_of_a_data_set_and_an_accepted_file_are_progress_of_sampling_a_table() -> None:
    assert grown({"accepted": 1, "step": 0}, {"accepted": 2, "step": 0}, "Generate")
    assert grown({"dataset": {"slicesCollected": 1}}, {"dataset": {"slicesCollected": 2}}, "Generate")
    assert not grown({"dataset": {"slicesCollected": 2}}, {"dataset": {"slicesCollected": 2}}, "Generate")
    assert grown({}, {"policyVersion": 0}, "SFT")
    assert not grown({"policyVersion": 9}, {"policyVersion": 3}, "SFT"), "somebody had written 9"
