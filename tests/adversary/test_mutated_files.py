"""Damaged files: whatever is in them, the validators' code gives a verdict, and accepts none whose content is not the honest file's.

200 mutations here, 10,000 in `make soak`, whose outcomes are in docs/adversaries.md.
"""

from pathlib import Path

import pytest
from benchmarks.trust import mutated
from benchmarks.trust.in_process import PaperRun, paper_config
from benchmarks.trust.models import make_models
from benchmarks.trust.mutations import damaged
from tournament import Tournament

from shoal.contracts.protocol import Lease

pytestmark = pytest.mark.timeout(1200)
Paper = tuple[PaperRun, Lease, bytes]
MUTATIONS = 200


@pytest.fixture(scope="module")
def paper(tournament: Tournament, tmp_path_factory: pytest.TempPathFactory) -> Paper:
    """A run with the tournament's weights, and an honest file for one of its leases."""
    current = tournament.weights["current"]
    run = PaperRun(tmp_path_factory.mktemp("paper") / "run", paper_config(), tournament.arena.base, current)
    lease, planned = run.lease(0)
    made = tournament.engine.generate(current, [row.request for row in planned]).completions
    return run, lease, run.write(run.rows(lease, planned, made))


def test_the_file_itself_is_accepted(paper: Paper) -> None:
    run, lease, honest = paper
    verdict = run.judge(honest, lease)
    assert verdict.outcome == "accept", verdict.evidence


def test_no_damaged_file_breaks_a_check_or_is_accepted_with_another_content(paper: Paper) -> None:
    outcomes = mutated.judge_damaged(*paper, range(MUTATIONS))
    assert outcomes.total() == MUTATIONS
    assert outcomes["format"] > MUTATIONS / 4
    assert outcomes["accept, says the same"] < MUTATIONS / 4


def test_mutations_are_the_same_every_time_and_never_the_file_itself(paper: Paper) -> None:
    _, _, honest = paper
    files = [damaged(honest, seed) for seed in range(20)]
    assert files == [damaged(honest, seed) for seed in range(20)]
    assert honest not in files
    assert len(set(files)) == 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_of_10000_damaged_files_none_is_accepted_with_another_content(tmp_path: Path) -> None:
    found = mutated.measure(make_models(paper_config(), tmp_path), tmp_path)
    assert sum(found["outcomes"].values()) == 10_000
