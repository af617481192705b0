"""A validator that holds few versions is given the files of these first, whatever nodes say about theirs."""

from pathlib import Path

import pytest

from protocol_stack import GROUPS, sha
from run_states import Orchestrator
from servers import Redis
from shoal.contracts.protocol import ClaimRequest, SubmissionNotice
from shoal.orchestrator.work import handout, uploads


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    return Orchestrator(tmp_path, redis_server.url)


def handed_in(run: Orchestrator, node: str, version: int | None) -> str:
    run.clock.now += 1
    lease = run.lease(node, 0)
    data = run.upload(lease)
    notice = SubmissionNotice(
        node=node, lease=lease.lease, size=len(data), sha256=sha(data), groups=GROUPS, policy_version=version
    )
    return uploads.submit(run.state, notice).sha256


def claimed(run: Orchestrator, *versions: int, validator: str = "validator-0") -> str | None:
    job = handout.claim(run.state, ClaimRequest(validator=validator, versions=list(versions)))
    return job.sha256 if job is not None else None


def test_files_of_held_versions_come_first_and_each_in_the_order_of_waiting(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(5)]
    run.announce(0)
    older, newer, oldest, unknown, last = (
        handed_in(run, node, version) for node, version in zip(nodes, (1, 2, 1, None, 2), strict=True)
    )
    run.clock.now += 1
    assert claimed(run, 2) == newer
    assert claimed(run, 2) == last  # before the one whose node did not say its version, which may need another
    assert claimed(run, 2) == older  # none of its version waits: the one that waits longest
    assert claimed(run) == oldest
    assert claimed(run, 2) == unknown
    assert claimed(run, 2) is None


def test_a_file_of_an_unknown_version_has_its_turn(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(2)]
    run.announce(0)
    unknown, held = (handed_in(run, node, version) for node, version in zip(nodes, (None, 2), strict=True))
    run.clock.now += 1
    assert [claimed(run), claimed(run, 2)] == [unknown, held]


def test_without_versions_the_file_that_waits_longest_comes_first(run: Orchestrator) -> None:
    nodes = [run.join() for _ in range(2)]
    run.announce(0)
    first, second = (handed_in(run, node, version) for node, version in zip(nodes, (1, 2), strict=True))
    run.clock.now += 1
    assert [claimed(run), claimed(run)] == [first, second]


def test_a_job_says_what_the_node_said(run: Orchestrator) -> None:
    node = run.join()
    run.announce(0)
    handed_in(run, node, 0)
    run.clock.now += 1
    assert run.claimed().policy_version == 0
