"""One control plane for all tests of this folder, a namespace for each test, and the operator as a process of its own.

With `pytest --kubeconfig FILE` the cluster behind that file is used instead; tests that kill, freeze or look into the control plane are then skipped.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_story import Story
from control_plane import ControlPlane, find_programs, install, shipped_crds
from fault_proxy import FaultProxy
from hollow_node import HollowNode
from kube_audit import AuditLog
from kube_client import Kube, make_namespace
from operator_process import ACCOUNT, OPERATOR_NAMESPACE, PATIENT, OperatorProcess, StartOperator, install_operator
from orchestrators import Orchestrators

from servers import Loopback


@pytest.fixture(scope="session")
def own_control_plane(
    request: pytest.FixtureRequest, loopback: Loopback, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane | None]:
    """The control plane that this test run started; None when `--kubeconfig` names another."""
    if request.config.getoption("--kubeconfig"):
        yield None
        return
    plane = ControlPlane(loopback.address(), tmp_path_factory.mktemp("control-plane"), find_programs())
    try:
        plane.start(shipped_crds())
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def whole_control_plane(own_control_plane: ControlPlane | None) -> ControlPlane:
    """The control plane as processes, or a skipped test: not on somebody's cluster."""
    if own_control_plane is None:
        pytest.skip("kills, plays nodes or reads the audit log: not done to the cluster of --kubeconfig")
    return own_control_plane


@pytest.fixture
def control_plane(whole_control_plane: ControlPlane) -> ControlPlane:
    """The control plane for tests that break it or look into it. Whoever breaks it mends it."""
    return whole_control_plane


@pytest.fixture(scope="session")
def kube(request: pytest.FixtureRequest, own_control_plane: ControlPlane | None) -> Iterator[Kube]:
    """An administrator's client of the API server, with the shipped CRDs installed."""
    given = request.config.getoption("--kubeconfig")
    client = Kube(Path(given) if own_control_plane is None else own_control_plane.kubeconfig)
    if own_control_plane is None:
        install(client, shipped_crds())
    yield client
    client.close()


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """A namespace for this test, of restricted pods."""
    name = make_namespace(kube)
    yield name
    kube.delete("Namespace", name)


@pytest.fixture(scope="session")
def node(whole_control_plane: ControlPlane, kube: Kube) -> Iterator[HollowNode]:
    """The node that takes every pod."""
    hollow = HollowNode(kube)
    hollow.start()
    yield hollow
    hollow.close()


@pytest.fixture(scope="session")
def orchestrators(loopback: Loopback) -> Iterator[Orchestrators]:
    """What answers for every run's orchestrator."""
    stand_in = Orchestrators(loopback.address())
    yield stand_in
    stand_in.close()


@pytest.fixture
def story(kube: Kube, namespace: str, node: HollowNode, orchestrators: Orchestrators) -> Story:
    """A namespace of this test with pods that start."""
    return Story(kube, namespace, node, orchestrators)


@pytest.fixture
def audit(control_plane: ControlPlane) -> AuditLog:
    """What service accounts ask from now on."""
    log = AuditLog(control_plane.audit_log)
    log.mark()
    return log


def _starter(
    plane: ControlPlane, kube: Kube, loopback: Loopback, services: Orchestrators, folder: Path
) -> Iterator[StartOperator]:
    started: list[OperatorProcess] = []
    if kube.get("Namespace", OPERATOR_NAMESPACE) is None:
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}})
    kube.delete("Lease", "shoal-operator", OPERATOR_NAMESPACE)

    def start(
        *scope: str,
        name: str = "",
        server: str | None = None,
        install_rbac: bool = True,
        lease_seconds: int = 14,
        release: str = "",
        patience: float | None = None,
    ) -> OperatorProcess:
        scope = scope or ("--all-namespaces",)
        if install_rbac and not started:
            install_operator(kube, *scope)
        name = name or f"operator-{len(started)}"
        kubeconfig = plane.account_kubeconfig(kube, OPERATOR_NAMESPACE, ACCOUNT, server)
        arguments = [*scope, "--lease-seconds", str(lease_seconds)]
        process = OperatorProcess(
            name, kubeconfig, arguments, folder / name, loopback, services.address, release, patience=patience
        )
        started.append(process)
        process.start()
        return process

    try:
        yield start
    finally:
        for process in started:
            process.stop()
            print(f"operator {process.name} wrote last:\n{process.log[-3000:]}")  # shown where the test failed


@pytest.fixture(scope="module")
def operator(
    whole_control_plane: ControlPlane,
    kube: Kube,
    loopback: Loopback,
    orchestrators: Orchestrators,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    """One operator for a module's tests, cluster-wide."""
    folder = tmp_path_factory.mktemp("operator")
    for start in _starter(whole_control_plane, kube, loopback, orchestrators, folder):
        yield start(lease_seconds=PATIENT)


@pytest.fixture
def start_operator(
    control_plane: ControlPlane, kube: Kube, loopback: Loopback, orchestrators: Orchestrators, tmp_path: Path
) -> Iterator[StartOperator]:
    """`start_operator("--namespace", ns, name="a", server=proxy.url)`: replicas for one test, cluster-wide unless told otherwise."""
    yield from _starter(control_plane, kube, loopback, orchestrators, tmp_path)


@pytest.fixture
def proxy(control_plane: ControlPlane, loopback: Loopback) -> Iterator[FaultProxy]:
    """A way to the API server that can be broken."""
    made = FaultProxy(control_plane, loopback)
    made.start()
    yield made
    made.stop()
