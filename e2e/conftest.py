"""The cluster for all tests of a run, a namespace for each test, and what is kept when one fails.

Options: `--kubeconfig FILE` (that cluster, with images from `--images-from`), `--keep-cluster` (what a test made stays to be looked at).
E2E_CLUSTER=local or kind chooses otherwise; see `clusters.py`.
"""

import re
import tomllib
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from kube_client import Kube

from e2e import ROOT, clusters
from e2e.artifacts import collect
from e2e.kubectl import run_kubectl
from e2e.nodes.layout import Lacking
from e2e.space import Space
from servers import lacking

KEPT = ROOT / ".cache" / "e2e"
ARCHIVES = ROOT / ".cache" / "images"
CURRENT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TOUCHED: pytest.StashKey[list[str]] = pytest.StashKey()
"""Namespaces that a test works in."""
BROKEN: pytest.StashKey[str] = pytest.StashKey()
"""Of a module: the first of its tests that failed."""
ARCHIVE_OF = {"trainer": "runtime", "worker": "runtime", "validator": "runtime"}
"""Roles that come in one archive with others; every other role has its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubeconfig", metavar="FILE", help="run on this cluster instead of starting one")
    parser.addoption(
        "--images-from", metavar="PREFIX", default="", help="with --kubeconfig: where its nodes find the images, such as registry.example.org/shoal"
    )  # fmt: skip
    parser.addoption("--image-tag", metavar="TAG", default=CURRENT, help=f"tag of the images (default: {CURRENT})")
    parser.addoption(
        "--keep-cluster", action="store_true", help="leave the cluster and each test's namespace as they are at the end"
    )


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[clusters.Cluster]:
    """The cluster, up. Fails when this machine is not as it was after it is taken down."""
    keep = request.config.getoption("--keep-cluster")
    try:
        made = clusters.choose(request.config.getoption("--kubeconfig"), keep, KEPT)
    except Lacking as error:
        lacking("a cluster", str(error))
    yield made
    left = made.close()
    assert not left, f"the node left something behind: {'; '.join(left)}"


@pytest.fixture(scope="session")
def kube(cluster: clusters.Cluster) -> Iterator[Kube]:
    """An administrator's client."""
    client = Kube(cluster.kubeconfig)
    yield client
    client.close()


@pytest.fixture(scope="session")
def api_address(kube: Kube) -> tuple[str, int]:
    """Where pods find the API server: the address and port of Service `kubernetes`."""
    service = kube.get("Service", "kubernetes", "default")
    assert service is not None
    return service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]


@pytest.fixture(scope="session")
def need_images(request: pytest.FixtureRequest, cluster: clusters.Cluster) -> Callable[..., None]:
    """`need_images("operator", "redis")`: these are on the cluster, or the test is skipped (in CI: fails)."""
    given = request.config.getoption("--kubeconfig") is not None

    def load(*roles: str) -> None:
        if given:
            return
        archives = [ARCHIVES / f"{name}.tar" for name in dict.fromkeys(ARCHIVE_OF.get(role, role) for role in roles)]
        absent = [path.stem for path in archives if not path.exists()]
        if absent:
            lacking(f"image {', '.join(absent)}", f'run `make images ROLES="{" ".join(absent)}"`')
        cluster.load(archives)

    return load


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The name of a role's image on this cluster."""
    prefix = request.config.getoption("--images-from") or "shoal"
    tag = request.config.getoption("--image-tag")
    return lambda role: f"{prefix}/{role}:{tag}"


def go_on(request: pytest.FixtureRequest, namespace: str) -> None:
    """Begin a test where the one before it in its module left off, in this namespace; skip it when one of them has failed."""
    request.node.stash[TOUCHED] = [namespace]
    if broken := request.node.parent.stash.get(BROKEN, ""):
        pytest.skip(f"the story broke in {broken}")


@contextmanager
def open_space(
    config: pytest.Config, kubeconfig: Path, kube: Kube, image: Callable[[str], str], title: str
) -> Iterator[Space]:
    """A namespace under the restricted pod security standard, named after `title`; removed at the end unless clusters are kept."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower())[:40].strip("-")
    name = f"{slug}-{uuid.uuid4().hex[:6]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "shoal.dev/e2e": "yes"}
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        yield Space(kube, name, kubeconfig, image)
    finally:
        if not config.getoption("--keep-cluster"):
            kube.delete("Namespace", name)


@pytest.fixture
def space(
    request: pytest.FixtureRequest,
    cluster: clusters.Cluster,
    kube: Kube,
    image: Callable[[str], str],
    need_images: Callable[..., None],
) -> Iterator[Space]:
    """A namespace of this test's own."""
    need_images("operator")
    title = request.node.name.removeprefix("test_")
    with open_space(request.config, cluster.kubeconfig, kube, image, title) as made:
        request.node.stash[TOUCHED] = [made.name]
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what there is of a failed test, while its namespace is still there."""
    report = yield
    if report.failed and item.parent is not None:
        item.parent.stash.setdefault(BROKEN, item.name)
    if report.failed and TOUCHED in item.stash and "cluster" in item.funcargs:
        kubeconfig = cast(clusters.Cluster, item.funcargs["cluster"]).kubeconfig
        folder = KEPT / re.sub(r"[^\w.-]+", "_", item.nodeid)
        first = collect(lambda *arguments: run_kubectl(kubeconfig, *arguments), item.stash[TOUCHED], folder)
        where = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else Path(folder)
        report.sections.append(("first error", f"{first or 'nothing looks wrong on the cluster'}\nkept: {where}"))
    return report
