"""Every manifest under examples/ on a real cluster: taken by the API server, its first pods made, and a status that says how it stands.

A run that needs no GPU begins to make its base model. One that wants what no node here has, or a model from a hub, is taken too and says why it does
not begin. A run that begins with the results of another says which it waits for, and one of a group shows its key and waits for the others'.
What comes after the first pod is `test_story.py`; here each run is deleted again, so that a small node is not asked for all of them at once.

A Secret that an example names is made only after the run has said that it waits for it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from kube_client import Kube

from e2e import ROOT, clusters
from e2e.conftest import TOUCHED, open_space
from e2e.release import Release
from e2e.space import Object, Space
from e2e.story import PREPARE_SECONDS

EXAMPLES = ROOT / "examples"
MANIFESTS = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml"))
IMAGES = ("protocol", "redis", "relay", "trainer", "validator", "worker")
SECONDS = 180.0
"""For a first pod to run, or to end so often that it is called a problem: the pauses between grow from ten seconds."""

NO_NODE, NO_HUB, NO_KUEUE = "Unschedulable", "CrashLoop", "KueueMissing"


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest,
    cluster: clusters.Cluster,
    kube: Kube,
    image: Callable[[str], str],
    need_images: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Space]:
    """One namespace with one operator for all examples."""
    need_images("operator", "protocol", "trainer")
    with open_space(request.config, cluster.kubeconfig, kube, image, "examples") as space:
        release = Release(space, Path(tmp_path_factory.mktemp("helm")))
        release.install("--set", "operator.replicas=1")
        yield space
        if not request.config.getoption("--keep-cluster"):
            release.uninstall()


def runs(name: str) -> list[Object]:
    return [
        each for each in yaml.safe_load_all((EXAMPLES / name).read_text()) if each and each["kind"] == "TrainingRun"
    ]


def begins_with(run: Object) -> set[str]:
    """Names of the runs whose results this one begins with, the one that samples its tasks first among them."""
    spec = run["spec"]
    named = {spec["model"].get("run"), ((spec.get("sft") or {}).get("dataset") or {}).get("run")} - {None}
    return named | ({f"{run['metadata']['name']}-filter"} if spec["tasks"].get("offlineFilter") else set())


def from_a_hub(run: Object) -> bool:
    return "huggingFace" in run["spec"]["model"]


def is_of_a_group(run: Object) -> bool:
    return "group" in run["spec"].get("trainer", {}).get("islands", {})


def standing(space: Space, name: str) -> tuple[str, str]:
    """Reason and message of what says most about a run that has not begun: why prepare cannot, or else what the run does."""
    found = space.kube.get("TrainingRun", name, space.name) or {}
    said = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or []}
    if (queued := said.get("Queued", {})).get("reason") == NO_KUEUE:
        return NO_KUEUE, queued["message"]
    for kind in ("Failed", "Progressing", "Prepared"):
        if kind == "Failed" and said.get(kind, {}).get("status") != "True":
            continue
        each = said.get(kind, {"reason": "", "message": ""})
        if kind != "Progressing" or each["reason"] == "Waiting":
            return each["reason"], each.get("message", "")
    return "", ""


def test_there_are_examples_of_each_sort() -> None:
    listed = [run for name in MANIFESTS for run in runs(name)]
    assert any(from_a_hub(run) for run in listed)
    assert any(begins_with(run) for run in listed)
    assert any(not from_a_hub(run) and not begins_with(run) for run in listed)


@pytest.mark.parametrize("name", MANIFESTS)
def test_an_example_is_taken_and_says_how_it_stands(
    name: str, served: Space, cluster: clusters.Cluster, request: pytest.FixtureRequest
) -> None:
    request.node.stash[TOUCHED] = [served.name]
    may_reach_a_hub = isinstance(cluster, clusters.GivenCluster)
    for run in runs(name):
        run["spec"]["images"] = {role: served.image(role) for role in IMAGES} | run["spec"].get("images", {})
        served.apply(run)
        try:
            give_credentials(served, run)
            served.wait(f"{name} to say how it stands", partial(as_expected, served, run, may_reach_a_hub), SECONDS)
        finally:
            remove(served, run)


def test_every_part_that_wants_gpus_waits_for_them_and_the_run_says_so(
    served: Space, request: pytest.FixtureRequest
) -> None:
    """The model is made on the spot, so that the run comes as far as its GPU parts: those of examples/one-node."""
    request.node.stash[TOUCHED] = [served.name]
    (run,), (on_gpus,) = runs("arithmetic/trainingrun.yaml"), runs("one-node/trainingrun.yaml")
    wanted, small = served.gpus() + 1, {"requests": {"cpu": "10m"}}
    for part, like in (
        (run["spec"].setdefault("trainer", {}), on_gpus["spec"]["trainer"]),
        (run["spec"]["validator"], on_gpus["spec"]["validator"]),
        (run["spec"]["inferencePools"][0], on_gpus["spec"]["inferencePools"][0]),
    ):
        part.update(gpu={**like["gpu"], "count": wanted}, resources=small)
    run["spec"]["prepare"] = {"gpu": {"count": 0}}  # it would have the validator's, and wait for them itself
    run["metadata"]["name"] = "wants-gpus"
    run["spec"]["images"] = {role: served.image(role) for role in IMAGES}
    served.apply(run)
    try:
        served.wait("the run to say that it waits for GPUs", partial(waits_for_gpus, served, run), PREPARE_SECONDS)
    finally:
        remove(served, run)


def waits_for_gpus(space: Space, run: Object) -> bool:
    found = space.kube.get("TrainingRun", run["metadata"]["name"], space.name) or {}
    said = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or []}
    return all(
        said.get(kind, {}).get("reason") == NO_NODE and "Insufficient nvidia.com/gpu" in said[kind]["message"]
        for kind in ("TrainerReady", "ValidatorReady", "InferencePoolReady")
    )


def remove(space: Space, run: Object) -> None:
    """Delete the run and the Secret made for it, and wait until its pods are gone."""
    title = run["metadata"]["name"]
    space.kubectl("delete", "trainingrun", title, "--ignore-not-found")
    for secret in credentials(run):
        space.kube.delete("Secret", secret, space.name)
    space.wait(f"the pods of {title} to be gone", lambda: not pods_of(space, title), SECONDS)


def credentials(run: Object) -> list[str]:
    """The Secret for its store that the run names, if it names one."""
    s3 = run["spec"].get("storage", {}).get("s3") or {}
    return [s3["credentialsSecret"]] if "credentialsSecret" in s3 else []


def give_credentials(space: Space, run: Object) -> None:
    """Wait until the run asks for its Secret, and make it. Of several things that are missing a run names one: another run may come first."""
    for secret in credentials(run):

        def asks(secret: str = secret) -> bool:
            reason, message = standing(space, run["metadata"]["name"])
            waits = f"Secret {secret}" in message or any(name in message for name in begins_with(run))
            return reason == NO_KUEUE or (reason == "Waiting" and waits)

        space.wait(f"the run to ask for Secret {secret}", asks, SECONDS)
        keys = {"accessKey": "made-up", "secretKey": "made-up-too"}
        space.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "stringData": keys})


def as_expected(space: Space, run: Object, may_reach_a_hub: bool) -> bool:
    name, others = run["metadata"]["name"], begins_with(run)
    reason, message = standing(space, name)
    if others:
        return reason == "Waiting" and any(other in message for other in others)
    if is_of_a_group(run):
        return reason == "Waiting" and f"group.members; this run's entry is {name}: " in message
    if reason == NO_KUEUE:
        return "queueName" in message
    if reason == NO_NODE:
        return "nodes are available" in message
    if from_a_hub(run) and (reason in (NO_HUB, "JobFailed") or not may_reach_a_hub):
        return reason in (NO_HUB, "JobFailed")
    # A model that is made on the spot, or fetched where there is a way to its hub: prepare runs.
    return any(pod["status"]["phase"] == "Running" for pod in pods_of(space, name))


def pods_of(space: Space, run: str) -> list[Object]:
    found: list[Object] = space.kube.list("Pod", space.name, labels=f"shoal.dev/run in ({run},{run}-filter)")
    return found
