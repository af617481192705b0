"""Two runs in two namespaces that are islands of one group, as two administrators make them: only addresses from outside are between them.

Each namespace has an operator and an object store of its own, and NetworkPolicies deny what no manifest names. One run serves the lighthouse at a
port of the node. Each trainer's pod is deleted in turn, the lighthouse's too, and one run is suspended and resumed.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from kube_client import Kube

from e2e import clusters
from e2e.conftest import TOUCHED, open_space
from e2e.islands import ROLES, Rounds, manifest, put_data
from e2e.release import Release
from e2e.space import Object
from e2e.story import PREPARE_SECONDS, START_SECONDS, Story

pytestmark = pytest.mark.timeout(3000)

GROUP = "north-south"
STEPS = {"north": 260, "south": 160}
"""Whoever serves the lighthouse is the last to be done: its lighthouse ends with it."""
ORIGIN, METRICS, ORCHESTRATOR = 8090, 9100, 8080


@pytest.fixture
def runs(
    request: pytest.FixtureRequest,
    cluster: clusters.Cluster,
    kube: Kube,
    image: Callable[[str], str],
    need_images: Callable[..., None],
    tmp_path: Path,
) -> Iterator[dict[str, Story]]:
    """Two namespaces by the names of their runs, each with a release and its object store."""
    need_images(*ROLES)
    with ExitStack() as stack:
        stories = {}
        for name in STEPS:
            space = stack.enter_context(open_space(request.config, cluster.kubeconfig, kube, image, name))
            folder = tmp_path / name
            folder.mkdir()
            stories[name] = Story(space, Release(space, folder), run=name)
            request.node.stash[TOUCHED] = [each.space.name for each in stories.values()]
            if not request.config.getoption("--keep-cluster"):
                stack.callback(stories[name].release.uninstall)
        yield stories


def a_node(kube: Kube) -> tuple[str, str]:
    """Name of a node that takes any pod, and its address."""
    for node in kube.list("Node"):
        if not node["spec"].get("taints"):
            addresses = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
            return str(node["metadata"]["name"]), str(addresses[0])
    raise RuntimeError("every node has taints")


def networks_of(kube: Kube) -> list[str]:
    """Where an administrator knows that trainers' connections come from: the pods' networks, and the nodes, whose address many networks give to what
    leaves for a node's port. Where the nodes do not say the former, the range about the pods that are there."""
    nodes = kube.list("Node")
    said = {network for node in nodes for network in node["spec"].get("podCIDRs") or []}
    addresses = [pod["status"].get("podIP") for pod in kube.list("Pod") if not pod["spec"].get("hostNetwork")]
    about = {str(ip_network(f"{address}/16", strict=False)) for address in addresses if address}
    own = {
        f"{each['address']}/32"
        for node in nodes
        for each in node["status"]["addresses"]
        if each["type"] == "InternalIP"
    }
    return sorted((said or about) | own)


def apply(story: Story, node: str, group: Object, **fields: Any) -> None:
    """`kubectl apply` of the whole manifest, with these fields of the group beside those that stay. A port of a node leads to pods on that node only:
    the lighthouse is kept there."""
    control_plane = {"podTemplate": {"nodeSelector": {"kubernetes.io/hostname": node}}}
    islands = {"group": {"name": GROUP, **group, **fields}}
    story.space.apply(manifest(story, STEPS[story.run], islands, controlPlane=control_plane))


def kill(story: Story, component: str) -> str:
    """Delete the pod of a component as the loss of its node would; returns its uid."""
    uid, name = story.uid(component), story.pod(component)
    story.space.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    return uid


def back(story: Story, component: str, uid: str = "") -> bool:
    """Whether a component's pod is ready, and is not the one that had this uid."""
    return story.uid(component) not in ("", uid)


def island_key(story: Story) -> str | None:
    """What the other administrator is told."""
    return story.status().get("islandPublicKey")


def complete(story: Story, rounds: Rounds) -> bool:
    """Whether the run is over. Logs are read meanwhile: they are gone with the pods."""
    rounds.look()
    return story.holds("Complete")


def test_two_runs_in_two_namespaces_share_what_they_learn_over_exposed_addresses(
    runs: dict[str, Story], kube: Kube
) -> None:
    north, south = runs["north"], runs["south"]
    for number, story in enumerate(runs.values()):
        # The definitions of our kinds are the cluster's own: the first release brings them.
        story.release.install(
            "--set", "minio.enabled=true", "--set", "minio.persistence.size=2Gi", "--set", f"crds.enabled={str(number == 0).lower()}"
        )  # fmt: skip
        put_data(story, seed=number)

    # What each administrator writes, and reads to the other.
    networks = networks_of(kube)
    node, address = a_node(kube)
    exposure = {"type": "NodePort", "nodeAddress": address}
    groups: dict[str, Object] = {"north": {"serveLighthouse": True, "exposure": exposure, "networks": networks}}
    apply(north, node, groups["north"])
    lighthouse = north.wait("the lighthouse's address", lambda: north.status().get("lighthouse"), START_SECONDS)
    host, meeting = lighthouse.rsplit(":", 1)
    assert host == exposure["nodeAddress"]
    groups["south"] = {"lighthouse": lighthouse, "networks": networks}
    apply(south, node, groups["south"])
    members = {}
    for name, story in runs.items():
        members[name] = story.wait(f"the key of {name}", partial(island_key, story), START_SECONDS)
        assert story.space.kube.get("Secret", f"{name}-island-0-key", story.space.name) is not None
        assert story.pods() == [], "nothing runs before the group is known"
    for name, story in runs.items():
        apply(story, node, groups[name], members=members)
    for story in runs.values():
        story.wait("the base model", partial(story.holds, "Prepared"), PREPARE_SECONDS)
    for story in runs.values():
        story.wait("the trainer", partial(back, story, "trainer"), START_SECONDS)

    rounds = Rounds(*runs.values())
    rounds.wait("a round of both", 1, 2)

    # Who reaches whom. The way is shown to be open before what is closed is asked for.
    trainers = {name: story.pod("trainer") for name, story in runs.items()}
    addresses = {name: story.space.address(trainers[name]) for name, story in runs.items()}
    assert south.space.reaches(trainers["south"], host, int(meeting))
    for story, other in ((north, south), (south, north)):
        inside = f"{other.run}-orchestrator.{other.space.name}.svc"
        assert other.space.reaches(trainers[other.run], inside, ORCHESTRATOR)
        assert not story.space.reaches(trainers[story.run], inside, ORCHESTRATOR)
        for port in (ORIGIN, METRICS):
            assert other.space.reaches(trainers[other.run], addresses[other.run], port)
            assert not story.space.reaches(trainers[story.run], addresses[other.run], port)
    assert not south.space.reaches(south.pod("orchestrator"), host, int(meeting))

    for lost in runs.values():
        uid = kill(lost, "trainer")
        lost.wait(f"another trainer of {lost.run}", partial(back, lost, "trainer", uid), START_SECONDS)
        rounds.wait(f"a round of both after the trainer of {lost.run} came back", 1, 2)
    uid = kill(north, "lighthouse")
    north.wait("another lighthouse", partial(back, north, "lighthouse", uid), START_SECONDS)
    rounds.wait("a round of both at another lighthouse of the same address", 1, 2)

    south.patch({"spec": {"suspend": True}})
    south.wait("no trainer of a suspended run", lambda: not south.pods("trainer"), START_SECONDS)
    rounds.wait("rounds of one run while the other is suspended", 1, 1, at_most=1)
    south.patch({"spec": {"suspend": False}})
    south.wait("the trainer of the resumed run", partial(back, south, "trainer"), START_SECONDS)
    rounds.wait("a round of both after one was suspended", 1, 2)

    for story in (south, north):
        story.wait(f"{story.run} to be Complete", partial(complete, story, rounds), 1200.0)
        assert "models" in story.stored()
    states = rounds.states()
    assert len(states) > 8, "few rounds were seen from both sides"
    assert all(len(each) == 1 for each in states), "runs came to different states in one round"
    steps = north.status()["policyVersion"], south.status()["policyVersion"]
    assert steps == (STEPS["north"], STEPS["south"]), "a run of a group keeps its own steps"
