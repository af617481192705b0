"""What an administrator is told on a bad day, on a real API server: pods that were refused, a first pass that failed, a status written over."""

from typing import Any

import hollow_node
import pytest
from cluster_story import Story
from kube_client import Kube
from operator_process import OperatorProcess

from shoal_operator.engine.cluster import CHILD_KINDS
from shoal_operator.engine.kinds import OWN

pytestmark = pytest.mark.usefixtures("operator")


def no_more_pods(story: Story, kube: Kube) -> None:
    metadata = {"name": "full", "namespace": story.namespace}
    hard = {"pods": "0"}
    kube.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}})
    # The controller that would count is not run here.
    status = {"status": {"hard": hard, "used": hard}}
    kube.merge("ResourceQuota", "full", story.namespace, status, sub="status")


def wait_event(story: Story, name: str, said: str) -> None:
    def told() -> list[Any]:
        return [
            each
            for each in story.kube.list("Event", story.namespace)
            if each["regarding"]["name"] == name and each["reason"] == "NotReady" and said in each.get("note", "")
        ]

    story.wait_for(f"an Event about {name} that says {said}", told)


def test_pods_that_a_quota_refuses_are_explained_by_every_kind_of_workload(story: Story, kube: Kube) -> None:
    no_more_pods(story, kube)
    story.create()
    story.wait_condition("TrainingRun", "sums", "Prepared", "False", "exceeded quota")  # a Job
    story.wait_condition("TrainingRun", "sums", "Ready", "False", "PodsRefused")
    wait_event(story, "sums", "exceeded quota")
    status = story.get("TrainingRun", "sums")["status"]
    assert (status["phase"], status["observedGeneration"]) == ("Preparing", 1)


def test_pods_that_a_quota_refuses_later_are_explained(story: Story, kube: Kube) -> None:
    story.running()
    no_more_pods(story, kube)
    for pod in kube.list("Pod", story.namespace, "shoal.dev/run=sums"):
        if pod["metadata"]["labels"]["shoal.dev/component"] in ("pool", "orchestrator"):
            kube.delete("Pod", pod["metadata"]["name"], story.namespace, now=True)
    story.wait_condition("TrainingRun", "sums", "OrchestratorReady", "False", "exceeded quota")  # a Deployment
    story.wait_condition("InferencePool", "sums-pool", "Ready", "False", "exceeded quota")  # a StatefulSet
    story.wait_condition("TrainingRun", "sums", "InferencePoolReady", "False", "exceeded quota")
    wait_event(story, "sums", "exceeded quota")


def test_a_run_whose_first_pass_fails_has_a_phase_a_generation_and_an_event(story: Story, kube: Kube) -> None:
    metadata = {"name": "sums-roster", "namespace": story.namespace, "labels": {}}
    metadata["labels"] = {"app.kubernetes.io/managed-by": "shoal-operator", "shoal.dev/run": "sums"}
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"roster.json": "e30="}})
    story.create()
    story.wait_condition("TrainingRun", "sums", "Ready", "False", "ReconcileFailed")
    status = story.get("TrainingRun", "sums")["status"]
    assert (status["phase"], status["observedGeneration"]) == ("Blocked", 1)
    wait_event(story, "sums", "sums-roster")


def test_a_status_that_was_written_over_completes_nothing(story: Story, kube: Kube) -> None:
    story.running()
    story.progress(open_step=1, latest_version=1)
    story.wait_field("TrainingRun", "sums", "status.policyVersion", 1)
    for _ in range(2):  # with an orchestrator that answers, then with one that is away
        kube.merge("TrainingRun", "sums", story.namespace, {"status": {"policyVersion": 999}}, sub="status")
        written = int(story.get("TrainingRun", "sums")["metadata"]["resourceVersion"])
        story.edit(ttlSecondsAfterFinished=written)  # some edit, to see that it was reconciled
        generation = story.get("TrainingRun", "sums")["metadata"]["generation"]
        story.wait_field("TrainingRun", "sums", "status.observedGeneration", generation)
        assert story.condition("TrainingRun", "sums", "Complete")["status"] == "False"
        assert story.get("TrainingRun", "sums")["status"]["phase"] == "Running"
        story.orchestrators.hush(story.namespace, "sums")


def test_a_part_whose_status_was_written_over_is_believed_by_nobody_for_long(story: Story, kube: Kube) -> None:
    story.running()
    ready = story.get("InferencePool", "sums-pool")["status"]
    for pod in kube.list("Pod", story.namespace, "shoal.dev/run=sums"):
        if pod["metadata"]["labels"]["shoal.dev/component"] == "pool":
            story.play(pod["metadata"]["name"], hollow_node.pending)
            kube.delete("Pod", pod["metadata"]["name"], story.namespace, now=True)
    story.wait_condition("TrainingRun", "sums", "Ready", "False")
    truth = story.condition("InferencePool", "sums-pool", "Ready")
    kube.merge("InferencePool", "sums-pool", story.namespace, {"status": ready}, sub="status")
    story.wait_for(
        "the pool's own words again",
        lambda: story.condition("InferencePool", "sums-pool", "Ready")["status"] == truth["status"] == "False",
    )
    story.wait_condition("TrainingRun", "sums", "InferencePoolReady", "False")
    story.wait_condition("TrainingRun", "sums", "Ready", "False")


def test_a_secret_that_loses_its_labels_gets_them_back(story: Story, kube: Kube) -> None:
    first = story.running()["status"]["runPublicKey"]
    uid = story.get("Secret", "sums-trainer-key")["metadata"]["uid"]
    nothing = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None, "shoal.dev/run": None}}}
    kube.merge("Secret", "sums-trainer-key", story.namespace, nothing)
    story.edit(validator={"replicas": 2})
    story.wait_field("Deployment", "sums-validator", "status.readyReplicas", 2)
    mark = "app.kubernetes.io/managed-by"
    story.wait_for(
        "its labels", lambda: mark in (story.get("Secret", "sums-trainer-key")["metadata"].get("labels") or {})
    )
    found = story.get("Secret", "sums-trainer-key")["metadata"]
    assert (found["uid"], found["labels"][mark]) == (uid, "shoal-operator")
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("TrainingRun", "sums")["status"]["runPublicKey"] == first


def test_children_that_were_orphaned_are_taken_over_by_the_run_that_is_made_again(story: Story, kube: Kube) -> None:
    outside = {"relayServer": {"replicas": 2, "exposure": {"type": "Ingress", "domain": "shoal.test"}}}
    first = story.running(**outside)
    pods = {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace)}
    kinds = {kind for kind, _ in story.managed()} | {kind for kind, _ in story.versions()}
    assert kinds >= {*CHILD_KINDS, *OWN} - {"Pod"}, "each kind of child is there to be orphaned"
    kube.delete("TrainingRun", "sums", story.namespace, propagation="Orphan")
    story.wait_gone("TrainingRun", "sums")
    story.create(**outside)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    again = story.get("TrainingRun", "sums")
    assert again["status"]["runPublicKey"] == first["status"]["runPublicKey"]
    assert {pod["metadata"]["uid"] for pod in kube.list("Pod", story.namespace)} == pods, "a pod was replaced"

    def parts() -> list[Any]:
        return [each for kind in OWN if kind != "TrainingRun" for each in kube.list(kind, story.namespace)]

    def adopted() -> bool:
        owners = {
            owner["uid"]
            for found in [*story.managed().values(), *parts()]
            for owner in found["metadata"].get("ownerReferences", [{"uid": "nobody"}])
            if owner.get("kind") in ("TrainingRun", None)
        }
        return owners == {again["metadata"]["uid"]}

    story.wait_for("every child to have its new owner", adopted)


def test_a_rank_that_was_killed_for_memory_is_named_when_its_pod_is_gone(story: Story, kube: Kube) -> None:
    story.running()
    [pod] = [
        each["metadata"]["name"]
        for each in kube.list("Pod", story.namespace, "shoal.dev/run=sums")
        if each["metadata"]["name"].startswith("sums-trainer-1")
    ]
    story.play(pod, hollow_node.failed("", 137, "OOMKilled"))
    story.wait_condition("TrainingRun", "sums", "TrainerReady", "False")
    kube.delete("Pod", pod, story.namespace, now=True)
    story.wait_gone("Pod", pod)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    [last, *_] = story.get("TrainingRun", "sums")["status"]["lastFailures"]
    assert (last["component"], last["pod"]) == ("trainer", pod)
    assert (last["reason"], last["exitCode"], last["signal"]) == ("OOMKilled", 137, "SIGKILL")


def test_nobody_is_told_that_a_run_is_well_while_nothing_is_known_of_it(story: Story, kube: Kube) -> None:
    story.running()
    kube.delete("PersistentVolumeClaim", "sums-store", story.namespace)  # its pods hold it
    story.wait_condition("TrainingRun", "sums", "Ready", "Unknown", "StoreTerminating")


def test_a_run_that_stands_says_so_with_the_cause_in_condition_event_and_metric(
    story: Story, kube: Kube, operator: OperatorProcess
) -> None:
    story.running()
    story.edit(progressDeadlineSeconds=1)
    found = story.wait_condition("TrainingRun", "sums", "Stalled", "True", "NoWorker")
    assert "no node is healthy" in found["message"]
    story.wait_condition("TrainingRun", "sums", "Ready", "False", "NoWorker")
    assert story.get("TrainingRun", "sums")["status"]["phase"] == "Stalled"
    series = f'shoal_run_stalled{{namespace="{story.namespace}",reason="NoWorker",run="sums"}}'

    def event() -> list[Any]:
        events = kube.list("Event", story.namespace)
        return [each for each in events if each["reason"] == "Stalled" and "NoWorker" in each.get("note", "")]

    story.wait_for("an Event about the stall", event)
    story.wait_for("the metric", lambda: operator.metrics().get(series) == 1.0)
    story.edit(progressDeadlineSeconds=3600)
    story.progress(open_step=1, latest_version=1)
    story.wait_condition("TrainingRun", "sums", "Stalled", "False")
    story.wait_for("the metric to go", lambda: series not in operator.metrics())
