"""NetworkPolicies as firewall rules: which pods get chains, what these let through, and in which order packets meet them."""

from typing import Any

import pytest
from e2e.nodes.policy_rules import ENTRY, World, compile_rules, matches, restore_text

Object = dict[str, Any]


def pod(
    name: str, address: str = "", namespace: str = "ns", *, ports: dict[str, int] | None = None, **labels: str
) -> Object:
    listed = [{"name": each, "containerPort": number} for each, number in (ports or {}).items()]
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "labels": labels},
        "spec": {"containers": [{"name": "main", "ports": listed}]},
        "status": {"podIP": address, "phase": "Running"},
    }


def policy(namespace: str = "ns", **spec: Any) -> Object:
    return {"metadata": {"name": "policy", "namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def namespace(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


SERVER = pod("server", "10.0.0.1", ports={"http": 8080}, app="server")
CLIENT = pod("client", "10.0.0.2", app="client")
ELSEWHERE = pod("elsewhere", "10.0.0.3", namespace="other", app="client")
PODS = [SERVER, CLIENT, ELSEWHERE]
SPACES = [namespace("ns", team="a"), namespace("other", team="b")]


def only_chain(*policies: Object, pods: list[Object] = PODS) -> list[str]:
    """The rules of the one pod that is selected."""
    chains = compile_rules(World.of(list(policies), pods, SPACES))
    [name] = [each for each in chains if each != ENTRY]
    return chains[name]


def to_server(**rule: Any) -> list[str]:
    return only_chain(policy(podSelector={"matchLabels": {"app": "server"}}, ingress=[rule]))


def from_client(**rule: Any) -> list[str]:
    return only_chain(
        policy(podSelector={"matchLabels": {"app": "client"}}, policyTypes=["Egress"], egress=[rule]), pods=PODS
    )


def test_without_policies_nothing_is_dropped() -> None:
    assert compile_rules(World.of([], PODS, SPACES)) == {
        ENTRY: ["-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
    }


def test_a_pod_that_a_policy_selects_and_allows_nothing_drops_all_and_others_have_no_chain() -> None:
    chains = compile_rules(World.of([policy(podSelector={"matchLabels": {"app": "server"}})], PODS, SPACES))
    [chain] = [each for each in chains if each != ENTRY]
    assert chains[chain] == ["-j DROP"]
    assert chains[ENTRY] == ["-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN", f"-d 10.0.0.1/32 -j {chain}"]


def test_what_a_source_may_send_is_asked_before_what_a_target_may_receive() -> None:
    chains = compile_rules(World.of([policy(policyTypes=["Ingress", "Egress"])], PODS, SPACES))
    kinds = [rule.split()[0] for rule in chains[ENTRY][1:]]
    assert kinds == ["-s", "-s", "-d", "-d"]


def test_a_rule_without_peers_and_ports_lets_everything_in() -> None:
    assert to_server() == ["-s 0.0.0.0/0 -j RETURN", "-j DROP"]


def test_a_pod_selector_means_pods_of_the_policys_own_namespace() -> None:
    assert to_server(**{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}) == [
        "-s 10.0.0.2/32 -j RETURN",
        "-j DROP",
    ]


def test_a_namespace_selector_with_a_pod_selector_means_both() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "b"}}, "podSelector": {"matchLabels": {"app": "client"}}}
    assert to_server(**{"from": [peer]}) == ["-s 10.0.0.3/32 -j RETURN", "-j DROP"]


def test_an_empty_namespace_selector_means_every_pod_of_the_cluster() -> None:
    assert sorted(to_server(**{"from": [{"namespaceSelector": {}}]})[:-1]) == [
        "-s 10.0.0.1/32 -j RETURN",
        "-s 10.0.0.2/32 -j RETURN",
        "-s 10.0.0.3/32 -j RETURN",
    ]


def test_a_peer_that_selects_nobody_is_not_everybody() -> None:
    assert to_server(**{"from": [{"podSelector": {"matchLabels": {"app": "nobody"}}}]}) == ["-j DROP"]


def test_an_address_block_is_cut_around_its_exceptions() -> None:
    block = {"cidr": "10.0.0.0/29", "except": ["10.0.0.0/31", "10.0.0.4/30"]}
    assert to_server(**{"from": [{"ipBlock": block}]}) == ["-s 10.0.0.2/31 -j RETURN", "-j DROP"]


def test_an_exception_that_covers_the_whole_block_leaves_nothing() -> None:
    assert to_server(**{"from": [{"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.0.0/16"]}}]}) == ["-j DROP"]


def test_an_ipv6_block_says_nothing_about_ipv4() -> None:
    assert to_server(**{"from": [{"ipBlock": {"cidr": "::/0"}}]}) == ["-j DROP"]


@pytest.mark.parametrize(
    ("port", "rule"),
    [
        ({"port": 53, "protocol": "UDP"}, "-s 0.0.0.0/0 -p udp -m udp --dport 53 -j RETURN"),
        ({"port": 1000, "endPort": 2000}, "-s 0.0.0.0/0 -p tcp -m tcp --dport 1000:2000 -j RETURN"),
        ({"protocol": "TCP"}, "-s 0.0.0.0/0 -p tcp -j RETURN"),
        ({"port": "http"}, "-s 0.0.0.0/0 -p tcp -m tcp --dport 8080 -j RETURN"),
    ],
)
def test_ports_are_numbers_ranges_protocols_or_names_of_the_targets_own(port: Object, rule: str) -> None:
    assert to_server(ports=[port]) == [rule, "-j DROP"]


def test_a_name_of_a_port_that_the_target_does_not_have_lets_nothing_in() -> None:
    assert to_server(ports=[{"port": "grpc"}]) == ["-j DROP"]


def test_on_the_way_out_a_named_port_is_the_peers_and_holds_for_that_peer_only() -> None:
    expected = ["-d 10.0.0.1/32 -p tcp -m tcp --dport 8080 -j RETURN", "-j DROP"]
    assert from_client(to=[{"podSelector": {}}], ports=[{"port": "http"}]) == expected
    assert from_client(ports=[{"port": "http"}]) == expected


def test_policies_add_up() -> None:
    first, second = policy(ingress=[{"ports": [{"port": 1}]}]), policy(ingress=[{"ports": [{"port": 2}]}])
    assert len(only_chain(first, second, pods=[SERVER])) == 3


def test_without_policy_types_egress_is_only_meant_when_there_are_egress_rules() -> None:
    def directions(made: Object) -> set[str]:
        return {name.split("-")[1] for name in compile_rules(World.of([made], PODS, SPACES)) if name != ENTRY}

    assert directions(policy()) == {"I"}
    assert directions(policy(egress=[{}])) == {"I", "E"}


def test_pods_that_have_no_traffic_of_their_own_are_left_out() -> None:
    on_the_host = {**pod("host", "10.0.0.9"), "spec": {"hostNetwork": True, "containers": []}}
    ended = {**pod("ended", "10.0.0.8"), "status": {"podIP": "10.0.0.8", "phase": "Succeeded"}}
    assert World.of([], [on_the_host, ended, pod("pending")], SPACES).pods == []


@pytest.mark.parametrize(
    ("operator", "values", "selects"),
    [
        ("In", ["a", "b"], True),
        ("NotIn", ["a"], False),
        ("NotIn", ["c"], True),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ],
)
def test_expressions_select_as_kubernetes_says(operator: str, values: list[str], selects: bool) -> None:
    expression = {"key": "team", "operator": operator, "values": values}
    assert matches({"matchExpressions": [expression]}, {"team": "a"}) is selects


def test_a_label_that_is_missing_is_not_in_any_list() -> None:
    assert matches({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, {})
    assert not matches({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]}, {})


def test_an_unknown_operator_is_an_error_and_not_a_permission() -> None:
    with pytest.raises(ValueError, match="'Near'"):
        matches({"matchExpressions": [{"key": "team", "operator": "Near"}]}, {})


def test_chains_of_pods_that_are_gone_are_removed_and_nobody_elses() -> None:
    text = restore_text({ENTRY: ["-j RETURN"]}, [ENTRY, "SHOAL-I-old", "KUBE-FORWARD", "FORWARD"])
    assert text == f"*filter\n:{ENTRY} - [0:0]\n:SHOAL-I-old - [0:0]\n-A {ENTRY} -j RETURN\n-X SHOAL-I-old\nCOMMIT\n"
