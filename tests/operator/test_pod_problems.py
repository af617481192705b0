"""What `kubectl get` and `kubectl describe` say of a run that is not healthy: pods' problems, warnings, pauses."""

from datetime import UTC, datetime
from typing import Any

import pytest
from memory_cluster import MemoryCluster
from run_story import at_version, holds, prepared, put, running, said, status

import samples
from shoal.contracts.run_parts import RunParts
from shoal_operator.reconcile.pod_problems import pod_problem, pods_problem, worst_problem


def pod(name: str = "sums-pool-0", containers: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    found = {"containerStatuses": containers} if containers else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "status": {"phase": "Pending", **found, **status},
    }


def container(state: dict[str, Any], restarts: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "name": "worker",
        "image": "shoal/worker:x",
        "ready": False,
        "restartCount": restarts,
        "state": state,
        **more,
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEFORE, JUST_NOW = "2026-11-21T11:59:00Z", "2026-11-21T11:59:59Z"
OUT_OF_MEMORY = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes: 3 Insufficient gpu",
}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ('{"event": "starts"}\n{"event": "an error ends the process", "timestamp": "T", "exception": "...", '
         '"error": "ValueError: no \\"model\\"\\nhere"}\n', 'ValueError: no "model" here'),
        ('n f\\n", "error": "OSError: disk full"}', "OSError: disk full"),  # the kubelet keeps the end of a long line
        ('{"event": "secrets/role.pem is missing", "logger": "stderr", "timestamp": "T"}', "secrets/role.pem is missing"),
        ("plain: no such model\n", "plain: no such model"),
        ('"error": "\\q"}', '"error": "\\q"}'),
        ('{"other": 1}', '{"other": 1}'),
        ("[" * 2000, "[" * 300),
    ],
)  # fmt: skip
def test_the_error_of_a_crashed_container_is_read_from_its_last_line(log: str, said: str) -> None:
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "message": log}}
    found = pod_problem(pod(containers=[container(waiting("CrashLoopBackOff"), restarts=4, lastState=ended)]), NOW)
    assert found is not None
    assert found.text.endswith(f"exit code 1: {said}") or found.text.endswith(f"...{said}")


@pytest.mark.parametrize(
    ("found", "reason", "text"),
    [
        (pod(conditions=[NO_NODE]), "Unschedulable", "pod sums-pool-0: Unschedulable: 0/3 nodes: 3 Insufficient gpu"),
        (pod(containers=[container(waiting("ErrImagePull", "not found"))]), "ImagePull",
         "pod sums-pool-0: container worker: image shoal/worker:x cannot be pulled: not found"),
        (pod(containers=[container(waiting("CreateContainerConfigError", 'secret "sums-trainer-key" not found'))]),
         "CreateContainerConfigError",
         'pod sums-pool-0: container worker: CreateContainerConfigError: secret "sums-trainer-key" not found'),
        (pod(containers=[container(waiting("CrashLoopBackOff"), restarts=4, lastState=OUT_OF_MEMORY)]), "CrashLoop",
         "pod sums-pool-0: container worker: ended 4 times, last: OOMKilled, exit code 137"),
        (pod(phase="Failed", containers=[container({"terminated": {"exitCode": 2, "message": '{"event": "no such column"}'}})]), "PodFailed",
         "pod sums-pool-0: PodFailed: container worker: ended, last: exit code 2: no such column"),
        (pod(containers=[container({"running": {}}, restarts=2,
                                   lastState={"terminated": {"reason": "Error", "exitCode": 1, "message": "no such model\\n"}})]),
         "CrashLoop", "pod sums-pool-0: container worker: ended 2 times, last: exit code 1: no such model"),
        (pod(phase="Failed", reason="Evicted", message="node was low on disk"), "Evicted",
         "pod sums-pool-0: Evicted: node was low on disk"),
        (pod(initContainerStatuses=[container(waiting("ImagePullBackOff"))]), "ImagePull",
         "pod sums-pool-0: container worker: image shoal/worker:x cannot be pulled"),
    ],
    ids=["no node", "no image", "no secret", "out of memory", "failed", "crashes", "evicted", "sidecar without image"],
)  # fmt: skip
def test_a_pods_problem_is_described_in_words(found: dict[str, Any], reason: str, text: str) -> None:
    problem = pod_problem(found, NOW)
    assert problem is not None
    assert (problem.reason, str(problem).replace("\\n", "")) == (reason, text)


@pytest.mark.parametrize(
    "found",
    [
        pod(phase="Running", containers=[container({"running": {}}) | {"ready": True}]),
        pod(containers=[container(waiting("ContainerCreating"))]),
        pod(containers=[container({"running": {}}, restarts=1)]),
        pod(phase="Succeeded"),
        {**pod(conditions=[NO_NODE]), "metadata": {"name": "gone", "deletionTimestamp": "now"}},
    ],
    ids=["ready", "starting", "restarted once", "done", "going"],
)
def test_a_starting_pod_has_no_problem(found: dict[str, Any]) -> None:
    assert pod_problem(found, NOW) is None


@pytest.mark.parametrize(
    "words", ["ErrImagePull: 401 Unauthorized", "401 Unauthorized", "ImagePullBackOff: 401 Unauthorized"]
)
def test_why_an_image_cannot_be_pulled_is_said_in_the_same_words_between_two_tries(words: str) -> None:
    first = pod_problem(pod(containers=[container(waiting("ErrImagePull", "401 Unauthorized"))]), NOW)
    later = pod_problem(
        pod(containers=[container(waiting("ImagePullBackOff", f'Back-off pulling image "shoal/worker:x": {words}'))]),
        NOW,
    )
    assert first == later
    assert str(first).endswith("image shoal/worker:x cannot be pulled: 401 Unauthorized")


def on_a_node(since: str = BEFORE, conditions: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """A pod that a node has, made at a time."""
    told = [
        {"type": kind, "status": status, "lastTransitionTime": BEFORE} for kind, status in (conditions or {}).items()
    ]
    found = pod(containers=[container({"running": {}})], phase="Running", conditions=told)
    found["metadata"] |= {"creationTimestamp": since, **metadata}
    return {**found, "spec": {"nodeName": "n1"}}


LOST = {"PodScheduled": "True", "ContainersReady": "True", "Ready": "False"}


def test_a_pod_of_a_node_that_does_not_answer_names_the_node_and_since_when() -> None:
    problem = pod_problem(on_a_node(conditions=LOST), NOW)
    assert problem is not None
    assert problem.reason == "NodeLost"
    assert "node n1 does not answer since 2026-11-21T11:59:00Z" in problem.text
    gated = on_a_node(conditions=LOST)
    gated["spec"]["readinessGates"] = [{"conditionType": "mesh"}]
    assert pod_problem(gated, NOW) is None
    assert pod_problem(on_a_node(conditions={**LOST, "ContainersReady": "False"}), NOW) is None


def test_a_pod_whose_time_to_end_is_over_says_what_keeps_it() -> None:
    held = pod_problem(on_a_node(deletionTimestamp=BEFORE, finalizers=["example.com/held"]), NOW)
    kept = pod_problem(on_a_node(deletionTimestamp=BEFORE), NOW)
    assert str(held) == "pod sums-pool-0: was to be gone at 2026-11-21T11:59:00Z; finalizer example.com/held holds it"
    assert "node n1 does not end it" in str(kept)
    assert pod_problem(on_a_node(deletionTimestamp=JUST_NOW), NOW) is None


def test_a_pod_at_which_no_scheduler_looks_says_so() -> None:
    waits = pod()
    waits["metadata"]["creationTimestamp"] = JUST_NOW
    assert pod_problem(waits, NOW) is None
    waits["metadata"]["creationTimestamp"] = BEFORE
    problem = pod_problem({**waits, "spec": {"schedulerName": "mine"}}, NOW)
    assert problem is not None
    assert problem.text == (
        "no scheduler has looked at it since 2026-11-21T11:59:00Z (schedulerName mine): start that scheduler, or name another in"
        " podTemplate.schedulerName"
    )


@pytest.mark.parametrize(
    ("message", "remedied"),
    [
        ("0/3 nodes are available: 3 cannot allocate all claims.", True),
        ("request gpu: device class gpu.example.com does not exist", True),
        ('waiting for resourceclaim "nic" to be created', True),
        ("0/3 nodes are available: 3 Insufficient memory.", False),
    ],
)
def test_claims_of_devices_that_nobody_gives_are_said_with_the_remedy(message: str, *, remedied: bool) -> None:
    waits = pod()
    waits["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    problem = pod_problem(waits, NOW)
    assert problem is not None
    assert f"Unschedulable: {message}" in problem.text
    assert ("the driver of the claims' DeviceClass" in problem.text) is remedied


def test_a_failed_container_before_the_others_is_named() -> None:
    ended = {"terminated": {"exitCode": 3, "message": "no key"}}
    problem = pod_problem(pod(phase="Failed", initContainerStatuses=[container(ended)]), NOW)
    assert problem is not None
    assert "exit code 3: no key" in problem.text


def test_what_only_events_tell_is_said_of_a_pod_that_stands(cluster: MemoryCluster) -> None:
    words = 'MountVolume.SetUp failed for volume "x": secret "mine" not found'
    cluster.warnings["sums-pool-0"] = "FailedMount", words
    cluster.time = NOW
    stands = on_a_node(conditions={"PodScheduled": "True", "Ready": "False"})
    assert told(cluster, stands) == ("FailedMount", f"pod sums-pool-0: FailedMount: {words}")
    for other in (
        on_a_node(conditions={"Ready": "True"}),
        on_a_node(JUST_NOW, conditions={"Ready": "False"}),
        on_a_node(deletionTimestamp=JUST_NOW),
        {**stands, "metadata": {**stands["metadata"], "name": "sums-pool-1"}},
    ):
        assert told(cluster, other) is None


def told(
    cluster: MemoryCluster, *pods: dict[str, Any], workload: dict[str, Any] | None = None, former: str = ""
) -> tuple[str, str] | None:
    return pods_problem(cluster, pods, workload, former)


def runs_since(at: str, name: str = "sums-pool-0", **more: Any) -> dict[str, Any]:
    """A pod that a node has had for long, whose container runs since a time."""
    found = on_a_node("2026-11-21T10:00:00Z", conditions={"PodScheduled": "True", "Ready": "False"}, name=name)
    found["status"]["containerStatuses"] = [container({"running": {"startedAt": at}}, started=True, **more)]
    return found


EARLY = "2026-11-21T10:01:00Z"


@pytest.mark.parametrize("reason", ["FailedScheduling", "FailedMount", "FailedCreatePodSandBox"])
def test_a_warning_from_before_a_pod_got_further_is_no_cause(cluster: MemoryCluster, reason: str) -> None:
    cluster.time, pod = NOW, runs_since(EARLY)
    cluster.warnings["sums-pool-0"] = reason, "as it was"
    cluster.warned_at["sums-pool-0"] = datetime(2026, 11, 21, 10, 0, 30, tzinfo=UTC)
    assert told(cluster, pod) is None
    cluster.warned_at["sums-pool-0"] = NOW
    assert (told(cluster, pod) is None) is (reason == "FailedScheduling"), "a pod that a node has was scheduled"


def test_a_part_that_loads_a_model_has_no_problem(cluster: MemoryCluster) -> None:
    cluster.time = NOW
    cluster.warnings["sums-pool-0"] = "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503"
    assert told(cluster, runs_since("2026-11-21T11:45:00Z")) is None
    assert cluster.asked_about == [], "it costs no request either"


def test_a_probe_that_fails_for_long_is_told_in_the_same_words(cluster: MemoryCluster) -> None:
    cluster.time, found = NOW, set()
    for port in (39938, 41002):
        words = f'Get "http://10.2.0.7:8000/readyz": read tcp 10.2.0.1:{port}->10.2.0.7:8000: read: connection reset by peer'
        cluster.warnings["sums-pool-0"] = "Unhealthy", f"Readiness probe failed: {words}"
        found.add(told(cluster, runs_since(EARLY)))
    [(reason, text)] = found
    assert reason == "Unhealthy"
    assert text.endswith("read tcp 10.2.0.1->10.2.0.7:8000: read: connection reset by peer")


def test_pods_that_a_quota_refuses_are_not_hidden_behind_one_that_is_not_ready(cluster: MemoryCluster) -> None:
    cluster.time = NOW
    pool = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "sums-pool", "uid": "u"},
            "spec": {"replicas": 2}, "status": {"replicas": 1}}  # fmt: skip
    cluster.warnings |= {
        "sums-pool-0": ("Unhealthy", "Readiness probe failed: 503"),
        "sums-pool": ("FailedCreate", "exceeded quota"),
    }
    refused = ("PodsRefused", "StatefulSet sums-pool: exceeded quota")
    assert told(cluster, runs_since(EARLY), workload=pool) == refused


def test_a_pod_without_a_volume_is_not_hidden_behind_others_that_are_not_ready(cluster: MemoryCluster) -> None:
    cluster.time = NOW
    stands = [runs_since(EARLY, f"sums-pool-{number}") for number in range(7)]
    unmounted = on_a_node(conditions={"PodScheduled": "True", "Ready": "False"}, name="sums-pool-7")
    unmounted["status"]["containerStatuses"] = [container(waiting("ContainerCreating"))]
    cluster.warnings["sums-pool-7"] = "FailedMount", "no such secret"
    assert told(cluster, *stands, unmounted) == ("FailedMount", "pod sums-pool-7: FailedMount: no such secret")
    del cluster.warnings["sums-pool-7"]
    cluster.asked_about.clear()
    assert told(cluster, *stands, unmounted) is None
    assert len(cluster.asked_about) == 5


IMAGE = "registry.example.org/shoal/worker:x"
TIMEOUT = (
    'failed to pull and unpack image "{0}": failed to resolve reference "{0}": failed to do request: Head "https://registry.example.org/v2/": '
    "dial tcp: lookup registry.example.org on 10.2.0.10:53: read udp 10.2.0.49:{1}->10.2.0.10:53: i/o timeout"
)
TRIES = [("ErrImagePull", TIMEOUT.format(IMAGE, port)) for port in (42728, 51920)]
"""From another port at each try."""
BACK_OFF = f'Back-off pulling image "{IMAGE}"'


def pulls(reason: str, message: str, name: str = "sums-pool-0") -> dict[str, Any]:
    return pod(name, containers=[container(waiting(reason, message), image=IMAGE)])


@pytest.mark.parametrize(
    "between",
    [[(reason, f"{BACK_OFF}: {reason}: {said}") for reason, said in TRIES],
     [("ImagePullBackOff", f"{BACK_OFF}: {said}") for _, said in TRIES],
     [("ImagePullBackOff", BACK_OFF)]],
    ids=["newer kubelet", "one between", "older kubelet"],
)  # fmt: skip
def test_the_words_do_not_change_while_a_kubelet_retries(
    cluster: MemoryCluster, between: list[tuple[str, str]]
) -> None:
    said, former = set(), ""
    for each in (TRIES[0], *between, TRIES[1], *between):
        found = told(cluster, pulls(*each), pulls(*each, "sums-pool-1"), former=former)
        assert found is not None
        said.add(found)
        former = f"0 of 2 pods are ready; {found[1]}; of 3 replicas the run's queue admits 2"
    [(_, text)] = said
    assert text.endswith("read udp 10.2.0.49->10.2.0.10:53: i/o timeout (and 1 more pods with problems)")
    assert text.count("more pods") == 1


def test_the_cause_of_another_image_is_not_taken(cluster: MemoryCluster) -> None:
    former = "0 of 1 pods are ready; pod a: container b: image other:1 cannot be pulled: not found"
    found = told(cluster, pulls("ImagePullBackOff", BACK_OFF), former=former)
    assert found == ("ImagePull", f"pod sums-pool-0: container worker: image {IMAGE} cannot be pulled")


def test_a_kubelet_that_gives_no_cause_between_two_tries_costs_no_status_write(cluster: MemoryCluster) -> None:
    prepared(cluster)
    cluster.objects.set_status("StatefulSet", "sums-pool", {"replicas": 2, "readyReplicas": 0, "observedGeneration": 1})
    cluster.objects.set_status(
        "Deployment", "sums-discovery", {"replicas": 1, "readyReplicas": 0, "observedGeneration": 1}
    )
    writes = []
    for each in (*TRIES, ("ImagePullBackOff", BACK_OFF), TRIES[0], ("ImagePullBackOff", BACK_OFF)):
        put_pod(cluster, "sums-pool-0", pulls(*each), set="sums-pool", component="pool")
        put_pod(cluster, "sums-discovery-0", pulls(*each), component="discovery")
        cluster.settle()
        writes.append(cluster.status_writes)
    assert "i/o timeout" in said(cluster, "DiscoveryReady")["message"]
    assert "i/o timeout" in said(cluster, "InferencePoolReady")["message"]
    assert writes == writes[:1] * 5


def test_the_signature_of_a_registrys_address_is_hidden() -> None:
    found = pod_problem(pulls("ErrImagePull", "GET https://blobs.example.org/x?se=2026&sig=Zk3l%2Bq9xW8v%3D: 403"), NOW)
    assert found is not None
    assert "Zk3l" not in found.text
    assert "se=2026&sig=(hidden)" in found.text


def test_the_worst_of_several_problems_is_shown_and_the_others_are_counted() -> None:
    crash = pod("b", [container(waiting("CrashLoopBackOff"), restarts=3)])
    assert worst_problem([crash, pod("c", conditions=[NO_NODE])], NOW) == (
        "Unschedulable", "pod c: Unschedulable: 0/3 nodes: 3 Insufficient gpu (and 1 more pods with problems)"
    )  # fmt: skip
    assert worst_problem([], NOW) is None


def test_a_long_message_keeps_its_end() -> None:
    found = pod_problem(pod(conditions=[NO_NODE | {"message": "x" * 1000 + " the reason"}]), NOW)
    assert found is not None
    assert str(found).endswith("the reason")
    assert len(str(found)) < 400


# In the conditions of our own kinds.


def put_pod(cluster: MemoryCluster, name: str, found: dict[str, Any], **labels: str) -> None:
    made = {f"shoal.dev/{key}": value for key, value in labels.items()} | {"shoal.dev/run": "sums"}
    cluster.pods[name] = {**found, "metadata": {"name": name, "labels": made}}


def test_a_pool_says_why_its_pods_pend_and_its_run_repeats_it(cluster: MemoryCluster) -> None:
    prepared(cluster)
    put_pod(cluster, "sums-pool-0", pod(conditions=[NO_NODE]), set="sums-pool", component="pool")
    cluster.pods_start()
    cluster.objects.set_status("StatefulSet", "sums-pool", {"replicas": 2, "readyReplicas": 0, "observedGeneration": 1})
    cluster.settle()
    pool = cluster.get("InferencePool", "sums-pool")
    assert pool is not None
    ready = next(each for each in pool["status"]["conditions"] if each["type"] == "Ready")
    why = "0 of 2 pods are ready; pod sums-pool-0: Unschedulable: 0/3 nodes: 3 Insufficient gpu"
    assert (ready["reason"], ready["message"]) == ("Unschedulable", why)
    assert said(cluster, "InferencePoolReady") | {"lastTransitionTime": "", "observedGeneration": 1} == {
        **ready, "type": "InferencePoolReady", "lastTransitionTime": "", "observedGeneration": 1,
    }  # fmt: skip
    assert said(cluster, "Ready")["message"] == f"waits for InferencePool (InferencePool: {why})"


def test_a_crashing_trainer_is_reported(cluster: MemoryCluster) -> None:
    running(cluster)
    crash = pod(containers=[container(waiting("CrashLoopBackOff"), restarts=3, lastState=OUT_OF_MEMORY)])
    put_pod(cluster, "sums-trainer-1-0", crash, component="trainer")
    cluster.objects.set_status("Job", "sums-trainer-1", {"active": 1, "ready": 0})
    cluster.settle()
    found = said(cluster, "TrainerReady")
    assert found["reason"] == "CrashLoop"
    assert found["message"].endswith("container worker: ended 3 times, last: OOMKilled, exit code 137")


def test_a_tracker_whose_pod_waits_is_reported_and_the_run_continues(cluster: MemoryCluster) -> None:
    put(cluster, trackers={"tensorboard": {}})
    running(cluster)
    assert said(cluster, "TrackerReady")["status"] == "True"
    no_secret = pod(containers=[container(waiting("CreateContainerConfigError", 'secret "wandb" not found'))])
    put_pod(cluster, "sums-tracker-0", no_secret, component="tracker")
    cluster.objects.set_status(
        "StatefulSet", "sums-tracker", {"replicas": 1, "readyReplicas": 0, "observedGeneration": 1}
    )
    cluster.settle()
    found = said(cluster, "TrackerReady")
    assert (found["status"], found["reason"]) == ("False", "CreateContainerConfigError")
    assert found["message"].endswith('secret "wandb" not found')
    assert "Ready" in holds(cluster)


def test_a_prepare_job_that_cannot_start_is_reported(cluster: MemoryCluster) -> None:
    put_pod(cluster, "sums-prepare-0", pod(conditions=[NO_NODE]), component="prepare")
    cluster.settle()
    assert said(cluster, "Prepared")["reason"] == "Unschedulable"
    assert "Insufficient gpu" in said(cluster, "Ready")["message"]


# Stability.


def last_step(cluster: MemoryCluster, **changes: Any) -> None:
    metrics = samples.METRICS.model_copy(update={"run": "sums", "step": 1, **changes})
    at_version(cluster, 2, last_step=metrics, nodes={"Healthy": 3, "Evicted": 1, "Banned": 1})
    cluster.settle()


def test_warnings_of_the_trainer_make_a_run_unstable_but_not_unready(cluster: MemoryCluster) -> None:
    running(cluster)
    assert said(cluster, "Stable")["status"] == "Unknown"
    last_step(cluster, warnings=["gradient norm grew 4.2 x in 10 steps"])
    assert said(cluster, "Stable")["status"] == "False"
    assert said(cluster, "Stable")["message"] == "step 1: gradient norm grew 4.2 x in 10 steps"
    assert "Ready" in holds(cluster)
    last_step(cluster, warnings=[])
    assert said(cluster, "Stable")["status"] == "True"


def test_a_paused_trainer_is_reported_with_how_to_resume(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 2, trainer_phase="paused", trainer_note="entropy rises; set this to 2 to go on")
    cluster.settle()
    assert status(cluster)["phase"] == "Paused"
    assert {"Paused"} <= holds(cluster)
    assert "Ready" not in holds(cluster)
    assert said(cluster, "Ready")["message"] == "entropy rises; set this to 2 to go on"


def test_a_pause_without_a_note_still_says_how_to_resume(cluster: MemoryCluster) -> None:
    running(cluster)
    at_version(cluster, 2, trainer_phase="paused")
    cluster.settle()
    assert said(cluster, "Ready")["message"].endswith("set spec.stability.acknowledgedVersion to 2 to continue")


def test_nodes_and_slashed_nodes_are_counted(cluster: MemoryCluster) -> None:
    running(cluster)
    last_step(cluster)
    assert (status(cluster)["nodes"], status(cluster)["slashed"]) == (3, 2)


def test_changing_the_trainers_choices_reaches_its_configuration(cluster: MemoryCluster) -> None:
    running(cluster)
    put(cluster, stability={"acknowledgedVersion": 2}, trainer={"settings": {"lora": {"rank": 8}}})
    cluster.settle()
    found = cluster.get("ConfigMap", "sums-config")
    assert found is not None
    assert '"acknowledgedVersion":2' in found["data"]["run.json"]
    assert '"rank":8' in found["data"]["run.json"]


def test_a_problem_of_one_island_is_not_reported_on_the_others(cluster: MemoryCluster) -> None:
    put(
        cluster,
        mode="SFT",
        trainer={"islands": {"count": 3}},
        sft={"dataset": {"path": "/data/traces"}, "epochs": 1, "batchRows": 8},
        recipe={},
        ui={},
    )
    running(cluster)
    names = ("sums-island-1", "sums-island-2")
    for name in names:
        cluster.objects.set_status("StatefulSet", name, {"replicas": 1, "readyReplicas": 0, "observedGeneration": 1})
    bad = pod("sums-island-1-0", containers=[container(waiting("ErrImagePull", "no such image"))])
    bad["metadata"]["labels"] = cluster.objects.get("StatefulSet", names[0])["spec"]["template"]["metadata"]["labels"]
    cluster.pods["sums-island-1-0"] = bad
    cluster.settle()
    told = cluster.objects.get("ConfigMap", "sums-parts")
    assert told is not None
    messages = {part.name: part.message for part in RunParts.from_json(told["data"]["parts.json"]).parts}
    assert "cannot be pulled" in messages["sums-island-1"]
    assert "pulled" not in messages["sums-island-2"]


def test_a_part_whose_pods_are_replaced_at_once_says_what_the_last_one_ended_by(cluster: MemoryCluster) -> None:
    running(cluster)
    pool = cluster.get("StatefulSet", "sums-pool")
    assert pool is not None
    cluster.objects.set_status("StatefulSet", "sums-pool", {**pool["status"], "readyReplicas": 0})
    ended = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no such device"}
    put_pod(cluster, "sums-pool-0", pod(**ended), set="sums-pool", component="pool")
    cluster.settle()
    put_pod(cluster, "sums-pool-0", pod(), set="sums-pool", component="pool")
    cluster.settle()
    assert said(cluster, "InferencePoolReady")["reason"] == "PodsNotReady"
    assert "pod sums-pool-0: UnexpectedAdmissionError: no such device" in said(cluster, "Ready")["message"]
    cluster.pods_start()
    cluster.settle()
    assert "Ready" in holds(cluster)
