"""What `python -m shoal_operator.install` prints: no wildcard, what is served and nothing else, and an operator that restricted namespaces admit."""

from typing import Any

import pytest
import yaml
from tools.crds.crd import PLURALS

from shoal_operator.engine.cluster import CHILD_KINDS
from shoal_operator.engine.kinds import CACHED, CHILDREN, OWN, OWN_KINDS, SCALED_KINDS
from shoal_operator.engine.kubernetes_cluster import SCALE_MANAGER
from shoal_operator.engine.manager import GRACE_SECONDS
from shoal_operator.engine.permissions import CLUSTER_WIDE, EDITORS, OPERATOR_NAMESPACE, VIEWERS, WATCHED, rules
from shoal_operator.install import aggregated, main, objects
from shoal_operator.reconcile import scaled


def by_kind(made: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in made if each["kind"] == kind]


def test_no_permission_is_a_wildcard_and_each_has_a_reason() -> None:
    for row in (*WATCHED, *CLUSTER_WIDE, *OPERATOR_NAMESPACE):
        assert "*" not in (row.group, row.resource, *row.verbs)
        assert row.why
    assert len({(row.group, row.resource, row.resource_names) for row in WATCHED}) == len(WATCHED)


def test_rows_with_the_same_verbs_become_one_rule_and_none_is_lost() -> None:
    made = {
        (group, resource, verb)
        for rule in rules(WATCHED)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert made == {(row.group, row.resource, verb) for row in WATCHED for verb in row.verbs}
    assert len(rules(WATCHED)) < len(WATCHED)


def test_pods_nodes_and_roles_are_never_written() -> None:
    verbs = {row.resource: set(row.verbs) for row in WATCHED}
    assert verbs["pods"] == {"list", "watch"}
    assert not {"nodes", "roles", "pods/exec", "namespaces"} & set(verbs)


def test_a_namespaced_install_has_a_role_in_each_namespace_and_no_cluster_role_of_its_own() -> None:
    made = objects(["research", "staging"])
    assert by_kind(made, "ClusterRole") == aggregated()
    assert by_kind(made, "ClusterRoleBinding") == []
    roles = {(role["metadata"]["namespace"], role["metadata"]["name"]) for role in by_kind(made, "Role")}
    assert roles == {
        ("shoal-system", "shoal-operator-lease"),
        ("research", "shoal-operator"),
        ("staging", "shoal-operator"),
    }
    for binding in by_kind(made, "RoleBinding"):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "shoal-operator", "namespace": "shoal-system"}
        ]
    [operator] = by_kind(made, "Deployment")
    [container] = operator["spec"]["template"]["spec"]["containers"]
    assert container["args"][:4] == ["--namespace", "research", "--namespace", "staging"]


def test_a_cluster_wide_install_has_one_cluster_role_and_the_leases_role() -> None:
    made = objects([])
    [role, *others] = by_kind(made, "ClusterRole")
    assert others == aggregated()
    [binding] = by_kind(made, "ClusterRoleBinding")
    assert role["metadata"]["name"] == binding["roleRef"]["name"]
    assert role["rules"] == rules((*WATCHED, *CLUSTER_WIDE))
    [lease] = by_kind(made, "Role")
    assert lease["rules"][1]["resourceNames"] == ["shoal-operator"]
    [operator] = by_kind(made, "Deployment")
    [container] = operator["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "--all-namespaces"


def test_people_get_our_kinds_and_nothing_else_and_never_write_a_status() -> None:
    rows = [*EDITORS, *VIEWERS]
    assert {row.group for row in rows} == {"shoal.dev"}
    assert all("*" not in (row.resource, *row.verbs) and row.why for row in rows)
    assert {verb for row in rows if row.resource.endswith("/status") for verb in row.verbs} == {"get"}
    assert {verb for row in VIEWERS for verb in row.verbs} == {"get", "list", "watch"}
    allowed = {(row.resource, verb) for row in EDITORS for verb in row.verbs}
    assert {(row.resource, verb) for row in VIEWERS for verb in row.verbs} < allowed
    joined = {
        role["metadata"]["name"]: {
            label.rpartition("-")[2] for label in role["metadata"]["labels"] if "/aggregate" in label
        }
        for role in aggregated()
    }
    assert joined == {"shoal-edit": {"edit", "admin"}, "shoal-view": {"view"}}


def test_the_operators_own_pod_is_restricted_probed_and_never_alone() -> None:
    made = objects(["a"])
    [operator] = by_kind(made, "Deployment")
    assert operator["spec"]["replicas"] == 2
    pod = operator["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "startupProbe")} == {"/healthz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert pod["terminationGracePeriodSeconds"] > GRACE_SECONDS + 5
    [budget] = by_kind(made, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1


def test_it_is_printed_as_yaml_without_anchors(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["--namespace", "b", "--namespace", "a", "--operator-namespace", "ops", "--image", "registry/op:1"]) == 0
    )
    printed = capsys.readouterr().out
    assert "&id" not in printed
    assert list(yaml.safe_load_all(printed)) == objects(["a", "b"], home="ops", image="registry/op:1")


@pytest.mark.parametrize("arguments", [[], ["--namespace", "a", "--all-namespaces"]])
def test_what_is_served_must_be_said_and_only_one_way(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "--namespace" in capsys.readouterr().err


def test_the_engine_knows_every_kind_that_builders_and_reconcilers_use() -> None:
    assert set(CHILDREN) == set(CHILD_KINDS) - {"Pod"}
    assert set(OWN_KINDS) == {"TrainingRun", *scaled.SCALED_KINDS}
    assert {kind: own.plural for kind, own in OWN.items()} == PLURALS
    assert set(SCALED_KINDS) == set(scaled.SCALED_KINDS)
    assert list(CACHED)[: len(OWN)] == list(OWN)
    assert SCALE_MANAGER != "shoal-operator"


def test_paths_are_those_of_the_api() -> None:
    assert CHILDREN["ConfigMap"].path("a", "c") == "/api/v1/namespaces/a/configmaps/c"
    assert OWN["TrainingRun"].path(None) == "/apis/shoal.dev/v1alpha1/trainingruns"
    assert OWN["Validator"].path("a", "v", "status") == "/apis/shoal.dev/v1alpha1/namespaces/a/validators/v/status"
