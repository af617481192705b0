"""When a child is written, when it is replaced, and when it is left alone."""

import copy
from typing import Any

import pytest

from shoal_operator.api.pods import PodWithVariables
from shoal_operator.children.pods import Container
from shoal_operator.engine.apply import (
    Action,
    contains,
    decide,
    hash_of,
    not_quantities,
    removal_of_strangers,
    template_hash,
    with_hash,
)

WANTED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "sums-relay", "labels": {"a": "b"}},
    "spec": {"replicas": 2, "serviceName": "sums-relay", "template": {"spec": {"containers": [{"name": "nginx"}]}}},
}


def live(**spec: Any) -> dict[str, Any]:
    made = copy.deepcopy(with_hash(WANTED))
    made["spec"] |= spec
    made["metadata"] |= {"uid": "1", "resourceVersion": "7"}
    return made


def job(condition: str | None) -> dict[str, Any]:
    status = {"conditions": [{"type": condition, "status": "True"}]} if condition else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": {}},
        "status": status,
    }


def test_what_does_not_exist_is_applied() -> None:
    assert decide(WANTED, None) is Action.APPLY


def test_an_object_in_the_desired_state_is_left_alone() -> None:
    assert decide(WANTED, live()) is Action.NOTHING


def test_fields_that_others_added_are_left_alone() -> None:
    assert decide(WANTED, live(updateStrategy={"type": "RollingUpdate"})) is Action.NOTHING


def test_a_variable_without_text_is_written_as_an_api_server_keeps_it() -> None:
    settings = PodWithVariables.model_validate({"env": [{"name": "NCCL_DEBUG", "value": ""}]})
    container = Container("trainer", "shoal/trainer", ["python"], "trainer", variables=settings).to_object()
    # From k8s.io/api/core/v1 types.go: `Value string json:"value,omitempty"`.
    assert container["env"][0] == {"name": "NCCL_DEBUG"}


def test_a_changed_template_is_applied() -> None:
    wanted = copy.deepcopy(WANTED)
    wanted["spec"]["replicas"] = 3
    assert decide(wanted, live()) is Action.APPLY


def test_a_removed_field_is_applied_though_the_live_object_contains_the_rest() -> None:
    wanted = copy.deepcopy(WANTED)
    del wanted["metadata"]["labels"]
    assert contains(live(), wanted)
    assert decide(wanted, live()) is Action.APPLY


def test_drift_is_applied_though_the_hash_stands() -> None:
    assert decide(WANTED, live(replicas=0)) is Action.APPLY


def test_what_the_api_server_calls_immutable_is_replaced() -> None:
    wanted = copy.deepcopy(WANTED)
    wanted["spec"]["serviceName"] = "other"
    assert decide(wanted, live()) is Action.REPLACE


def template(**spec: Any) -> dict[str, Any]:
    made = job(None)
    made["spec"]["template"] = {"spec": {"containers": [{"name": "trainer", "image": "shoal/trainer"}], **spec}}
    return made


def test_a_field_that_a_running_job_is_to_lose_replaces_it() -> None:
    """A prepare pod that finds no node, and the author who takes the node selector back."""
    selected = with_hash(template(nodeSelector={"gpu": "b200"}))
    assert contains(selected, template()), "the live Job has all that is wanted"
    assert decide(template(), selected) is Action.REPLACE


@pytest.mark.parametrize(
    "changed",
    [
        {"containers": [{"name": "trainer", "image": "mirror.internal/shoal/trainer"}]},
        {"tolerations": [{"key": "gpu"}, {"key": "added-by-the-queue"}]},
    ],
)
def test_what_admission_changed_in_a_job_is_left_as_it_is(changed: dict[str, Any]) -> None:
    wanted = template(tolerations=[{"key": "gpu"}])
    admitted = with_hash(wanted)
    admitted = {**admitted, "spec": {"template": {"spec": {**admitted["spec"]["template"]["spec"], **changed}}}}
    assert decide(wanted, admitted) is Action.NOTHING


def test_what_admission_changed_does_not_hide_drift_elsewhere() -> None:
    wanted = template()
    wanted["metadata"]["labels"] = {"a": "b"}
    admitted = with_hash(wanted)
    admitted["spec"] = {"template": {"spec": {"containers": []}}}
    admitted["metadata"]["labels"] = {"a": "c"}
    assert decide(wanted, admitted) is Action.REPLACE


def test_a_service_that_is_to_lose_its_load_balancers_class_is_replaced() -> None:
    wanted: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"type": "LoadBalancer"},
    }
    classed = with_hash({**wanted, "spec": {"type": "LoadBalancer", "loadBalancerClass": "internal"}})
    assert decide(wanted, classed) is Action.REPLACE
    assert decide({**wanted, "spec": {"type": "NodePort"}}, classed) is Action.APPLY
    defaulted = with_hash(wanted)
    defaulted["spec"] = {**wanted["spec"], "loadBalancerClass": "of-the-cloud"}
    assert decide(wanted, defaulted) is Action.NOTHING


@pytest.mark.parametrize("condition", ["Complete", "Failed"])
def test_a_finished_job_is_never_written_again(condition: str) -> None:
    changed = job(None) | {"spec": {"template": {"spec": {}}}}
    assert decide(changed, job(condition)) is Action.NOTHING
    assert decide(changed, job(None)) is Action.REPLACE


def test_what_is_being_deleted_is_waited_for() -> None:
    going = live()
    going["metadata"]["deletionTimestamp"] = "now"
    going["spec"]["replicas"] = 9
    assert decide(WANTED, going) is Action.NOTHING


def test_the_hash_covers_the_template_alone() -> None:
    owned = copy.deepcopy(with_hash(WANTED))
    owned["metadata"]["ownerReferences"] = [{"uid": "1"}]
    assert template_hash(owned) == template_hash(WANTED) == hash_of(owned)


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        ({"cpu": "1"}, {"cpu": "1000m"}, True),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}, True),
        ({"cpu": "2"}, {"cpu": "1000m"}, False),
        ({"cpu": 1}, {"cpu": "1"}, True),
        ({"flag": True}, {"flag": 1}, True),
        ({"flag": False}, {"flag": True}, False),
        ([1, 2], [1], False),
        (None, [], True),
        (None, {}, False),
        ({"a": 1}, {"a": None}, True),
    ],
)
def test_containment_compares_quantities_by_value_and_lists_whole(have: Any, want: Any, expected: bool) -> None:
    assert contains(have, want) is expected


def test_what_is_no_quantity_is_named_with_its_place() -> None:
    pod = {
        "containers": [
            {"name": "a", "resources": {"limits": {"memory": "8 GB", "cpu": "1e3"}, "requests": {"cpu": 2}}}
        ],
        "volumes": [
            {"name": "mine", "emptyDir": {"sizeLimit": "many"}},
            {"name": "other", "emptyDir": {"sizeLimit": "4Gi"}},
        ],
    }
    assert list(not_quantities({"spec": pod})) == [
        "spec.containers[0].resources.limits.memory: '8 GB'",
        "spec.volumes[0].emptyDir.sizeLimit: 'many'",
    ]


def test_what_others_wrote_into_a_status_is_taken_out_at_any_depth_and_nothing_else() -> None:
    ours = {"phase": "Running", "trainer": {"attempt": 1}, "components": [{"name": "pool"}], "proofs": {}}
    assert removal_of_strangers(ours, ours) == {}
    theirs = {**ours, "bestVersion": 99, "trainer": {"attempt": 1, "lie": {"deep": 1}}, "proofs": {"lie": 0}}
    assert removal_of_strangers(theirs, ours) == {
        "bestVersion": None,
        "trainer": {"lie": None},
        "proofs": {"lie": None},
    }


@pytest.mark.parametrize(
    "added",
    [
        [{"type": "Ready", "status": "True"}, {"type": "Blessed", "status": "True"}],
        [{"type": "Ready", "status": "True", "by": "somebody"}],
    ],
    ids=["an item", "a field of an item"],
)
def test_a_list_of_a_status_into_which_others_wrote_is_written_whole(added: list[dict[str, str]]) -> None:
    ours = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    assert removal_of_strangers({**ours, "conditions": added}, ours) == {"conditions": ours["conditions"]}


def test_the_order_of_a_list_is_left_to_the_api_server() -> None:
    first, second = {"type": "Ready", "status": "True"}, {"type": "Fits", "status": "True"}
    assert removal_of_strangers({"conditions": [first, second]}, {"conditions": [second, first]}) == {}
