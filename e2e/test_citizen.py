"""A run as a platform team lets it in, test after test: in a queue, at a store without a Secret, with an engine of two pods, and its model promoted.

Kueue is the stand-in of the tests on an API server, or a real one (`SHOAL_TEST_KUEUE`, or the cluster's own). What one test leaves is where the next
begins; when one fails, those behind it are skipped.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kube_client import Kube
from kueue_api import GROUP, KueueApi
from kueue_stand_in import requests

from e2e import clusters, identity_store
from e2e.conftest import go_on, open_space
from e2e.identity_store import ACCOUNT, BUCKET
from e2e.queues import QUEUE, kueue, queue_rights
from e2e.release import NAME, Release
from e2e.served_model import ServedModel
from e2e.space import Object
from e2e.story import PREPARE_SECONDS, START_SECONDS, STEP_SECONDS, Story, is_ready, manifest
from oidc import AUDIENCE
from shoal_operator.children.queue import CONTROL_PLANE, STANDS
from shoal_operator.engine.conditions import is_true

__all__ = ["kueue"]

pytestmark = pytest.mark.timeout(900)

WORKLOAD = "arithmetic-workload"
CPUS = 1000
"""Of the queue, more than the node has: what pods ask for is counted, what they use is not."""
PREEMPTS = {"withinClusterQueue": "LowerPriority"}
FLAVOR = {"kubernetes.io/os": "linux"}
"""Of the queue's nodes: every one has it, and no template of ours asks for it."""
ROLES = ("operator", "protocol", "redis", "minio", "relay", "trainer", "worker", "validator")
STORE_USERS = {"prepare", "orchestrator", "trainer", "validator"}
WIDE = "wide"
SERVE_SECONDS = 240.0
"""For vLLM to start on a version: half a minute on two quiet cores."""


@pytest.fixture(scope="module")
def story(
    request: pytest.FixtureRequest,
    cluster: clusters.Cluster,
    kube: Kube,
    kueue: KueueApi,
    image: Callable[[str], str],
    need_images: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Story]:
    """The namespace with its release, its store and a queue that has no room yet."""
    need_images(*ROLES)
    with open_space(request.config, cluster.kubeconfig, kube, image, "citizen") as space:
        release = Release(space, Path(tmp_path_factory.mktemp("helm")))
        with queue_rights(kube, space.name):
            try:
                release.install("--set", "operator.replicas=1")
                identity_store.start(space)
                kueue.queue(space.name, 0, labels=FLAVOR, cpus=0, preemption=PREEMPTS)
                yield Story(space, release)
            finally:
                if not request.config.getoption("--keep-cluster"):
                    release.uninstall()


@pytest.fixture(autouse=True)
def part_of_the_story(request: pytest.FixtureRequest, story: Story) -> None:
    go_on(request, story.space.name)


def queued_run(story: Story) -> Object:
    """The story's run, in the queue and at the store that knows its account."""
    made = manifest(story.space.image, "", "")
    made["spec"] |= {"queueName": QUEUE, "storage": identity_store.storage(story.space)}
    del made["spec"]["ui"]
    return made


def workload(story: Story, name: str = WORKLOAD) -> Object:
    found: Object = story.space.kube.get("Workload", name, story.space.name) or {"status": {}}
    return found


def held(story: Story) -> list[Object]:
    """Pods of the run that hold what they ask for: those that end still do."""
    found = story.space.kube.list("Pod", story.space.name, labels=f"shoal.dev/run={story.run}")
    return [pod for pod in found if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def component(pod: Object) -> str:
    name: str = pod["metadata"]["labels"]["shoal.dev/component"]
    return name


def test_a_run_whose_queue_has_no_room_has_a_workload_and_no_pod(story: Story) -> None:
    story.space.apply(queued_run(story))
    story.wait("the queue's answer", lambda: "quota" in story.condition("Queued")["message"], 60.0)
    assert story.condition("Queued")["status"] == "True"
    assert story.status()["phase"] == "Queued"
    assert not is_true(workload(story), "QuotaReserved")
    assert held(story) == []
    assert story.space.kube.list("Job", story.space.name) == []
    sets = story.space.kube.list("StatefulSet", story.space.name)
    assert [each["metadata"]["name"] for each in sets if each["spec"]["replicas"]] == []


def test_an_admitted_run_trains_on_the_nodes_of_its_flavor(story: Story, kueue: KueueApi) -> None:
    kueue.queue(story.space.name, 0, labels=FLAVOR, cpus=CPUS, preemption=PREEMPTS)
    story.wait("the base model and the task table", lambda: story.holds("Prepared"), PREPARE_SECONDS)
    story.wait("the run to be Ready", lambda: story.holds("Ready"), START_SECONDS)
    assert story.condition("Queued")["status"] == "False"
    there = held(story)
    assert {component(pod) for pod in there} >= {*STORE_USERS, "pool", "relay"} - {"prepare"}
    # Kueue gives a flavor to what asks for resources.
    asking = {component(pod): pod["spec"]["nodeSelector"] for pod in there if requests(pod["spec"])}
    assert asking == {"trainer": FLAVOR, "pool": FLAVOR}
    story.wait("PodsReady", lambda: is_true(workload(story), "PodsReady"), 60.0)
    story.advance(3)


def test_parts_reach_the_store_as_their_account_and_no_pod_has_its_keys(story: Story) -> None:
    space = story.space
    secrets = {each["metadata"]["name"]: each.get("data") or {} for each in space.kube.list("Secret", space.name)}
    assert [name for name, data in secrets.items() if "secretKey" in data] == []
    jobs = [job["spec"]["template"] for job in space.kube.list("Job", space.name)]
    seen = {component(pod): pod["spec"] for pod in [*jobs, *held(story)]}
    assert {name for name, pod in seen.items() if pod.get("serviceAccountName") == ACCOUNT} == STORE_USERS
    for pod in seen.values():
        assert pod["automountServiceAccountToken"] is False
    for name in sorted(STORE_USERS - {"prepare"}):
        there = space.kubectl("exec", story.pod(name), "-c", name, "--", "ls", "/shoal/secrets/store")
        assert there.split() == ["token"], name
    token = space.run(story.pod("orchestrator"), "cat", "/shoal/secrets/store/token")
    claims = token.split(".")[1]
    told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert (told["sub"], told["aud"]) == (f"system:serviceaccount:{space.name}:{ACCOUNT}", [AUDIENCE])
    with pytest.raises(RuntimeError, match="No such file"):
        space.run(story.pod("pool"), "cat", "/shoal/secrets/store/token")
    stored = space.run(identity_store.STORE, "ls", f"/data/{BUCKET}/shoal/{story.run}").split()
    assert {"ledger", "models", "trainer", "versions"} <= set(stored)


def test_a_run_that_is_preempted_ends_in_order_and_gives_its_quota_back_last(story: Story) -> None:
    story.space.apply(rival(story))
    wrong: list[str] = []

    def over() -> bool:
        reserved = is_true(workload(story), "QuotaReserved")
        there = held(story)
        left = {component(pod) for pod in there}
        alive = {component(pod) for pod in there if "deletionTimestamp" not in pod["metadata"]}
        if left and not reserved:
            wrong.append(f"quota is back, and there are still {sorted(left)}")
        if left - set(STANDS) and not set(CONTROL_PLANE) - {"lighthouse"} <= alive:
            wrong.append(f"of the control plane {sorted(alive)} are left, and of the work {sorted(left - set(STANDS))}")
        return not left and not reserved

    story.wait("the run to be without pods and quota", over, STEP_SECONDS)
    assert wrong == []
    assert story.status()["phase"] == "Queued"
    story.wait("the rival to be admitted", lambda: is_true(workload(story, "rival"), "Admitted"), 60.0)


def rival(story: Story) -> Object:
    """Somebody's Workload of a higher priority, which needs the whole queue."""
    container = {
        "name": "main",
        "image": story.space.image("operator"),
        "resources": {"requests": {"cpu": str(CPUS)}},
    }
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"queueName": QUEUE, "priority": 5, "podSets": [{"name": "main", "count": 1, "template": template}]}
    return {"apiVersion": f"{GROUP}/v1beta2", "kind": "Workload", "metadata": {"name": "rival"}, "spec": spec}


def test_a_promoted_version_is_served_and_a_deployment_follows_promotion_and_roll_back(story: Story) -> None:
    """While the run has no pods: what is served does not need them."""
    newest = story.version()
    served = ServedModel(story.space, story.run, story.status()["runPublicKey"])
    served.start()
    assert "chosen by hand" in served.promote(newest - 1)
    served.deploy()
    story.wait("the promoted version to be served", lambda: served.version() == newest - 1, SERVE_SECONDS)
    (uid,) = served.starts()
    served.promote(newest)
    story.wait("the next version to be served", lambda: served.version() == newest, SERVE_SECONDS)
    assert "rolled back" in served.roll_back()
    story.wait("the version before to be served", lambda: served.version() == newest - 1, SERVE_SECONDS)
    assert served.starts() == {uid: 2}
    story.space.kubectl("delete", "deployment", "arithmetic-serving", "--wait")
    assert held(story) == []


def test_a_run_that_gets_its_quota_again_goes_on_where_it_was(story: Story) -> None:
    before = story.version()
    story.space.kube.delete("Workload", "rival", story.space.name)
    story.wait("the run to be Ready again", lambda: story.holds("Ready"), START_SECONDS)
    assert story.status()["trainer"]["failures"] == 0
    assert story.version() >= before
    story.advance()


def test_the_end_of_a_pod_of_an_engine_starts_that_engine_again_and_nothing_else(story: Story) -> None:
    pool = story.space.kube.get("InferencePool", f"{story.run}-pool", story.space.name) or {}
    images = {role: story.space.image(role) for role in ("protocol", "worker")}
    spec = {"run": story.run, "pool": WIDE, "replicas": 1, "weightsSize": "1Gi", "images": images}
    spec |= {"engine": {"tensorParallelSize": 2, "hosts": 2}, "resources": pool["spec"]["resources"]}
    kind = {"apiVersion": "shoal.dev/v1alpha1", "kind": "InferencePool"}
    story.space.apply({**kind, "metadata": {"name": WIDE}, "spec": spec})
    leader, further = f"{WIDE}-0", f"{WIDE}-1"
    story.wait("a node of two pods beside the other", lambda: story.status().get("nodes") == 2, START_SECONDS)
    story.wait("an engine over both", lambda: whole(story) and ready(story, leader, further), START_SECONDS)
    story.wait("a file of that engine", lambda: "file done" in log_of(story, leader), STEP_SECONDS)

    uids = story.identities()
    others = {name: story.starts(name) for name in uids if name not in (leader, further)}
    before = story.starts(leader)
    story.space.kubectl("delete", "pod", further, "--grace-period=0", "--force")
    story.wait("the leading worker to end", lambda: story.starts(leader).get("worker", 0) > before["worker"], 120.0)
    told = story.space.kubectl("logs", leader, "-c", "worker", "--previous")
    assert "a host of this engine is" in told
    story.wait("the engine again", lambda: whole(story) and ready(story, leader, further), START_SECONDS)
    story.wait("a file of the next engine", lambda: "file done" in log_of(story, leader), STEP_SECONDS)
    after = story.identities()
    assert {name for name in uids if after.get(name) != uids[name]} == {further}
    assert {name: story.starts(name) for name in others} == others
    assert {name: count - before[name] for name, count in story.starts(leader).items() if name != "worker"} == {
        name: 0 for name in before if name != "worker"
    }


def whole(story: Story) -> bool:
    """Whether the pool of engines over two pods says that its engine is ready."""
    found = story.space.kube.get("InferencePool", WIDE, story.space.name) or {}
    return bool((found.get("status") or {}).get("readyReplicas") == 1)


def ready(story: Story, *names: str) -> bool:
    return {pod["metadata"]["name"] for pod in story.pods("pool") if is_ready(pod)} >= set(names)


def log_of(story: Story, pod: str) -> str:
    """What the worker of a pod has said since it was last started."""
    return story.space.kubectl("logs", pod, "-c", "worker", "--tail=-1")


def test_deleting_the_run_gives_its_quota_back_and_leaves_what_is_in_the_bucket(story: Story) -> None:
    story.space.kubectl("delete", "ipool", WIDE)
    story.space.kubectl("delete", "trainingrun", story.run)
    story.wait("everything of the run to be gone", lambda: not story.objects(), STEP_SECONDS)
    assert story.space.kube.list("Workload", story.space.name) == []
    assert "versions" in story.space.run(identity_store.STORE, "ls", f"/data/{BUCKET}/shoal/{story.run}")
    assert story.release.helm("status", NAME)
