"""A stranger's files on their way into a bucket of Google's and a container of Azure: granted, posted to the orchestrator, judged and sealed, over
processes and HTTP.
"""

import os
from pathlib import Path

import pytest
from places import Azure, Google

from protocol_stack import NEEDED, RUN, Node, Stack, post, prepare, sha, verdict_on
from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.steps import StepBatch
from shoal.storage.identity import TOKEN_FILE

PREFIX = "uploads"


@pytest.mark.parametrize("cloud", ["google", pytest.param("azure", marks=pytest.mark.soak)])
def test_files_of_a_stranger_are_posted_to_the_orchestrator_and_sealed_in_the_cloud(
    cloud: str, request: pytest.FixtureRequest, tmp_path: Path, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    (tmp_path / "stack").mkdir()
    place: Azure | Google = (
        Google(request.getfixturevalue("googling"), tmp_path, PREFIX)
        if cloud == "google"
        else Azure(request.getfixturevalue("azuring"), tmp_path, PREFIX)
    )
    stack = Stack(tmp_path / "stack", loopback.address(), storage=place.config().storage, steps=1, async_level=0)
    token = stack.orchestrator.folder / "secrets" / "store" / TOKEN_FILE
    token.parent.mkdir(parents=True, exist_ok=True)
    token.write_bytes(place.token_file.read_bytes())
    if cloud == "azure":
        stack.orchestrator.environment["SSL_CERT_FILE"] = os.environ["SSL_CERT_FILE"]
    stack.store = place.open(prefix=f"{PREFIX}/{RUN}")
    prepare(stack.store)
    try:
        stack.start()
        node = Node(stack).join()
        stack.announce(0)

        lease, data = node.lease(0), b"rollouts of a stranger"
        grant = node.grant(lease, data)
        assert grant.url == f"{stack.addresses.orchestrator}/v1/staging"
        stolen = grant.model_copy(update={"fields": {**grant.fields, "key": keys.staging("0" * 64, lease.lease)}})
        assert post(stolen, data).status_code == 403
        assert post(grant, data + b" and more than was granted").status_code == 413
        assert stack.store.list(keys.STAGING) == []
        assert post(grant, data).status_code == 204
        assert stack.store.get(keys.staging(node.id, lease.lease)) == data
        assert node.confirm(lease, data).status == "queued"
        judge(stack)
        node.hand_in(0)
        judge(stack)

        batch = StepBatch.from_json(stack.store.get(keys.step_batch(0)))
        assert (batch.groups, len(batch.files)) == (NEEDED, 2)
        assert stack.store.get(keys.upload(node.id, sha(data))) == data
        stack.announce(1)
        assert stack.progress().complete
        assert stack.store.list(keys.STAGING) == []
        assert stack.progress().files_accepted == 2
    finally:
        stack.close()


def judge(stack: Stack) -> None:
    job = stack.claim()
    assert job is not None
    stack.judge(verdict_on(job))
