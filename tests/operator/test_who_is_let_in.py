"""From which namespace a run's policies let the operator in."""

from typing import Any

import yaml
from test_golden_children import GOLDEN

from shoal_operator.children.network import OPERATOR
from shoal_operator.children.site import Site, at_site


def children() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((GOLDEN / "trainingrun" / "running" / "out.yaml").read_text()))


def callers(child: dict[str, Any]) -> list[Any]:
    return [peer for rule in child["spec"].get("ingress", []) for peer in rule.get("from", [])]


def test_an_operator_in_a_pod_is_let_in_from_its_own_namespace_and_nothing_else_changes() -> None:
    own = {**OPERATOR, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shoal-system"}}}
    named = 0
    for child in children():
        if child["kind"] != "NetworkPolicy":
            continue
        laid = at_site(child, Site(), "shoal-system")
        assert callers(laid) == [own if peer == OPERATOR else peer for peer in callers(child)]
        assert {**laid, "spec": {**laid["spec"], "ingress": []}} == {**child, "spec": {**child["spec"], "ingress": []}}
        named += callers(laid).count(own)
    assert named == 1


def test_an_operator_outside_of_the_cluster_is_let_in_as_the_builders_say() -> None:
    policies = [child for child in children() if child["kind"] == "NetworkPolicy"]
    assert [at_site(child, Site()) for child in policies] == policies
    assert sum(callers(child).count(OPERATOR) for child in policies) == 1
