"""docs/install.md is followed word by word, on a real API server with the real operator: installed, tried, removed, and installed from a registry.

What is not here: a kubelet and container images. A hollow node plays the pods, and the operator runs beside it with the account of its pods. What
builds images or starts kind says what it would do; e2e/ does it.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from control_plane import ControlPlane, find_programs
from doc_pages import blocks
from hollow_node import HollowNode, succeeded
from kube_client import Kube
from operator_process import ACCOUNT, OPERATOR_NAMESPACE, PATIENT, OperatorProcess
from orchestrators import Orchestrators
from page_reader import Instead, PageReader

from helm import helm_program
from servers import ROOT, Loopback, wait_until
from shoal.contracts.protocol import RunProgress

RUNS = "research"
READY_SECONDS = 240.0


@dataclass
class Cluster:
    """A control plane without our kinds, its node, and what the operator's pods would run."""

    plane: ControlPlane
    loopback: Loopback
    folder: Path
    kube: Kube = field(init=False)
    orchestrators: Orchestrators = field(init=False)
    ends: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        self.ends.callback(self.plane.stop)
        self.plane.start([])
        self.kube = Kube(self.plane.kubeconfig)
        self.ends.callback(self.kube.close)
        node = HollowNode(self.kube)
        node.start()
        self.ends.callback(node.close)
        for namespace, pattern in (
            (RUNS, "*-prepare-*"),
            (OPERATOR_NAMESPACE, "*-bucket-*"),
            (OPERATOR_NAMESPACE, "shoal-test-*"),
        ):
            node.play(namespace, pattern, succeeded)
        self.orchestrators = Orchestrators(self.loopback.address())
        self.ends.callback(self.orchestrators.close)
        self.orchestrators.say(RUNS, RunProgress(run="arithmetic", steps_total=70, open_step=0, latest_version=0))

    def start_operator(self) -> None:
        """With the account and the arguments of the Deployment's pods, but for where it listens."""
        account = self.plane.account_kubeconfig(self.kube, OPERATOR_NAMESPACE, ACCOUNT)
        found = self.kube.get("Deployment", "shoal-operator", OPERATOR_NAMESPACE)
        assert found is not None
        [container] = found["spec"]["template"]["spec"]["containers"]
        scope = [word for pair in pairwise(container["args"]) if pair[0] == "--namespace" for word in pair]
        assert scope == ["--namespace", RUNS]
        operator = OperatorProcess(
            "installed", account, [*scope, "--lease-seconds", str(PATIENT)], self.folder / "operator", self.loopback, self.orchestrators.address
        )  # fmt: skip
        self.ends.callback(operator.stop)
        operator.start()

    def is_ready(self) -> bool:
        found = self.kube.get("TrainingRun", "arithmetic", RUNS) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@pytest.fixture
def cluster(loopback: Loopback, tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "plane").mkdir()
    made = Cluster(ControlPlane(loopback.address(), tmp_path / "plane", find_programs()), loopback, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.ends.close()


@pytest.mark.timeout(1800)
def test_shoal_is_installed_and_removed_by_the_page(cluster: Cluster, tmp_path: Path) -> None:
    built = tmp_path / ".cache" / "shoal" / "node"
    built.mkdir(parents=True)
    (built / "kubeconfig").symlink_to(cluster.plane.kubeconfig)
    (tmp_path / ".cache" / "shoal" / "tools").symlink_to(Path(helm_program()).parent)  # what `make tools` built
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "helm").symlink_to(helm_program())

    def show_build(line: str) -> str:
        return reader.run(line.replace("make images", "make -n images"))

    def this_cluster(line: str) -> str:
        if "--keep-cluster" in line:  # what one finds there is served for long
            wait_until("our kinds to be served", lambda: "trainingruns" in reader.run("kubectl api-resources"), 60.0)
        return ""

    def load(line: str) -> str:
        images = shlex.split(line.partition(" in ")[2].partition(";")[0])
        assert all((ROOT / "images" / image).is_dir() for image in images), images
        return ""

    def install_and_start(line: str) -> str:
        said = reader.run(line)
        cluster.start_operator()
        return said

    def watch(line: str) -> str:
        wait_until("the run to be ready", cluster.is_ready, READY_SECONDS)
        token = next(block.text for block in blocks("docs/nodes.md")).splitlines()[0]
        reader.run(f"cd {tmp_path}; {token}")  # the line of another page that wants such a run
        assert len((tmp_path / "token").read_text()) >= 32
        return reader.run(line.removesuffix(" -w"))

    reader = PageReader(
        ROOT,
        tmp_path,
        words={},
        instead=[
            Instead("make e2e", "builds a node as root for an hour: this cluster", this_cluster),
            Instead("make images", "builds for an hour: e2e/test_images.py; told what it does", show_build),
            Instead("VARIANT=cuda make images", "the same", show_build),
            Instead("REPOSITORY=registry.corp.example/shoal make images", "the same", show_build),
            Instead("kind create", "kind takes the machine for itself (make e2e E2E=kind): this cluster", this_cluster),
            Instead("for image in operator", "a hollow node pulls nothing: the images are ones that we build", load),
            Instead(
                "helm install shoal charts/shoal --namespace shoal-system --create-namespace",
                "as it is; the operator is started, as no node runs its pods",
                install_and_start,
            ),
            Instead("kubectl -n research get trun -w", "goes on until it is stopped: asked once it is ready", watch),
        ],
        environment={
            "PATH": f"{tmp_path / 'bin'}:{cluster.plane.programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.plane.kubeconfig),
        },
    )  # fmt: skip
    said = reader.follow("docs/install.md")

    assert "arithmetic" in said["kubectl -n research get trun -w"]
    assert "successfully rolled out" in said["kubectl -n shoal-system rollout status deployment/shoal-operator"]
    assert "Phase:          Succeeded" in said["helm -n shoal-system test shoal"]
    assert "trainingruns.shoal.dev" in said["kubectl delete crd -l app.kubernetes.io/part-of=shoal"]
    last = cluster.kube.get("Deployment", "shoal-operator", OPERATOR_NAMESPACE)
    assert last is not None
    pod = last["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"].startswith("registry.corp.example/shoal/operator:")
    assert pod["imagePullSecrets"] == [{"name": "corp"}]
    assert cluster.kube.get("Secret", "corp", OPERATOR_NAMESPACE) is not None
    assert cluster.kube.get("Secret", "corp", RUNS) is not None
