"""A run from the first node to the last version, over HTTP, with real Redis and a folder store."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol_stack import NEEDED, PACKAGE, WHEEL, Node, Stack, fill_step, ledger
from servers import structured_lines
from shoal.contracts import keys
from shoal.contracts.relay_token import decode
from shoal.contracts.run import PublicRun
from shoal.contracts.signed import Signed
from shoal.contracts.steps import StepBatch
from shoal.contracts.task_table import read_tasks
from shoal.contracts.verdicts import Verdict
from shoal.orchestrator.http import service
from shoal.sampling.draw import beacon_commitment, draw_submission
from shoal.storage.store import open_folder
from shoal.transport.client import Refused


def test_a_run_goes_from_the_first_invite_to_the_last_version(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack(steps=2, async_level=0)
    assert stack.progress().waiting_for == "version 0, the base model, to be announced"
    node = Node(stack).join()
    assert node.step() is None
    stack.announce(0)

    step = node.step()
    assert step is not None
    assert (step.step, step.min_version, step.max_version, step.needed_groups) == (0, 0, 0, NEEDED)
    assert beacon_commitment(bytes.fromhex(step.beacon)) == step.commitment
    fill_step(stack, node, 0)

    batch = StepBatch.from_json(stack.store.get(keys.step_batch(0)))
    assert (batch.groups, batch.groups_dropped, batch.beacon) == (NEEDED, 0, step.beacon)
    assert [file.submission for file in batch.files] == [0, 1]
    for file in batch.files:
        drawn = draw_submission(
            beacon=bytes.fromhex(batch.beacon), run=batch.run, step=0, node=node.id, submission=file.submission,
            task_count=50, groups=2, group_size=2, targets=None,
        )  # fmt: skip
        assert file.prompt_indices == [group.prompt_index for group in drawn]
        recorded = Signed[Verdict].from_json(stack.store.get(keys.verdict(file.node, file.sha256)))
        assert recorded.verified(stack.role_keys["validator"].public).outcome == "accept"
        data = stack.store.get(keys.upload(file.node, file.sha256))
        assert hashlib.sha256(data).hexdigest() == file.sha256

    assert stack.progress().waiting_for == "version 1 to be announced, so that step 1 opens"
    stack.announce(1)
    assert stack.progress().open_step == 1
    fill_step(stack, node, 1)
    assert not stack.progress().complete
    stack.announce(2)

    progress = stack.progress()
    assert progress.complete
    assert (progress.files_accepted, progress.files_rejected, progress.files_pending) == (4, 0, 0)
    assert (progress.completion_tokens_accepted, progress.groups_accepted_total) == (400, 8)
    assert node.step() is None
    assert stack.store.list(keys.STAGING) == []
    for server, role in ((stack.orchestrator, "orchestrator"), (stack.discovery, "discovery")):
        server.stop()
        said = structured_lines((server.folder / "log").read_text(), role=role, pod=f"tiny-{role}")
        assert {line.get("run") for line in said} == {"tiny"}


def test_the_ledger_commits_to_a_beacon_before_it_is_revealed(stack: Stack) -> None:
    node = Node(stack).join()
    stack.announce(0)
    assert node.step() is not None
    kinds = [(entry.kind, entry.step) for entry in ledger(stack.store)]
    for step in (0, 1):
        assert kinds.count(("beacon-committed", step)) == 1
    assert kinds.index(("beacon-committed", 0)) < kinds.index(("beacon-revealed", 0))
    assert kinds.index(("beacon-committed", 1)) < kinds.index(("beacon-revealed", 0))


def test_a_member_learns_the_run_its_tasks_and_gets_a_relay_token(stack: Stack) -> None:
    node = Node(stack).join()
    public = node.orchestrator.call("GET", "/v1/public", reply=PublicRun)
    assert public is not None
    assert (public.task_count, public.group_size) == (50, 2)
    assert len(read_tasks(node.orchestrator.request("GET", "/v1/tasks").content)) == 50
    reply = node.beat()
    assert reply.relays == stack.addresses.relays
    token = decode(reply.relay_token or "", signer=stack.role_keys["orchestrator"].public, run="tiny", now_unix=0)
    assert token.node == node.id


def test_no_request_for_a_package_holds_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PACKAGE_PART_BYTES", 5)
    store = open_folder(tmp_path, "run")
    store.put(keys.package(PACKAGE.sha256), WHEEL)
    parts = list(service.package_parts(store, PACKAGE.sha256, 0, len(WHEEL)))
    assert b"".join(parts) == WHEEL
    assert max(map(len, parts)) == 5


def test_a_member_gets_the_packages_of_the_run_by_digest_and_nothing_else(stack: Stack) -> None:
    node = Node(stack).join()
    public = node.orchestrator.call("GET", "/v1/public", reply=PublicRun)
    assert public is not None
    assert public.packages == [PACKAGE]
    assert node.orchestrator.request("GET", f"/v1/packages?digest={PACKAGE.sha256}").content == WHEEL
    for other in (f"?digest={'ab' * 32}", "", "?digest=../prepared.json"):
        with pytest.raises(Refused, match="digest is not that of a package of the run") as refused:
            node.orchestrator.request("GET", f"/v1/packages{other}")
        assert refused.value.code == "no-such-package"
    with pytest.raises(Refused):
        Node(stack).orchestrator.request("GET", f"/v1/packages?digest={PACKAGE.sha256}")
