"""What a release publishes, installed as a person does: `helm install oci://...` from a registry, with pods that run the digests of the chart's lock.

The registry is Debian's docker-registry on a loopback address, and where kind's nodes look for it. Nodes elsewhere do not reach it.
With `WRITE_RESULTS=1` its figures are written into benchmarks/results/release.json.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kube_client import Kube
from tools.release import plan as planned
from tools.release import programs, steps
from tools.release.plan import ReleasePlan

from e2e import clusters
from e2e.conftest import CURRENT, TOUCHED, open_space
from e2e.release import INSTALL_SECONDS, NAME, Release
from e2e.space import Space
from helm import run_helm
from servers import ROOT, Loopback, lacking, wait_until

RESULTS = ROOT / "benchmarks" / "results" / "release.json"


@pytest.fixture(scope="module")
def registry(cluster: clusters.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a registry that the node's containerd reaches."""
    with contextlib.ExitStack() as serving:
        network = Loopback()
        serving.callback(network.close)
        address = network.address()
        host = f"{address}:{network.port(address)}"
        shared = cluster.share_registry(host)
        if shared is None:
            pytest.skip("a registry of this machine is not reached from nodes elsewhere")
        program = os.environ.get("REGISTRY_PROGRAM") or shutil.which("docker-registry") or ""
        if not program or shutil.which("skopeo") is None:
            lacking("docker-registry or skopeo", "apt-get install -y docker-registry skopeo")
        folder = tmp_path_factory.mktemp("registry")
        for number, place in enumerate(sorted({host, shared})):
            serving.enter_context(served(program, place, folder, folder / f"{number}.log"))
        client = programs.RegistryClient(planned.make_plan(CURRENT, host, ["operator"]))
        wait_until("the registry to answer", lambda: client.problem() == "", seconds=30.0)
        yield host


@contextlib.contextmanager
def served(program: str, address: str, folder: Path, log: Path) -> Iterator[None]:
    """A registry at an address and port, over a folder that others may serve too."""
    settings = {"version": "0.1", "http": {"addr": address}, "storage": {"filesystem": {"rootdirectory": str(folder)}}}
    written = log.with_suffix(".yml")
    written.write_text(json.dumps(settings))
    with log.open("wb") as output:
        process = subprocess.Popen([program, "serve", written], stdout=output, stderr=output)
    try:
        wait_until(f"the registry at {address}; its log is {log}", lambda: answers(address), seconds=30.0)
        yield
    finally:
        process.terminate()
        process.wait(20)


def answers(address: str) -> bool:
    """Whether somebody listens at an address and port."""
    host, _, port = address.partition(":")
    with socket.socket() as one:
        return one.connect_ex((host, int(port))) == 0


def record(**figures: object) -> None:
    """Write figures into `benchmarks/results/release.json` where `WRITE_RESULTS` asks for it."""
    if os.environ.get("WRITE_RESULTS"):
        RESULTS.write_text(json.dumps(json.loads(RESULTS.read_text()) | figures, indent=2) + "\n")


@pytest.fixture(scope="module")
def published(registry: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[ReleasePlan, steps.ReleaseFolder, str]:
    """A release of the operator's image and the chart: its plan, its folder, and the digest of the chart."""
    plan = planned.make_plan(CURRENT, registry, ["operator"], (), ["amd64"])
    work = steps.ReleaseFolder(tmp_path_factory.mktemp("release"))
    work.begin(version=plan.version)
    programs.checkout(work.source)
    client = programs.RegistryClient(plan)
    [image] = plan.images
    digest = programs.build_image(plan, image, "amd64", work.source)
    compressed = client.bytes_of(f"{registry}/shoal/operator@{digest}")
    record(images={"operator-amd64": {"compressed_mb": round(compressed / 1e6, 1)}})
    index = client.push_index(plan.at(image), [digest])
    assert client.push_index(plan.at(image), [digest]) == index  # a release that is made again changes nothing
    assert client.digest(plan.at(image)) is None  # nothing is named before it is signed
    for _ in range(2):
        client.name(plan.at(image), index)
    with pytest.raises(planned.CannotRelease, match="never replaced"):
        client.name(plan.at(image), digest)
    steps.pack_chart(plan, {image.name(plan.version): index}, {}, work)
    chart = client.push_chart(work.files / f"shoal-{CURRENT}.tgz")
    assert client.digest(f"{plan.chart}:{CURRENT}") is None
    client.name(f"{plan.chart}:{CURRENT}", chart)
    return plan, work, chart


def test_the_chart_in_the_registry_is_the_packed_one_and_its_lock_has_the_registrys_digests(
    published: tuple[ReleasePlan, steps.ReleaseFolder, str], tmp_path: Path
) -> None:
    plan, work, chart = published
    client = programs.RegistryClient(plan)
    assert client.digest(f"{plan.chart}:{CURRENT}") == chart
    pulled = client.pull_chart(CURRENT, tmp_path)
    assert pulled.read_bytes() == (work.files / pulled.name).read_bytes()
    lock = steps.lock_of(pulled)
    assert lock["digests"] == {f"shoal/operator:{CURRENT}": client.digest(f"{plan.registry}/shoal/operator:{CURRENT}")}
    printed = run_helm("template", NAME, pulled, folder=tmp_path)
    assert f"{plan.registry}/shoal/operator:{CURRENT}@{lock['digests'][f'shoal/operator:{CURRENT}']}" in printed


@pytest.fixture
def empty_space(
    request: pytest.FixtureRequest, cluster: clusters.Cluster, kube: Kube, image: Callable[[str], str]
) -> Iterator[Space]:
    """A namespace on a node that no image was imported into for this test."""
    with open_space(request.config, cluster.kubeconfig, kube, image, "published") as made:
        request.node.stash[TOUCHED] = [made.name]
        yield made


def test_helm_install_from_the_registry_brings_ready_operators_of_the_locked_digest(
    published: tuple[ReleasePlan, steps.ReleaseFolder, str],
    empty_space: Space,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    plan, work, _ = published
    space = empty_space
    release = Release(space, tmp_path)
    locked = json.loads((work.files / "images.lock.json").read_text())["digests"][f"shoal/operator:{CURRENT}"]
    started = time.monotonic()
    release.helm(
        "install", NAME, f"oci://{plan.chart}", "--version", CURRENT, "--plain-http", "--take-ownership", "--wait",
        "--timeout", f"{INSTALL_SECONDS}s", "--set", f"operator.namespaces={{{space.name}}}",
    )  # fmt: skip
    record(helm_install_to_ready_seconds=round(time.monotonic() - started, 1))
    try:
        assert len(release.ready_pods()) == 2
        for name in release.ready_pods():
            pod = space.kube.get("Pod", name, space.name)
            assert pod is not None
            [status] = pod["status"]["containerStatuses"]
            assert status["imageID"] == f"{plan.registry}/shoal/operator@{locked}"
    finally:
        if not request.config.getoption("--keep-cluster"):
            release.uninstall()
