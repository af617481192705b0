"""Everything that orchestrator and discovery refuse, with the words of the refusal."""

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from protocol_stack import GROUPS, RUN, Node, Stack, post, publish, refused, sha, verdict_on
from samples import ISLANDS_PROGRESS
from servers import PLAIN, Loopback
from shoal.contracts.protocol import (
    ClaimRenewal,
    ClaimRequest,
    Heartbeat,
    Invite,
    Lease,
    LeaseRequest,
    SubmissionNotice,
    TrainerProgress,
    UploadRequest,
    VersionAnnouncement,
)
from shoal.contracts.signed import sign
from shoal.crypto.http_signatures import sign_request
from shoal.crypto.keys import PrivateKey
from shoal.transport import SignedClient
from stack_fixtures import LARGE_STEPS, running_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, loopback: Loopback) -> Iterator[Stack]:
    """A run whose steps are large, so that there is always room for another lease."""
    with running_stack(tmp_path_factory, loopback.address(), recipe=LARGE_STEPS) as running:
        yield running


@pytest.fixture(scope="module")
def members(stack: Stack) -> list[Node]:
    """Members that were all admitted before any beacon was revealed; steps 0 and 1 are open."""
    with ThreadPoolExecutor(12) as threads:
        nodes = list(threads.map(lambda _: Node(stack).join(), range(12)))
    stack.announce(0)
    return nodes


@pytest.fixture(scope="module")
def member(members: list[Node]) -> Node:
    return members[0]


@pytest.fixture
def worker(members: list[Node]) -> Node:
    """A member for one test: it may leave its lease without a file, after which it would have to wait."""
    return members.pop()


def send(stack: Stack, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(stack.addresses.orchestrator + path, content=body, headers=headers, **PLAIN)


def signed_headers(url: str, body: bytes, key: PrivateKey, age: int = 0) -> dict[str, str]:
    created = int(time.time()) - age
    return sign_request(method="POST", url=url, body=body, key=key, created_unix=created, nonce=secrets.token_hex(16))


# Signatures


def test_an_unsigned_request_is_refused(stack: Stack) -> None:
    answer = send(stack, "/v1/leases", b"{}", {})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert "the request lacks the header signature" in answer.json()["detail"]


def test_a_replayed_request_is_refused(stack: Stack, member: Node) -> None:
    body = Heartbeat(node=member.id).to_json()
    headers = signed_headers(f"{stack.addresses.orchestrator}/v1/heartbeats", body, member.key)
    assert send(stack, "/v1/heartbeats", body, headers).status_code == 200
    again = send(stack, "/v1/heartbeats", body, headers)
    assert (again.status_code, again.json()["type"]) == (401, "urn:shoal:problem:seen-before")


def test_a_request_for_another_server_is_refused(stack: Stack, member: Node) -> None:
    body = Heartbeat(node=member.id).to_json()
    headers = signed_headers(f"{stack.addresses.discovery}/v1/heartbeats", body, member.key)
    answer = send(stack, "/v1/heartbeats", body, headers)
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:shoal:problem:not-signed")


def test_a_request_with_another_body_than_signed_is_refused(stack: Stack, member: Node) -> None:
    body = Heartbeat(node=member.id).to_json()
    headers = signed_headers(f"{stack.addresses.orchestrator}/v1/heartbeats", body, member.key)
    assert send(stack, "/v1/heartbeats", body + b" ", headers).status_code == 401


def test_an_old_request_is_refused(stack: Stack, member: Node) -> None:
    body = Heartbeat(node=member.id).to_json()
    headers = signed_headers(f"{stack.addresses.orchestrator}/v1/heartbeats", body, member.key, age=3600)
    answer = send(stack, "/v1/heartbeats", body, headers)
    assert answer.status_code == 401
    assert "check this machine's clock" in answer.json()["detail"]


def test_a_node_cannot_speak_for_another(stack: Stack, member: Node) -> None:
    other = Node(stack)
    for path, body in (
        ("/v1/heartbeats", Heartbeat(node=member.id)),
        ("/v1/leases", LeaseRequest(node=member.id, step=0)),
        ("/v1/uploads", UploadRequest(node=member.id, lease="0" * 32, size=1, sha256="0" * 64)),
        ("/v1/submissions", SubmissionNotice(node=member.id, lease="0" * 32, size=1, sha256="0" * 64, groups=1)),
    ):
        answer = refused(lambda path=path, body=body: other.orchestrator.call("POST", path, body))
        assert (answer.problem.status, answer.code) == (403, "signer-not-the-node"), path


def test_roles_are_kept_apart(stack: Stack, member: Node) -> None:
    announcement = VersionAnnouncement(run=RUN, version=9, weights_digest="0" * 64, total_size=1)
    progress = TrainerProgress(run=RUN, step=0, phase="update")
    renewal = ClaimRenewal(validator="v", node=member.id, sha256="0" * 64)
    calls = [
        (member.orchestrator, "/v1/versions", announcement, "trainer"),
        (stack.validator, "/v1/versions", announcement, "trainer"),
        (member.orchestrator, "/v1/progress", progress, "trainer"),
        (member.orchestrator, "/v1/claims", ClaimRequest(validator="v"), "validator"),
        (stack.trainer, "/v1/claim-renewals", renewal, "validator"),
        (stack.trainer, "/v1/claims", ClaimRequest(validator="v"), "validator"),
    ]
    for client, path, body, role in calls:
        answer = refused(lambda client=client, path=path, body=body: client.call("POST", path, body))
        assert (answer.problem.status, answer.code) == (403, "wrong-role"), path
        assert f"for the {role} of this run" in answer.detail


def test_what_a_trainer_says_of_its_exchanges_is_part_of_the_runs_progress(stack: Stack) -> None:
    assert stack.progress().islands is None
    said = TrainerProgress(run=RUN, step=0, phase="exchange", islands=ISLANDS_PROGRESS)
    stack.trainer.call("POST", "/v1/progress", said)
    assert stack.progress().islands == ISLANDS_PROGRESS


def test_a_wrong_body_is_named_field_by_field(stack: Stack, member: Node) -> None:
    answer = refused(lambda: member.orchestrator.request("POST", "/v1/leases", b'{"node": "x", "stepp": 1}'))
    assert (answer.problem.status, answer.code) == (422, "not-valid")
    for part in ("node: String should match pattern", "step: Field required", "stepp: Extra inputs are not permitted"):
        assert part in answer.detail


def test_a_body_that_is_too_large_is_refused_unread(stack: Stack) -> None:
    answer = httpx.post(f"{stack.addresses.discovery}/v1/nodes", content=b"x" * (65 << 10), **PLAIN)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:shoal:problem:body-too-large")


# Admission


def test_a_stranger_gets_nothing(stack: Stack) -> None:
    stranger = Node(stack)
    for action in (
        stranger.step,
        stranger.beat,
        lambda: stranger.lease(0),
        lambda: stranger.orchestrator.call("GET", "/v1/public"),
    ):
        answer = refused(action)
        assert (answer.problem.status, answer.code) == (403, "not-admitted")
        assert "register at discovery" in answer.detail


def test_invites_that_do_not_admit(stack: Stack) -> None:
    node, other = Node(stack), Node(stack)
    good = stack.role_keys["orchestrator"]
    fields = {
        "run": RUN, "pool": "pool", "node": node.id, "orchestrator_url": stack.addresses.orchestrator, "nonce": "a" * 32,
        "expires_unix": int(time.time()) + 60,
    }  # fmt: skip
    for changes, key, words in (
        ({}, PrivateKey.generate(), "required:"),
        ({"run": "other"}, good, "invite is for run 'other'"),
        ({"node": other.id}, good, f"invite is for node {other.id[:12]}"),
        ({"expires_unix": 1}, good, "invite expired"),
    ):
        invite = Invite.model_validate({**fields, **changes})
        answer = refused(lambda invite=invite, key=key: node.beat(sign(invite, key)))
        assert (answer.problem.status, answer.code) == (403, "invite-not-valid")
        assert words in answer.detail


def test_an_invite_admits_once(stack: Stack) -> None:
    node, thief = Node(stack), Node(stack)
    node.register()
    invite = node.invite()
    assert node.beat(invite).state == "Healthy"
    assert node.beat(invite).state == "Healthy"  # the answer was lost and the node repeats itself
    assert refused(lambda: thief.beat(invite)).code == "invite-not-valid"


def test_discovery_shows_nodes_to_the_orchestrator_only_and_invites_to_their_node(stack: Stack, member: Node) -> None:
    assert refused(lambda: member.discovery.call("GET", "/v1/nodes")).code == "wrong-role"
    other = Node(stack)
    path = f"/v1/nodes/{member.id}/invite"
    assert refused(lambda: other.discovery.call("GET", path)).code == "signer-not-the-node"
    answer = refused(lambda: other.discovery.call("GET", f"/v1/nodes/{other.id}/invite"))
    assert (answer.problem.status, answer.code) == (404, "not-registered")
    validator = SignedClient(stack.addresses.discovery, stack.role_keys["validator"])
    assert refused(lambda: validator.call("PUT", path)).code == "wrong-role"


def test_a_long_poll_has_a_limit(stack: Stack, member: Node) -> None:
    path = f"/v1/nodes/{member.id}/invite?wait_seconds=3600"
    answer = refused(lambda: member.discovery.call("GET", path))
    assert (answer.problem.status, answer.detail) == (422, "wait_seconds: given '3600'; allowed: 0 to 25")


# Leases and uploads


def test_a_node_admitted_after_the_reveal_waits_for_the_next_step(stack: Stack, members: list[Node]) -> None:
    assert members[0].step() is not None  # step 0 is revealed by this
    late = Node(stack).join()
    step = late.step()
    assert step is not None
    assert step.step == 1
    assert refused(lambda: late.lease(0)).code == "step-not-open"


def test_a_lease_for_a_step_that_is_not_open_is_refused(stack: Stack, member: Node) -> None:
    answer = refused(lambda: member.lease(2))
    assert (answer.problem.status, answer.code) == (409, "step-not-open")
    assert "GET /v1/step names the open step" in answer.detail


def test_another_nodes_lease_cannot_be_used(members: list[Node]) -> None:
    member, other = members[:2]
    lease = member.lease(1)
    assert refused(lambda: other.grant(lease, b"data")).code == "lease-of-another-node"
    assert refused(lambda: other.confirm(lease, b"data")).code == "lease-of-another-node"


def test_an_unknown_lease_is_refused(stack: Stack, member: Node) -> None:
    lease = Lease(lease="f" * 32, node=member.id, step=0, submission=0, expires_unix=0)
    answer = refused(lambda: member.grant(lease, b"data"))
    assert (answer.problem.status, answer.code) == (404, "no-such-lease")


def test_a_file_larger_than_the_recipe_allows_gets_no_grant(stack: Stack, worker: Node) -> None:
    lease = worker.lease(1)
    request = UploadRequest(node=worker.id, lease=lease.lease, size=100 << 20, sha256="0" * 64)
    answer = refused(lambda: worker.orchestrator.call("POST", "/v1/uploads", request))
    assert (answer.problem.status, answer.code) == (413, "file-too-large")


def test_more_bytes_than_granted_are_refused(stack: Stack, worker: Node) -> None:
    lease = worker.lease(1)
    answer = post(worker.grant(lease, b"small"), b"much larger than that")
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:shoal:problem:file-too-large")
    assert refused(lambda: worker.confirm(lease, b"small")).code == "nothing-uploaded"


def test_other_bytes_than_announced_are_refused(stack: Stack, worker: Node) -> None:
    lease = worker.lease(1)
    grant = worker.grant(lease, b"honest bytes")
    assert post(grant, b"forged bytes").status_code == 204
    answer = refused(lambda: worker.confirm(lease, b"honest bytes"))
    assert (answer.problem.status, answer.code) == (422, "wrong-digest")
    # Nothing is left behind, and the right bytes are still welcome.
    assert post(grant, b"honest bytes").status_code == 204
    assert worker.confirm(lease, b"honest bytes").status == "queued"


def test_a_shorter_file_than_announced_is_refused(stack: Stack, worker: Node) -> None:
    lease = worker.lease(1)
    assert post(worker.grant(lease, b"twelve bytes"), b"four").status_code == 204
    assert refused(lambda: worker.confirm(lease, b"twelve bytes")).code == "wrong-size"


def test_a_forged_or_broken_form_is_refused(stack: Stack, worker: Node) -> None:
    grant = worker.grant(worker.lease(1), b"data")
    stolen = grant.model_copy(update={"fields": {**grant.fields, "key": f"staging/{'0' * 64}/{'0' * 32}"}})
    assert post(stolen, b"data").json()["detail"] == "key is not the one that the policy allows"
    unsigned = grant.model_copy(update={"fields": {**grant.fields, "signature": "0" * 64}})
    assert post(unsigned, b"data").status_code == 403
    assert post(grant.model_copy(update={"fields": {}}), b"data").status_code == 403
    plain = httpx.post(grant.url, content=b"data", **PLAIN)
    assert (plain.status_code, plain.json()["type"]) == (415, "urn:shoal:problem:not-a-form")
    headers = {"content-type": "multipart/form-data; boundary=x"}
    broken = httpx.post(grant.url, content=b"--y\r\nnonsense", headers=headers, **PLAIN)
    assert broken.status_code == 400
    empty = httpx.post(grant.url, data=grant.fields, files={"other": b"data"}, **PLAIN)
    assert (empty.status_code, empty.json()["type"]) == (400, "urn:shoal:problem:form-not-valid")


def test_a_lease_hands_in_one_file(stack: Stack, worker: Node) -> None:
    lease = worker.lease(1)
    worker.grant(lease, b"first")
    answer = refused(lambda: worker.grant(lease, b"second"))
    assert (answer.problem.status, answer.code) == (409, "lease-for-another-file")


def test_the_same_bytes_cannot_be_handed_in_for_two_leases(members: list[Node]) -> None:
    node = members[2]
    first = node.lease(1)
    post(node.grant(first, b"rollouts"), b"rollouts")
    assert node.confirm(first, b"rollouts").status == "queued"
    second = node.lease(1)
    post(node.grant(second, b"rollouts"), b"rollouts")
    answer = refused(lambda: node.confirm(second, b"rollouts"))
    assert (answer.problem.status, answer.code) == (409, "submitted-before")


def test_a_wrong_number_of_groups_is_refused(stack: Stack, worker: Node) -> None:
    lease = worker.lease(1)
    notice = SubmissionNotice(node=worker.id, lease=lease.lease, size=4, sha256=sha(b"data"), groups=GROUPS + 1)
    answer = refused(lambda: worker.orchestrator.call("POST", "/v1/submissions", notice))
    assert (answer.problem.status, answer.code) == (422, "wrong-groups")


# Versions and verdicts


def test_a_version_number_never_gets_other_bytes(stack: Stack, member: Node) -> None:
    other = publish(stack.store, stack.role_keys["trainer"], 0, "f" * 64)
    answer = refused(lambda: stack.trainer.call("POST", "/v1/versions", other))
    assert (answer.problem.status, answer.code) == (409, "version-changed")
    stack.announce(0)  # the same announcement again is fine


def test_a_version_must_be_in_the_store_and_not_too_early(stack: Stack, member: Node) -> None:
    early = publish(stack.store, stack.role_keys["trainer"], 2)
    assert refused(lambda: stack.trainer.call("POST", "/v1/versions", early)).code == "version-too-early"
    elsewhere = early.model_copy(update={"run": "other"})
    assert refused(lambda: stack.trainer.call("POST", "/v1/versions", elsewhere)).code == "version-of-another-run"


def test_a_verdict_must_be_the_validators_and_fit_its_file(stack: Stack, members: list[Node]) -> None:
    node = members[4]
    node.hand_in(1)
    while (job := stack.claim()) is not None and job.node != node.id:
        stack.judge(verdict_on(job))
    assert job is not None
    forged = sign(verdict_on(job), node.key)
    answer = refused(lambda: stack.validator.call("POST", "/v1/verdicts", forged))
    assert (answer.problem.status, answer.code) == (422, "verdict-not-signed")
    assert refused(lambda: node.orchestrator.call("POST", "/v1/verdicts", forged)).code == "wrong-role"
    for changes, code in (
        ({"submission": 77}, "verdict-misfit"),
        ({"lease": "0" * 32}, "verdict-misfit"),
        ({"step": 0}, "verdict-misfit"),
        ({"sha256": "0" * 64}, "no-such-file-queued"),
    ):
        wrong = verdict_on(job).model_copy(update=changes)
        assert refused(lambda wrong=wrong: stack.judge(wrong)).code == code
    short = verdict_on(job)
    short = short.model_copy(update={"rows": 1, "rewards": short.rewards[:1]})
    assert refused(lambda: stack.judge(short)).code == "wrong-rows"
