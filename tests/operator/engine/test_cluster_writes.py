"""`KubernetesCluster`: what it asks the API server for, and what it does not ask at all."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hostile_api import Answer, Asked, ScriptedApi, config_map, refusal

from shoal_operator.children.names import RUN_LABEL
from shoal_operator.engine.api_server import APPLY_PATCH, ApiError, ApiServer
from shoal_operator.engine.cache import Cache
from shoal_operator.engine.cluster import ClusterError
from shoal_operator.engine.events import EventRecorder
from shoal_operator.engine.kinds import Key
from shoal_operator.engine.kubernetes_cluster import (
    FOREIGN_SECONDS,
    Foreign,
    KubernetesCluster,
    Parts,
    owns_replicas,
)
from shoal_operator.engine.progress import RunProgressReader
from shoal_operator.engine.queue import WorkQueue
from shoal_operator.engine.storage_classes import StorageClasses
from shoal_operator.engine.unchanged import Unchanged
from shoal_operator.engine.warning_events import AGAIN_SECONDS, OBJECT_SECONDS, PAGE, WarningEvents
from shoal_operator.reconcile.common import adopt

KEY = Key("TrainingRun", "a", "sums")
POOLS = "/apis/shoal.dev/v1alpha1/namespaces/a/inferencepools/sums-pool"
MAP = "/api/v1/namespaces/a/configmaps/c"


class Rig:
    """A cluster over a scripted API server that answers every patch with what was sent."""

    def __init__(self, hostile: ScriptedApi) -> None:
        self.hostile = hostile
        self.now = 0.0
        self.version = 100
        self.cache = Cache(WorkQueue())
        api = ApiServer(hostile.configuration)
        parts = Parts(
            api,
            self.cache,
            RunProgressReader(lambda key: None),
            EventRecorder(api, "op"),
            StorageClasses(api),
            WarningEvents(api, lambda: self.now),
            Unchanged(self.cache),
            Foreign(clock=lambda: self.now),
        )
        self.cluster = KubernetesCluster(parts, KEY)

    def echo(self, asked: Asked) -> Answer:
        self.version += 1
        metadata = {"namespace": "a", "uid": "u", **asked.body["metadata"], "resourceVersion": str(self.version)}
        return Answer(body=json.dumps({**asked.body, "metadata": metadata}).encode())

    def patches(self, path: str) -> list[tuple[str, Any]]:
        """(field manager, body) of each."""
        return [
            (asked.query["fieldManager"], asked.body)
            for asked in self.hostile.requests(path)
            if asked.method == "PATCH"
        ]


@pytest.fixture
def rig(hostile: ScriptedApi) -> Rig:
    return Rig(hostile)


def pool(replicas: int | None = None, **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"run": "sums"} | ({"replicas": replicas} if replicas is not None else {})
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "sums-pool", **metadata},
        "spec": spec,
    }


def applied_by(manager: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}


def test_an_apply_is_forced_by_our_field_manager_and_read_back_without_a_request(rig: Rig) -> None:
    rig.hostile.script(MAP, rig.echo)
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"key": "1"}}
    rig.cluster.apply(wanted)
    [asked] = rig.hostile.asked
    assert (asked.method, asked.content_type) == ("PATCH", APPLY_PATCH)
    assert asked.query == {"fieldManager": "shoal-operator", "force": "true"}
    found = rig.cluster.get("ConfigMap", "c")
    assert found is not None
    assert found["data"] == {"key": "1"}
    assert len(rig.hostile.asked) == 1


def test_what_is_not_known_is_not_asked_for(rig: Rig) -> None:
    assert rig.cluster.get("Secret", "absent") is None
    assert rig.cluster.list("Pod", {"shoal.dev/run": "sums"}) == []
    rig.cluster.delete("Job", "absent")
    rig.cluster.apply_status("TrainingRun", "absent", {"phase": "Running"})
    assert rig.hostile.asked == []


def test_a_kind_that_nobody_watches_is_refused(rig: Rig) -> None:
    with pytest.raises(ClusterError, match="kind DaemonSet is not available; known are"):
        rig.cluster.get("DaemonSet", "x")


def test_replicas_have_a_field_manager_of_their_own(rig: Rig) -> None:
    live = pool(2, managedFields=[applied_by("shoal-operator-scale")], resourceVersion="5", namespace="a")
    rig.hostile.script(POOLS, lambda asked: rig.echo(asked) if asked.body else Answer(body=json.dumps(live).encode()))
    rig.cluster.apply(pool(3))
    (first, scale), (second, rest) = rig.patches(POOLS)
    assert (first, scale["spec"]) == ("shoal-operator-scale", {"replicas": 3})
    assert (second, rest["spec"]) == ("shoal-operator", {"run": "sums"})


def test_a_new_scaled_object_has_its_number_from_its_first_moment(rig: Rig) -> None:
    rig.hostile.script(POOLS, lambda asked: rig.echo(asked) if asked.body else refusal(404, "NotFound"))
    rig.cluster.apply(pool(0))
    (first, whole), (second, scale) = rig.patches(POOLS)
    assert (first, whole["spec"]) == ("shoal-operator", {"run": "sums", "replicas": 0})
    assert (second, scale["spec"]) == ("shoal-operator-scale", {"replicas": 0})


def test_replicas_that_only_we_own_are_not_removed_by_leaving_them_out(rig: Rig) -> None:
    """The operator was killed after the first apply, before the number had its own manager."""
    live = pool(5, managedFields=[applied_by("shoal-operator")], resourceVersion="5", namespace="a")
    rig.hostile.script(POOLS, lambda asked: rig.echo(asked) if asked.body else Answer(body=json.dumps(live).encode()))
    rig.cluster.apply(pool())
    assert [(manager, body["spec"]) for manager, body in rig.patches(POOLS)] == [
        ("shoal-operator-scale", {"replicas": 5}),
        ("shoal-operator", {"run": "sums"}),
    ]


def test_replicas_of_an_autoscaler_are_left_alone(rig: Rig) -> None:
    scaled = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    live = pool(9, managedFields=[scaled], resourceVersion="5", namespace="a")
    assert not owns_replicas(live, "kubectl")
    rig.hostile.script(POOLS, lambda asked: rig.echo(asked) if asked.body else Answer(body=json.dumps(live).encode()))
    rig.cluster.apply(pool())
    assert [body["spec"] for _, body in rig.patches(POOLS)] == [{"run": "sums"}]


def test_a_scaled_object_that_is_gone_is_not_made_without_a_number(rig: Rig) -> None:
    rig.hostile.script(POOLS, lambda asked: rig.echo(asked) if asked.body else refusal(404, "NotFound"))
    with pytest.raises(ClusterError) as refused:
        rig.cluster.apply(pool())
    assert refused.value.passing
    assert rig.patches(POOLS) == []


def test_a_deletion_names_the_uid_and_a_missing_object_is_fine(rig: Rig) -> None:
    rig.cache.observe("ADDED", config_map("c", 5))
    rig.hostile.script(MAP, refusal(404, "NotFound"), refusal(409, "Conflict"), refusal(500, "InternalError"))
    rig.cluster.delete("ConfigMap", "c")
    rig.cluster.delete("ConfigMap", "c", orphan=True)
    first, second = rig.hostile.requests(MAP)
    assert first.body == {"propagationPolicy": "Foreground", "preconditions": {"uid": "uid-c"}}
    assert second.body["propagationPolicy"] == "Orphan"


def test_a_status_is_one_apply_that_names_the_uid(rig: Rig) -> None:
    live = {"apiVersion": "shoal.dev/v1alpha1", "kind": "TrainingRun", "spec": {}, "metadata": {"name": "sums"}}
    live["metadata"] = {"name": "sums", "namespace": "a", "uid": "u9", "resourceVersion": "5"}
    rig.cache.observe("ADDED", live)
    path = "/apis/shoal.dev/v1alpha1/namespaces/a/trainingruns/sums/status"
    rig.hostile.script(path, rig.echo, refusal(404, "NotFound"), refusal(409, "Conflict", "UID in precondition"))
    rig.cluster.apply_status("TrainingRun", "sums", {"phase": "Running"})
    [(manager, body)] = rig.patches(path)
    assert manager == "shoal-operator"
    assert body["metadata"] == {"name": "sums", "uid": "u9"}
    assert body["status"] == {"phase": "Running"}
    rig.cluster.apply_status("TrainingRun", "sums", {"phase": "Complete"})  # deleted meanwhile: not an error
    with pytest.raises(ApiError, match="UID in precondition"):
        rig.cluster.apply_status("TrainingRun", "sums", {"phase": "Complete"})


def test_a_foreign_object_is_asked_for_and_remembered_for_a_moment_only_when_it_is_there(rig: Rig) -> None:
    rig.hostile.script(MAP, refusal(404, "NotFound"), Answer(body=json.dumps(config_map("c", 5, "1")).encode()))
    assert rig.cluster.read_foreign("ConfigMap", "c") is None
    for _ in range(3):
        found = rig.cluster.read_foreign("ConfigMap", "c")
        assert found is not None
        assert found["data"] == {"key": "1"}
    assert len(rig.hostile.requests(MAP)) == 2
    rig.now += FOREIGN_SECONDS + 1
    rig.cluster.read_foreign("ConfigMap", "c")
    assert len(rig.hostile.requests(MAP)) == 3


EVENTS = "/apis/events.k8s.io/v1/namespaces/a/events"


def told(*events: dict[str, Any], more: bool = False) -> Answer:
    metadata = {"continue": "next"} if more else {}
    return Answer(
        body=json.dumps({"metadata": metadata, "items": [{"metadata": {}, **each} for each in events]}).encode()
    )


def refused(uid: str, note: str, **about: str) -> dict[str, Any]:
    return {"regarding": {"uid": uid, **about}, "reason": "FailedCreate", "note": note}


def workload(uid: str) -> dict[str, Any]:
    return {"kind": "StatefulSet", "metadata": {"name": f"sums-{uid}", "uid": uid}}


@pytest.mark.parametrize("status", [403, 429, 503])
def test_events_that_cannot_be_read_stop_nothing_and_what_was_said_last_stands(rig: Rig, status: int) -> None:
    rig.hostile.script(EVENTS, told(refused("u", "exceeded quota")))
    assert rig.cluster.warning_about(workload("u"), "FailedCreate") == ("FailedCreate", "exceeded quota")
    rig.hostile.script(EVENTS, refusal(status, "Away", Retry_After="60"))
    rig.now += AGAIN_SECONDS
    assert rig.cluster.warning_about(workload("u"), "FailedCreate") == ("FailedCreate", "exceeded quota")
    asked = len(rig.hostile.requests(EVENTS))
    assert rig.cluster.warning_about(workload("u"), "FailedCreate") == ("FailedCreate", "exceeded quota")
    assert len(rig.hostile.requests(EVENTS)) == asked, "not again so soon"


def test_one_request_answers_for_all_that_stands_in_a_namespace(rig: Rig) -> None:
    other = {"regarding": {"uid": "0"}, "reason": "Unhealthy", "note": "no answer", "eventTime": "2026-11-21T12:00:00Z"}
    rig.hostile.script(EVENTS, told(*(refused(str(n), f"words {n}") for n in range(100)), other), told())
    for n in range(200):
        wanted = ("FailedCreate", f"words {n}") if n < 100 else ("", "")
        assert rig.cluster.warning_about(workload(str(n)), "FailedCreate") == wanted
    assert rig.cluster.warning_about(workload("0")) == ("Unhealthy", "no answer"), "the newest of any reason"
    [asked] = rig.hostile.requests(EVENTS)
    assert (asked.query["fieldSelector"], asked.query["limit"]) == ("type=Warning", str(PAGE))
    rig.now += AGAIN_SECONDS
    assert rig.cluster.warning_about(workload("0"), "FailedCreate") == ("", "")
    assert len(rig.hostile.requests(EVENTS)) == 2


def test_in_a_namespace_with_more_warnings_than_a_page_objects_are_asked_about_one_by_one(rig: Rig) -> None:
    first = told(refused("x", "of others"), more=True)
    rig.hostile.script(EVENTS, first, told(refused("u", "exceeded quota")), first, told(refused("v", "no class")))
    for _ in range(2):
        assert rig.cluster.warning_about(workload("u")) == ("FailedCreate", "exceeded quota")
    rig.now += AGAIN_SECONDS
    assert rig.cluster.warning_about(workload("v")) == ("FailedCreate", "no class")
    assert rig.cluster.warning_about(workload("u")) == ("FailedCreate", "exceeded quota"), "not asked again so soon"
    selected = [asked.query["fieldSelector"] for asked in rig.hostile.requests(EVENTS)]
    assert selected == [
        "type=Warning", "type=Warning,regarding.name=sums-u", "type=Warning", "type=Warning,regarding.name=sums-v",
    ]  # fmt: skip
    rig.now += OBJECT_SECONDS
    rig.hostile.script(EVENTS, told())
    assert rig.cluster.warning_about(workload("u")) == ("", ""), "there is one page again"


def test_a_namespace_that_is_slow_to_read_is_read_for_a_twentieth_of_the_time_only(rig: Rig) -> None:
    def slow(asked: Asked) -> Answer:
        rig.now += 2.0
        return told()

    rig.hostile.script(EVENTS, slow)
    for later, times in ((0.0, 1), (39.0, 1), (2.0, 2)):
        rig.now += later
        rig.cluster.warning_about(workload("u"))
        assert len(rig.hostile.requests(EVENTS)) == times


def test_a_warning_about_what_is_not_watched_is_found_by_kind_and_name(rig: Rig) -> None:
    kinds = ("StatefulSet", "Pod")
    rig.hostile.script(EVENTS, told(*(refused(kind, f"of {kind}", kind=kind, name="sums-pool-0") for kind in kinds)))
    made = {"kind": "StatefulSet", "metadata": {"name": "sums-pool-0"}}
    assert rig.cluster.warning_about(made, "FailedCreate") == ("FailedCreate", "of StatefulSet")


def test_a_warning_from_before_a_time_is_none(rig: Rig) -> None:
    """Controllers write the fields of either API; one without a time that can be read counts as new."""
    minute = datetime(2026, 11, 21, 12, 1, tzinfo=UTC)
    for times, is_old in (
        ({"deprecatedLastTimestamp": "2026-11-21T12:00:59Z"}, True),
        ({"deprecatedLastTimestamp": "2026-11-21T12:01:00Z"}, False),
        ({"eventTime": "2026-11-21T12:00:00.5Z", "series": {"lastObservedTime": "2026-11-21T12:02:00.5Z"}}, False),
        ({"eventTime": "2026-11-21T12:00:00.5Z"}, True),
        ({"eventTime": "yesterday"}, False),
    ):
        rig.hostile.script(
            EVENTS, told({"regarding": {"uid": "u"}, "reason": "FailedMount", "note": "no volume", **times})
        )
        rig.now += AGAIN_SECONDS
        pod = {"kind": "Pod", "metadata": {"name": "sums-pool-0", "uid": "u"}}
        for _ in range(2):  # of the answer, then of what is remembered
            said = rig.cluster.warning_about(pod, since=minute)
            assert said == (("", "") if is_old else ("FailedMount", "no volume")), times
        assert rig.cluster.warning_about(pod) == ("FailedMount", "no volume")


def test_what_is_taken_over_is_named_by_its_uid_so_that_nothing_is_made_in_its_place(rig: Rig) -> None:
    """An API server refuses an apply with the uid of what is gone (409); without it a Secret without keys would be made."""
    path = "/api/v1/namespaces/a/secrets/sums-roster"
    rig.hostile.script(path, rig.echo)
    left = config_map("sums-roster", 1)
    left["metadata"] |= {"uid": "gone", "labels": {**left["metadata"]["labels"], RUN_LABEL: "sums"}}
    rig.cache.observe("ADDED", {**left, "kind": "Secret"})
    owner = {"apiVersion": "shoal.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": "sums", "uid": "u"}}
    adopt(rig.cluster, owner, "sums")
    [(_, body)] = rig.patches(path)
    assert body["metadata"]["uid"] == "gone"
