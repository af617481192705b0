"""Operators of two releases on one API server: a run stays as the first made it until `spec.release` asks, and is then rolled part by part.

With `WRITE_RESULTS=1` the trainers' attempts that an upgrade made unasked are written into `benchmarks/results/operator.json`.
"""

import json
import os
from typing import Any

import pytest
from cluster_story import Story
from kube_client import Kube, Object
from operator_process import PATIENT, StartOperator
from snapshot_cluster import wait_settled

from servers import ROOT
from shoal_operator.children.names import SOFTWARE_VERSION as FIRST
from shoal_operator.children.names import image

NEXT = "9.9.9"
RESULTS = ROOT / "benchmarks" / "results" / "operator.json"
KINDS = ("Deployment", "StatefulSet", "Job")
ROLL_SECONDS = 120.0
"""Deadline of a whole roll: nine groups, one after the other, each with pods that are replaced."""


def templates(story: Story, kube: Kube) -> dict[str, Object]:
    """Pod templates of the run's workloads, with their uids."""
    return {
        f"{kind}/{found['metadata']['name']}": {"uid": found["metadata"]["uid"], **found["spec"]["template"]}
        for kind in KINDS
        for found in kube.list(kind, story.namespace, "shoal.dev/run=sums")
    }


def of_release(template: Object, release: str) -> bool:
    spec = template["spec"]
    images = {each["image"] for each in [*spec.get("initContainers", []), *spec["containers"]]}
    return all(each.endswith(f":{release}") for each in images)


def attempts(story: Story, kube: Kube) -> list[str]:
    found = kube.list("Job", story.namespace, "shoal.dev/component=trainer")
    return sorted(each["metadata"]["name"] for each in found)


def images_of(found: Any) -> str:
    return str(found["spec"]["template"]["spec"]["containers"])


def test_an_upgrade_changes_no_pod_until_asked_and_then_rolls_the_trainer_last(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    first = start_operator(name="first", lease_seconds=PATIENT)
    story.running()
    story.progress(latest_version=1, open_step=1)
    story.wait_field("TrainingRun", "sums", "status.policyVersion", 1)
    wait_settled(story)
    before, trainers = templates(story, kube), attempts(story, kube)
    pods = {each["metadata"]["uid"] for each in kube.list("Pod", story.namespace)}
    first.stop()

    second = start_operator(name="second", lease_seconds=PATIENT, release=NEXT)
    story.wait_condition("TrainingRun", "sums", "UpToDate", "False", f"set spec.release: {NEXT}")
    # What somebody changes becomes again what the first release made, not what this one would make.
    patch = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    for kind, name in (("Deployment", "sums-orchestrator"), ("StatefulSet", "sums-relay")):
        kube.merge(kind, name, story.namespace, patch, manager="meddler")
    # An edit changes what it is about: it is seen when the drift of above has been.
    story.edit(validator={"replicas": 2})
    story.wait_field("Deployment", "sums-validator", "spec.replicas", 2)
    story.wait_for("what was changed to be as before", lambda: templates(story, kube) == before)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert attempts(story, kube) == trainers
    assert story.get("TrainingRun", "sums")["status"]["release"] == FIRST
    notes = [each["note"] for each in kube.list("Event", story.namespace) if each["reason"] == "NotUpToDate"]
    assert any("OtherRelease" in note for note in notes), notes
    if os.environ.get("WRITE_RESULTS"):
        made = len(set(attempts(story, kube)) - set(trainers))
        found = json.loads(RESULTS.read_text())
        RESULTS.write_text(json.dumps(found | {"upgrade_trainer_restarts": made}, indent=2) + "\n")

    story.edit(release=NEXT)
    story.wait_condition("TrainingRun", "sums", "UpToDate", "False", "WaitsForStep", ROLL_SECONDS)
    now = templates(story, kube)
    assert {name for name, each in now.items() if not of_release(each, NEXT)} == {
        "Job/sums-trainer-1",
        "Job/sums-prepare",
    }
    assert now["Job/sums-trainer-1"] == before["Job/sums-trainer-1"]
    story.progress(latest_version=2, open_step=2)
    story.wait_condition("TrainingRun", "sums", "UpToDate", "True", NEXT)
    story.wait_there("Job", "sums-trainer-2")
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("TrainingRun", "sums")["status"]["trainer"]["failures"] == 0
    assert pods.isdisjoint(
        each["metadata"]["uid"]
        for each in kube.list("Pod", story.namespace, "shoal.dev/component!=prepare")
        if not each["metadata"].get("deletionTimestamp")
    )

    story.edit(release=FIRST)
    story.wait_condition("TrainingRun", "sums", "UpToDate", "False", "WaitsForStep", ROLL_SECONDS)
    story.progress(latest_version=3, open_step=3)
    story.wait_there("Job", "sums-trainer-3")
    story.wait_condition("TrainingRun", "sums", "UpToDate", "False", "OtherRelease")
    back = templates(story, kube)
    for name in ("Deployment/sums-orchestrator", "StatefulSet/sums-relay", "StatefulSet/sums-pool"):
        assert {**back[name], "metadata": {}} == {**before[name], "metadata": {}}
    assert second.is_healthy()


@pytest.mark.soak
def test_two_releases_that_lead_in_turn_make_no_attempt_of_the_trainer(
    story: Story, start_operator: StartOperator, kube: Kube
) -> None:
    operator = start_operator(name="turn-0", lease_seconds=PATIENT)
    story.running()
    wait_settled(story)
    before = templates(story, kube)
    for number, release in enumerate((NEXT, ""), start=1):
        operator.stop()
        operator = start_operator(name=f"turn-{number}", lease_seconds=PATIENT, release=release)
        story.edit(validator={"replicas": 1 + number})
        story.wait_field("Deployment", "sums-validator", "spec.replicas", 1 + number)
        said = "False" if release else None
        if said:
            story.wait_condition("TrainingRun", "sums", "UpToDate", said)
    assert templates(story, kube) == before
    assert image("trainer", FIRST) in images_of(story.get("Job", "sums-trainer-1"))
