"""The cluster itself: what Shoal takes for granted of any Kubernetes, shown on real pods of the operator's image."""

from typing import Any

import pytest
from kube_client import Kube, Refused

from e2e import clusters
from e2e.space import Space, condition


def test_every_node_is_ready(kube: Kube, cluster: clusters.Cluster) -> None:
    nodes = kube.list("Node")
    assert nodes
    assert all(condition(node, "Ready") for node in nodes)
    if not isinstance(cluster, clusters.GivenCluster):
        assert all("containerd" in node["status"]["nodeInfo"]["containerRuntimeVersion"] for node in nodes)


def test_the_operators_image_runs_as_any_uid_and_can_write_nowhere_but_in_its_volumes(space: Space) -> None:
    space.apply(space.probe_pod("probe"))
    space.wait_ready("probe")
    assert space.run("probe", "python", "-c", "import os; print(os.getuid(), os.getgid())") == "23456 23456"
    status = space.run("probe", "python", "-c", "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert space.run("probe", "python", "-c", "open('/shoal/tmp/it', 'w').write('x'); print('written')") == "written"
    for place in ("/it", "/usr/it", "/opt/shoal/it", "/tmp/it"):  # noqa: S108 - none may be written
        with pytest.raises(RuntimeError, match="Read-only file system"):
            space.run("probe", "python", "-c", f"open('{place}', 'w')")
    assert space.run("probe", "python", "-m", "shoal_operator", "--help").startswith("usage:")


def test_a_pod_that_wants_root_is_not_admitted(space: Space) -> None:
    pod = space.probe_pod("root")
    pod["spec"]["securityContext"] = {**pod["spec"]["securityContext"], "runAsUser": 0, "runAsNonRoot": False}
    with pytest.raises(Refused, match="violates PodSecurity"):
        space.apply(pod)
    assert space.kube.list("Pod", space.name) == []


def test_a_headless_service_names_its_pods_and_a_service_its_own_address(space: Space) -> None:
    server = space.probe_pod("server", serves=8080, hostname="server", subdomain="group")
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    select = {"selector": {"app": "server"}, "ports": ports}
    space.apply(
        server,
        space.probe_pod("client"),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "group"}, "spec": {"clusterIP": "None", **select}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "door"}, "spec": select},
    )
    space.wait_ready("server", "client")

    def resolved(name: str) -> str:
        code = "import socket, sys\ntry: print(socket.gethostbyname(sys.argv[1]))\nexcept OSError as e: print(e)"
        return space.run("client", "python", "-c", code, name)

    own, door = space.address("server"), space.kube.get("Service", "door", space.name)
    assert door is not None
    space.wait("the pod's headless name", lambda: resolved(f"server.group.{space.name}.svc.cluster.local") == own)
    space.wait("the headless service's name", lambda: resolved("group") == own)
    assert resolved("door") == door["spec"]["clusterIP"]
    space.wait_reach("client", "door", 80, can=True)
    # The whole name: a bare one is asked of the world's servers last, which this machine may not reach.
    assert "not known" in resolved(f"nobody.{space.name}.svc.cluster.local.")


def test_what_is_written_to_a_claim_is_there_for_the_next_pod(space: Space) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    space.apply(claim)
    mounted: dict[str, Any] = {
        "volumes": [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}],
        "mounts": [{"name": "kept", "mountPath": "/shoal/kept"}],
    }
    space.apply(space.probe_pod("first", **mounted))
    space.wait_ready("first")
    space.run("first", "python", "-c", "open('/shoal/kept/it', 'w').write('from the first')")
    space.kube.delete("Pod", "first", space.name)
    space.wait("the first pod to be gone", lambda: space.kube.get("Pod", "first", space.name) is None)
    space.apply(space.probe_pod("second", **mounted))
    space.wait_ready("second")
    assert space.run("second", "python", "-c", "print(open('/shoal/kept/it').read())") == "from the first"
