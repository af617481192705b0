"""The life of a run on a real API server, and what people see of it: created, edited, suspended, complete, failed, stuck."""

import hollow_node
import pytest
from cluster_story import Story
from control_plane import ControlPlane
from kube_client import Kube
from kube_manifests import manifest
from snapshot_cluster import wait_settled

import samples
from shoal.contracts.proof_profile import ProofTerms
from shoal.contracts.thresholds import ProofThresholds

pytestmark = pytest.mark.usefixtures("operator")


def test_a_run_comes_up_and_every_pod_is_admitted_as_restricted(story: Story, control_plane: ControlPlane) -> None:
    live = story.running()
    assert live["status"]["phase"] == "Running"
    pods = {pod["metadata"]["name"] for pod in story.kube.list("Pod", story.namespace)}
    for part in ("redis-0", "discovery", "orchestrator", "trainer-1", "relay-0", "pool-0", "pool-1", "validator"):
        assert any(name.startswith(f"sums-{part}") for name in pods), f"no pod of {part} in {sorted(pods)}"
    wait_settled(story)


def test_nothing_has_a_finalizer_of_ours_or_an_annotation_of_the_framework(story: Story) -> None:
    story.running()
    for kind in ("TrainingRun", "InferencePool", "RelayServer", "Validator"):
        for found in story.kube.list(kind, story.namespace):
            assert "finalizers" not in found["metadata"]
            assert not [key for key in found["metadata"].get("annotations", {}) if "kopf" in key]


def test_an_edit_reaches_the_children(story: Story) -> None:
    story.running()
    story.edit(validator={"replicas": 3})
    story.wait_field("Deployment", "sums-validator", "status.readyReplicas", 3)
    generation = story.get("TrainingRun", "sums")["metadata"]["generation"]
    story.wait_field("TrainingRun", "sums", "status.observedGeneration", generation)
    assert story.get("TrainingRun", "sums")["metadata"]["generation"] == 2, "the operator wrote to the spec"


def test_an_edit_of_the_recipe_replaces_the_trainer_and_keeps_the_rest(story: Story) -> None:
    story.running()
    redis = story.get("StatefulSet", "sums-redis")["metadata"]["uid"]
    story.edit(recipe={"learningRate": 1e-5})
    story.wait_there("Job", "sums-trainer-2")
    story.wait_gone("Job", "sums-trainer-1")
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("StatefulSet", "sums-redis")["metadata"]["uid"] == redis


def test_suspension_stops_every_pod_and_resuming_brings_back_the_same_numbers(story: Story) -> None:
    story.running()
    kept = story.get("PersistentVolumeClaim", "sums-store")["metadata"]["uid"]
    story.edit(suspend=True)
    story.wait_condition("TrainingRun", "sums", "Suspended", "True")
    story.wait_for(
        "all pods but that of prepare to be gone",
        lambda: all("-prepare-" in pod["metadata"]["name"] for pod in story.kube.list("Pod", story.namespace)),
    )
    assert story.condition("TrainingRun", "sums", "Ready")["status"] == "False"
    story.edit(suspend=False)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert story.get("InferencePool", "sums-pool")["spec"]["replicas"] == 2
    assert story.get("PersistentVolumeClaim", "sums-store")["metadata"]["uid"] == kept


def test_a_run_whose_last_version_is_announced_is_complete(story: Story) -> None:
    story.running()
    story.progress(open_step=None, latest_version=4, complete=True)
    story.wait_condition("TrainingRun", "sums", "Complete", "True")
    story.wait_field("StatefulSet", "sums-pool", "spec.replicas", 0)
    assert story.get("TrainingRun", "sums")["status"]["policyVersion"] == 4


def test_a_status_with_unknown_parts_is_accepted(story: Story) -> None:
    story.running()
    story.progress(open_step=2, latest_version=1, proofs=ProofTerms.in_force(ProofThresholds(), samples.PROOF_PROFILE))
    story.wait_field("TrainingRun", "sums", "status.proofs.honestChunks", 0)
    assert "falseRejectChunksBound" not in story.get("TrainingRun", "sums")["status"]["proofs"]


def test_kubectl_waits_for_a_condition_of_a_run(story: Story, control_plane: ControlPlane) -> None:
    story.create()
    wait = ("-n", story.namespace, "wait", "trainingrun/sums")
    assert (
        control_plane.kubectl(*wait, "--for=condition=Ready", "--timeout=60s")
        == "trainingrun.shoal.dev/sums condition met\n"
    )
    said = control_plane.kubectl(*wait, "--for=condition=Complete", "--timeout=0s", check=False)
    assert "condition not met" in said


def test_progress_is_in_the_columns_of_kubectl_get(story: Story, control_plane: ControlPlane) -> None:
    story.running()
    story.progress(open_step=2, latest_version=1, files_accepted=7, files_rejected=1)
    story.wait_field("TrainingRun", "sums", "status.step", 2)
    head, line = control_plane.kubectl("get", "trun", "-n", story.namespace).splitlines()
    columns = dict(zip(head.split(), line.split(), strict=False))
    assert (columns["NAME"], columns["PHASE"], columns["STEP"]) == ("sums", "Running", "2")
    wide = control_plane.kubectl("get", "trun", "-n", story.namespace, "-o", "wide")
    assert {"ACCEPTED", "REJECTED", "LAG"} <= set(wide.splitlines()[0].split())
    assert "sums-pool" in control_plane.kubectl("get", "shoal", "-n", story.namespace)


def test_how_long_a_run_still_takes_is_told_in_words(story: Story, control_plane: ControlPlane) -> None:
    """By the pace of the last step, in `kubectl get` and `describe`; `etaSeconds` is for programs."""
    story.running()
    last = samples.METRICS.model_copy(
        update={"run": "sums", "step": 0, "started_unix": samples.NOW - 4000.0, "finished_unix": float(samples.NOW)}
    )
    story.progress(open_step=1, latest_version=1, last_step=last)
    story.wait_field("TrainingRun", "sums", "status.eta", "3 h 20 min")
    assert story.get("TrainingRun", "sums")["status"]["etaSeconds"] == 12_000
    head, line = control_plane.kubectl("get", "trun", "sums", "-n", story.namespace).splitlines()
    at = head.index("ETA")
    assert line[at:].startswith("3 h 20 min "), f"{head}\n{line}"
    described = control_plane.kubectl("describe", "trun", "sums", "-n", story.namespace).splitlines()
    assert ["Eta:", "3", "h", "20", "min"] in [each.split() for each in described]
    story.progress(open_step=None, latest_version=4, complete=True, last_step=last.model_copy(update={"step": 3}))
    story.wait_field("TrainingRun", "sums", "status.eta", "0 s")


def test_a_pod_that_no_node_can_take_is_explained_by_describe(story: Story, control_plane: ControlPlane) -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    story.play("sums-trainer-*", hollow_node.unschedulable(said))
    story.create()
    story.wait_condition("TrainingRun", "sums", "TrainerReady", "False", "Insufficient nvidia.com/gpu")
    ready = story.wait_condition("TrainingRun", "sums", "Ready", "False")
    assert "Trainer" in ready["message"]
    assert "Insufficient nvidia.com/gpu" in control_plane.kubectl("describe", "trun", "sums", "-n", story.namespace)
    # Room was made.
    story.play("sums-trainer-*", hollow_node.ready)
    story.wait_condition("TrainingRun", "sums", "Ready", "True")
    assert "Insufficient" not in str(story.get("TrainingRun", "sums")["status"]["conditions"])


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        (
            "ImagePullBackOff",
            'Back-off pulling image "shoal/worker:0.2.0"',
            "image shoal/protocol:0.2.0 cannot be pulled",  # of the first container
        ),
        ("CrashLoopBackOff", "back-off 5m0s restarting failed container", "ended 4 times"),
    ],
)
def test_containers_that_cannot_start_are_explained(story: Story, reason: str, message: str, said: str) -> None:
    story.play("sums-pool-*", hollow_node.waiting(reason, message, restarts=4))
    story.create()
    story.wait_condition("InferencePool", "sums-pool", "Ready", "False", said)
    story.wait_condition("TrainingRun", "sums", "InferencePoolReady", "False", said)
    assert story.get("TrainingRun", "sums")["status"]["phase"] != "Running"


def test_a_preparation_that_fails_for_good_fails_the_run_and_says_what_to_do(story: Story) -> None:
    story.play("sums-prepare-*", hollow_node.failed("no such model"))
    # The back-off of a Job doubles from ten seconds: the limit is brought down so that the test needs no minute.
    story.create()
    story.wait_there("Job", "sums-prepare")
    story.kube.merge("Job", "sums-prepare", story.namespace, {"spec": {"backoffLimit": 0}}, manager="impatient")
    failed = story.wait_condition("TrainingRun", "sums", "Failed", "True")
    assert "sums-prepare" in failed["message"]
    assert story.get("TrainingRun", "sums")["status"]["phase"] == "Failed"


def test_events_are_few_and_not_repeated(story: Story, kube: Kube) -> None:
    story.running()
    story.progress(open_step=1, latest_version=0)
    story.wait_field("TrainingRun", "sums", "status.step", 1)
    for number in (1, 2):
        story.progress(open_step=1, latest_version=0, files_accepted=number)
        story.wait_field("TrainingRun", "sums", "status.accepted", number)
    events = [
        each for each in kube.list("Event", story.namespace) if each.get("reportingController", "").startswith("shoal")
    ]
    notes = [(each["regarding"]["name"], each["reason"], each.get("note")) for each in events]
    assert len(notes) == len(set(notes)), "the same event was written twice in place of being counted"
    about_run = [each for each in events if each["regarding"]["name"] == "sums"]
    assert about_run, "nothing was told of the run becoming ready"
    assert len(about_run) <= 12, notes


def test_a_pool_without_its_run_waits_and_says_for_what(story: Story, kube: Kube) -> None:
    kube.create(manifest("InferencePool", "lonely", story.namespace, run="elsewhere"))
    story.wait_condition("InferencePool", "lonely", "Ready", "False", "elsewhere-join")
    assert kube.get("StatefulSet", "lonely", story.namespace) is None
