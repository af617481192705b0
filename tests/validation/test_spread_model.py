"""A validator of several processes, each with its share of the weights: its verdicts are those of one process."""

import dataclasses
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from court import METADATA, Court, OnePolicy
from test_dishonest_files import replace
from test_sampler_redraw import ALL_ROWS, long_row, one_row
from test_validator_process import Validating, publish

from shoal.contracts.rollouts import Rollout, write_rollouts
from shoal.contracts.verdicts import Verdict
from shoal.validation.models import weights_in
from shoal.validation.policies import LoadedPolicy

Deadline = Callable[..., object]
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
ROUNDED = re.compile(r", [^,]* nats ahead.*")
"""The end of a finding of `redraw`, which says by how much: sums of two processes round otherwise."""


@pytest.fixture(scope="module")
def spread(court: Court, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Validating]:
    size = weights_in(court.made.folder["old"])
    running = Validating(tmp_path_factory.mktemp("spread"), court, torchrun=TORCHRUN, memory_bytes=round(1.5 * size))
    running.prepare()
    yield running
    if running.process.poll() is None:
        running.process.terminate()
        running.process.wait(timeout=60)
    running.orchestrator.close()


def processes_of(validating: Validating) -> list[int]:
    """Process ids of rank 0 and rank 1."""
    path = Path(f"/proc/{validating.process.pid}/task/{validating.process.pid}/children")
    return sorted(int(word) for word in path.read_text().split())


def file_of(court: Court, rows: list[Rollout], digest: str) -> bytes:
    return write_rollouts(rows, dataclasses.replace(METADATA, weights_digest=digest))


def of_one_process(court: Court, rows: list[Rollout], policy: LoadedPolicy) -> Verdict:
    metadata = dataclasses.replace(METADATA, weights_digest=policy.weights_digest)
    alone = dataclasses.replace(court, policies=OnePolicy(policy))
    return alone.judge(rows, metadata, ALL_ROWS)


# The tests of this file tell one story, in order, of one validator.


def test_an_honest_file_is_accepted_by_two_processes(spread: Validating, court: Court, deadline: Deadline) -> None:
    rows = court.rows(court.made.old)
    found = spread.verdict_on(file_of(court, rows, spread.weights_digest), deadline, job=ALL_ROWS)
    alone = of_one_process(court, rows, LoadedPolicy(3, spread.weights_digest, court.made.model["old"]))
    for each in (found, alone):
        assert (each.outcome, each.evidence, each.proof_rows) == ("accept", "", 24)
    assert (found.rewards, found.compute) == (alone.rewards, alone.compute)


def test_a_row_that_its_seed_does_not_draw_is_found_with_the_same_words(
    spread: Validating, court: Court, honest: list[Rollout], deadline: Deadline
) -> None:
    at = long_row(honest)
    tokens = list(honest[at].completion_tokens)
    tokens[7] = 2 + (tokens[7] + 7) % 200
    rows = one_row(court, honest, at, replace(honest[at], completion_tokens=tokens))
    found = spread.verdict_on(file_of(court, rows, spread.weights_digest), deadline, job=ALL_ROWS)
    alone = of_one_process(court, rows, LoadedPolicy(3, spread.weights_digest, court.made.model["old"]))
    assert (found.outcome, found.reason) == (alone.outcome, alone.reason) == ("reject", "redraw")
    assert ROUNDED.sub("", found.evidence) == ROUNDED.sub("", alone.evidence)


def test_the_next_version_is_written_over_the_one_that_is_held(
    spread: Validating, court: Court, deadline: Deadline
) -> None:
    digest = publish(spread.store, court.made.folder["new"], 4)
    rows = court.rows(court.made.swapped, 4)
    found = spread.verdict_on(file_of(court, rows, digest), deadline, job=ALL_ROWS)
    assert (found.outcome, found.evidence, found.proof_rows) == ("accept", "", 24)
    held = {path.name for path in (spread.home / "tmp" / "validation" / "policies").iterdir()}
    assert held == {"v000004"}


def test_a_rank_that_dies_ends_all(spread: Validating, deadline: Deadline) -> None:
    ranks = processes_of(spread)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    assert spread.process.wait(timeout=60) != 0
    deadline("the other rank's end", lambda: not Path(f"/proc/{ranks[0]}").exists(), seconds=60)
