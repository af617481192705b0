"""Calls to the API server: what is tried again and what is not, deadlines, and what is never sent."""

import json

import pytest
from hostile_api import Answer, ScriptedApi, config_map, refusal

from shoal_operator.engine.api_server import ApiError, ApiServer, NotLeader
from shoal_operator.engine.cluster import ClusterError
from shoal_operator.engine.kinds import CHILDREN, LEASE, OWN, POD

MAP = CHILDREN["ConfigMap"]
PATH = "/api/v1/namespaces/a/configmaps/c"
FOUND = Answer(body=json.dumps(config_map("c", 5)).encode())


@pytest.fixture
def api(hostile: ScriptedApi) -> ApiServer:
    return ApiServer(hostile.configuration)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_refusal_that_passes_is_tried_again(api: ApiServer, hostile: ScriptedApi, status: int) -> None:
    hostile.script(PATH, refusal(status, "Busy"), refusal(status, "Busy"), FOUND)
    assert api.call("get", MAP, "a", "c")["data"] == {"key": ""}
    assert len(hostile.requests(PATH)) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_a_refusal_that_stays_is_an_error_at_once(api: ApiServer, hostile: ScriptedApi, status: int) -> None:
    hostile.script(PATH, refusal(status, "Wrong", "the reason why"))
    with pytest.raises(ClusterError, match=f"get ConfigMap a/c: {status} Wrong: the reason why") as caught:
        api.call("get", MAP, "a", "c")
    assert isinstance(caught.value, ApiError)
    assert (caught.value.status, caught.value.reason) == (status, "Wrong")
    assert len(hostile.requests(PATH)) == 1


def test_a_lacking_permission_says_what_to_do(api: ApiServer, hostile: ScriptedApi) -> None:
    hostile.script(PATH, refusal(403, "Forbidden", 'User "x" cannot get resource "configmaps"'))
    with pytest.raises(ApiError, match=r"apply the output of python -m shoal_operator\.install"):
        api.call("get", MAP, "a", "c")


def test_an_owner_of_a_new_kind_is_not_said_to_lack_a_permission(api: ApiServer, hostile: ScriptedApi) -> None:
    said = (
        "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion shoal.dev/v1alpha1"
    )
    hostile.script(PATH, refusal(403, "Forbidden", said))
    with pytest.raises(ApiError, match="its CRD is new to the API server") as caught:
        api.call("get", MAP, "a", "c")
    assert "permission" not in str(caught.value)


def test_retry_after_is_honoured(api: ApiServer, hostile: ScriptedApi) -> None:
    hostile.script(PATH, refusal(429, "TooManyRequests", Retry_After="1"), FOUND)
    api.call("get", MAP, "a", "c")
    first, second = hostile.requests(PATH)
    assert second.at - first.at >= 1.0


def test_a_server_that_asks_for_more_patience_than_the_budget_is_given_up_at_once(
    api: ApiServer, hostile: ScriptedApi
) -> None:
    hostile.script(PATH, refusal(503, "ServiceUnavailable", Retry_After="20"))
    with pytest.raises(ApiError, match="503"):
        api.call("get", MAP, "a", "c", budget_seconds=5)
    assert len(hostile.requests(PATH)) == 1


def test_a_server_that_stays_away_is_an_error_when_the_budget_is_spent(hostile: ScriptedApi) -> None:
    api = ApiServer(hostile.configuration)
    hostile.close()
    with pytest.raises(ApiError, match=r"get ConfigMap a/c: .*refused"):
        api.call("get", MAP, "a", "c", budget_seconds=0.5)


def test_a_server_that_does_not_answer_is_an_error_within_the_budget(api: ApiServer, hostile: ScriptedApi) -> None:
    hostile.script(PATH, Answer(body=[30.0]))
    with pytest.raises(ApiError, match="get ConfigMap a/c"):
        api.call("get", MAP, "a", "c", budget_seconds=0.5)


def test_a_create_is_not_sent_twice_when_it_was_perhaps_done(api: ApiServer, hostile: ScriptedApi) -> None:
    path = "/api/v1/namespaces/a/configmaps"
    hostile.script(path, refusal(500, "InternalError"))
    with pytest.raises(ApiError, match="500"):
        api.call("create", MAP, "a", body=config_map("c", 0))
    assert len(hostile.requests(path)) == 1
    hostile.script(path, refusal(429, "TooManyRequests"), FOUND)
    api.call("create", MAP, "a", body=config_map("c", 0))


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b'{"kind": "Conf'])
def test_an_answer_that_is_no_object_is_an_error(api: ApiServer, hostile: ScriptedApi, body: bytes) -> None:
    hostile.script(PATH, Answer(body=body))
    with pytest.raises(ApiError, match=r"get ConfigMap a/c: the answer is (not JSON|not an object)"):
        api.call("get", MAP, "a", "c", budget_seconds=0.1)


def test_an_answer_that_is_cut_off_is_tried_again(api: ApiServer, hostile: ScriptedApi) -> None:
    hostile.script(PATH, Answer(body=b'{"kind": ', torn=True), FOUND)
    assert api.call("get", MAP, "a", "c")["kind"] == "ConfigMap"


def test_a_write_is_not_sent_while_another_may_lead_but_reads_and_the_lease_are(
    api: ApiServer, hostile: ScriptedApi
) -> None:
    api.may_write = lambda: False
    hostile.script(PATH, FOUND)
    with pytest.raises(NotLeader, match="another replica may be the leader"):
        api.call("patch", MAP, "a", "c", body={})
    assert hostile.asked == []
    api.call("get", MAP, "a", "c")
    lease = "/apis/coordination.k8s.io/v1/namespaces/a/leases/shoal-operator"
    hostile.script(lease, FOUND)
    api.call("update", LEASE, "a", "shoal-operator", body={}, fenced=False)


def test_a_lease_lost_between_two_attempts_holds_the_second_back(api: ApiServer, hostile: ScriptedApi) -> None:
    leads = iter([True, False])
    api.may_write = lambda: next(leads)
    hostile.script(PATH, refusal(500, "InternalError"))
    with pytest.raises(NotLeader):
        api.call("patch", MAP, "a", "c", body={})
    assert len(hostile.requests(PATH)) == 1


@pytest.mark.parametrize(
    ("verb", "resource", "subresource"),
    [
        ("update", MAP, None),
        ("create", POD, None),
        ("delete", POD, None),
        ("get", OWN["TrainingRun"], "status"),
        ("delete", LEASE, None),
        ("list", LEASE, None),
    ],
)
def test_a_request_that_is_not_on_the_list_of_permissions_is_never_sent(
    api: ApiServer, hostile: ScriptedApi, verb: str, resource: object, subresource: str | None
) -> None:
    with pytest.raises(PermissionError, match=r"is not in engine/permissions\.py"):
        api.call(verb, resource, "a", "c", subresource=subresource)
    assert hostile.asked == []


def test_waiting_between_attempts_ends_when_the_operator_stops(api: ApiServer, hostile: ScriptedApi) -> None:
    hostile.script(PATH, refusal(503, "ServiceUnavailable", Retry_After="10"))
    api.stop()
    with pytest.raises(ApiError, match="the operator is stopping"):
        api.call("get", MAP, "a", "c")


def test_the_token_of_the_moment_is_sent(hostile: ScriptedApi) -> None:
    tokens = iter(["bearer one", "bearer two"])
    configuration = hostile.configuration
    configuration.api_key["BearerToken"] = "bearer old"

    def rotate(given: object) -> None:
        configuration.api_key["BearerToken"] = next(tokens)

    configuration.refresh_api_key_hook = rotate
    sent: list[str] = []
    api = ApiServer(configuration)
    real = api._headers
    api._headers = lambda: sent.append(real()["Authorization"]) or {}
    hostile.script(PATH, FOUND)
    api.call("get", MAP, "a", "c")
    api.call("get", MAP, "a", "c")
    assert sent == ["bearer one", "bearer two"]
