"""NetworkPolicies are enforced: what they deny does not connect, what they allow does. Each test first shows that the way was open."""

from typing import Any

from e2e import clusters
from e2e.space import Space

Object = dict[str, Any]

PORT = 8080


def policy(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def start(space: Space, *pods: Object) -> None:
    space.apply(*pods)
    space.wait_ready(*(pod["metadata"]["name"] for pod in pods))


def test_a_pod_is_shut_off_by_a_denying_policy_and_opened_to_one_peer_by_an_allowing_one(space: Space) -> None:
    start(
        space,
        space.probe_pod("server", serves=PORT),
        space.probe_pod("friend", {"role": "friend"}),
        space.probe_pod("stranger"),
    )
    server = space.address("server")
    for pod in ("friend", "stranger"):
        space.wait_reach(pod, server, PORT, can=True)

    selector = {"podSelector": {"matchLabels": {"app": "server"}}}
    space.apply(policy("deny", **selector, policyTypes=["Ingress"]))
    for pod in ("friend", "stranger"):
        space.wait_reach(pod, server, PORT, can=False)

    friends = {"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}], "ports": [{"port": "http"}]}
    space.apply(policy("allow", **selector, policyTypes=["Ingress"], ingress=[friends]))
    space.wait_reach("friend", server, PORT, can=True)
    assert not space.reaches("stranger", server, PORT)

    for name in ("deny", "allow"):
        space.kube.delete("NetworkPolicy", name, space.name)
    space.wait_reach("stranger", server, PORT, can=True)


def test_a_policy_holds_between_pods_on_two_nodes_and_names_are_found_on_both(
    space: Space, cluster: clusters.Cluster
) -> None:
    """On a cluster of one node all pods are on it."""
    nodes = untainted(space)
    assert len(nodes) == 2 or not isinstance(cluster, clusters.KindCluster)
    first, last = nodes[0], nodes[-1]
    start(
        space,
        space.probe_pod("server", serves=PORT, nodeName=first),
        space.probe_pod("friend", {"role": "friend"}, nodeName=last),
        space.probe_pod("stranger", nodeName=last),
        space.probe_pod("neighbour", {"role": "friend"}, nodeName=first),
    )
    space.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "door"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": "http"}]},
        }
    )
    for pod in ("friend", "stranger", "neighbour"):
        space.wait_reach(pod, f"door.{space.name}.svc", 80, can=True)
    friends = {"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}]}
    selector = {"podSelector": {"matchLabels": {"app": "server"}}}
    space.apply(policy("allow", **selector, policyTypes=["Ingress"], ingress=[friends]))
    space.wait_reach("stranger", f"door.{space.name}.svc", 80, can=False)
    for pod in ("friend", "neighbour"):
        assert space.reaches(pod, f"door.{space.name}.svc", 80)


def untainted(space: Space) -> list[str]:
    """Names of the nodes that take any pod, in order."""
    return sorted(
        node["metadata"]["name"]
        for node in space.kube.list("Node")
        if not node["spec"].get("taints") and not node["spec"].get("unschedulable")
    )


def test_a_policy_holds_for_connections_through_a_service_too(space: Space) -> None:
    ports = [{"port": 80, "targetPort": "http"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "door"},
        "spec": {"selector": {"app": "server"}, "ports": ports},
    }
    start(space, space.probe_pod("server", serves=PORT), space.probe_pod("client"))
    space.apply(service)
    space.wait(
        "the service's name",
        lambda: space.run("client", "python", "-c", "import socket; print(socket.gethostbyname('door'))"),
    )
    space.wait_reach("client", "door", 80, can=True)
    space.apply(policy("deny", podSelector={"matchLabels": {"app": "server"}}, policyTypes=["Ingress"]))
    space.wait_reach("client", "door", 80, can=False)


def test_a_pod_without_egress_reaches_neither_pods_nor_names_nor_the_api_server(
    space: Space, api_address: tuple[str, int]
) -> None:
    start(space, space.probe_pod("server", serves=PORT), space.probe_pod("client", {"confined": "yes"}))
    server = space.address("server")
    space.wait_reach("client", server, PORT, can=True)
    space.wait_reach("client", *api_address, can=True)

    confined = {"podSelector": {"matchLabels": {"confined": "yes"}}, "policyTypes": ["Egress"]}
    space.apply(policy("confine", **confined))
    space.wait_reach("client", server, PORT, can=False)
    space.wait_reach("client", *api_address, can=False)
    code = "import socket\ntry: print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))\nexcept OSError as e: print(type(e).__name__)"
    assert space.run("client", "python", "-c", code) == "gaierror"

    peer = [{"podSelector": {"matchLabels": {"app": "server"}}}]
    space.apply(policy("to-server", **confined, egress=[{"to": peer, "ports": [{"port": PORT}]}]))
    space.wait_reach("client", server, PORT, can=True)
    assert not space.reaches("client", *api_address)


def test_a_policy_reaches_a_pod_that_comes_later(space: Space) -> None:
    space.apply(policy("deny", podSelector={"matchLabels": {"app": "late"}}, policyTypes=["Ingress"]))
    start(space, space.probe_pod("client"), space.probe_pod("late", serves=PORT))
    space.wait_reach("client", space.address("late"), PORT, can=False)


def test_probes_of_the_node_pass_a_denying_policy(space: Space) -> None:
    space.apply(policy("deny", podSelector={}, policyTypes=["Ingress", "Egress"]))
    start(space, space.probe_pod("server", serves=PORT))  # it has a readiness probe over the network
