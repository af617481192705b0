"""How containers ended that failed stays in the status of their run when their pods are gone: cause, signal and log, without secrets."""

from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, put, running, said, status

from shoal_operator.api.last_words import MOST_CAUSES, MOST_WORDS
from shoal_operator.api.training_run import TrainingRunStatus
from shoal_operator.reconcile.last_words import failed_containers, last_lines, merged, without_secrets


def ended(
    code: int, message: str = "", reason: str = "Error", at: str = "2026-11-21T00:00:00Z", **more: Any
) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": at, **more}}


def pod(
    name: str, state: dict[str, Any], component: str = "trainer", field: str = "state", **metadata: Any
) -> dict[str, Any]:
    labels = {"shoal.dev/run": "sums", "shoal.dev/component": component}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, **metadata},
        "status": {"phase": "Running", "containerStatuses": [{"name": component, field: state}]},
    }


def test_the_causes_of_a_failed_trainer_outlive_its_pods(cluster: MemoryCluster) -> None:
    put(cluster, trainer={"replicas": 2}, failurePolicy={"maxTrainerAttempts": 1})
    running(cluster)
    log = "".join(f"line {number}\n" for number in range(30))
    cluster.pods = {
        "a": pod("sums-trainer-1-0", ended(1, "a peer is gone", at="2026-11-21T00:00:09Z")),
        "b": pod("sums-trainer-1-1", ended(137, log, "OOMKilled", at="2026-11-21T00:00:10Z")),
    }
    cluster.objects.set_status("Job", "sums-trainer-1", {"active": 2, "ready": 0})
    cluster.settle()
    cluster.pods = {}
    cluster.job_ends("sums-trainer-1", "Failed", "Job has reached the specified backoff limit")
    cluster.settle()
    assert said(cluster, "Failed")["message"] == (
        "Job sums-trainer-1: Job has reached the specified backoff limit; pod sums-trainer-1-1: container trainer: OOMKilled, exit code 137,"
        " SIGKILL: line 29; pod sums-trainer-1-0: container trainer: exit code 1: a peer is gone; read its log, and delete the Job to try again"
    )
    kept = status(cluster)["lastFailures"]
    assert [each["pod"] for each in kept] == ["sums-trainer-1-1", "sums-trainer-1-0"]
    assert kept[0]["lines"].splitlines() == [f"line {number}" for number in range(10, 30)]
    assert (kept[0]["exitCode"], kept[0]["signal"], kept[0]["reason"]) == (137, "SIGKILL", "OOMKilled")
    TrainingRunStatus.model_validate(status(cluster))


def test_a_worker_that_crashes_again_and_again_writes_the_status_once(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 1)
    cluster.objects.set_status("StatefulSet", "sums-pool", {"replicas": 2, "readyReplicas": 1, "observedGeneration": 1})
    cluster.settle()
    for second in range(3):
        crash = ended(1, f"at {second}", at=f"2026-11-21T00:01:0{second}Z")
        cluster.pods["w"] = pod(f"sums-pool-{second}", crash, "pool", field="lastState")
        cluster.settle()
    assert [each["lines"] for each in status(cluster)["lastFailures"]] == ["at 0"]
    crash = ended(1, "later", at="2026-11-21T00:20:00Z")
    cluster.pods["w"] = pod("sums-pool-0", crash, "pool", field="lastState")
    cluster.settle()
    assert [each["lines"] for each in status(cluster)["lastFailures"]] == ["later"]


def test_what_ended_as_it_was_told_to_is_no_failure() -> None:
    told = {"deletionTimestamp": "2026-11-21T00:00:00Z"}
    assert failed_containers([pod("a", ended(0)), pod("b", ended(143), **told)]) == []
    assert [each.signal for each in failed_containers([pod("c", ended(143)), pod("d", ended(137), **told)])] == [
        "SIGTERM",
        "SIGKILL",
    ]


def test_an_evicted_pod_says_why_without_a_container() -> None:
    evicted: dict[str, Any] = {
        "metadata": {"name": "sums-pool-0", "creationTimestamp": "2026-11-21T00:00:00Z"},
        "status": {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"},
    }
    (words,) = failed_containers([evicted])
    assert (words.reason, words.lines, words.exit_code) == ("Evicted", "the node was low on memory", None)


def test_a_status_keeps_no_more_than_the_newest_causes() -> None:
    found = failed_containers(
        pod("a", ended(code, "x" * 9000, at=f"2026-11-21T00:00:{code:02}Z")) for code in range(1, 40)
    )
    kept = merged([{"pod": 7}, "no object"], found)
    assert [each.exit_code for each in kept] == list(range(39, 39 - MOST_CAUSES, -1))
    assert all(len(each.lines) <= MOST_WORDS for each in kept)
    assert merged([each.model_dump(mode="json", by_alias=True) for each in kept], []) == kept


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIH\n-----END PRIVATE KEY-----", "MC4CAQ"),
        ("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIH", "MC4CAQ"),
        ("Authorization: Bearer abc.def-123", "abc.def"),
        ("cannot log in with hf_abcdefghijkl", "hf_abc"),
        ("secretKey=minio12345", "minio12345"),
        ('{"password": "p4ss-word"}', "p4ss"),
        ('{\\"token\\": \\"p4ss-word\\"}', "p4ss"),
        ("http://user:pa55word@store:9000/bucket", "pa55word"),
        ("http://user:pa/55w@ord@store:9000/bucket", "55w"),
        ("redis://:s3cretpw@redis:6379", "s3cretpw"),
        ("https://s3crettoken@hub.example/x", "s3crettoken"),
        ("password=2024-Summer!", "Summer"),
        ("secretKey=7/xYzAbc", "xYzAbc"),
        ("secret-key=7/xYzAbc", "xYzAbc"),
        ("token: 123456789:AAEabc", "AAEabc"),
        ("token=3.14abc", "3.14abc"),
        ("PWD=hunter22", "hunter22"),
        ('{"passphrase": "hunter22"}', "hunter22"),
        (f"run secret {'ab' * 32}", "abab"),
        ("AWS AKIAIOSFODNN7EXAMPLE", "AKIAIOS"),
        ("https://s3/x?X-Amz-Signature=0a1b2c3d4e", "0a1b2c3d"),
    ],
)  # fmt: skip
def test_secrets_in_a_log_are_hidden(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in last_lines(f"before\n{text}\n")


@pytest.mark.parametrize(
    "text",
    [
        "secrets/role.pem is missing",
        "max_tokens: 512, token=7",
        "token: 51200, token=0.125; token=2048",
        '{"token": 51200}',
        "http://orchestrator:8000/v1/keys of hub.example/@scope",
        "CUDA out of memory. Tried to allocate 20.00 GiB",
        "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py:1751 in _call_impl",
        f"image shoal/trainer@sha256:{'ab' * 32}",
    ],
)
def test_words_that_are_no_secrets_stay(text: str) -> None:
    assert without_secrets(text) == text
