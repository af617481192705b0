"""Honest work is never punished, however it was made: in batches of any size, after a restart, after preemption.

All rows of every file are checked, as for a node on probation. The rate and its interval over 1,000 sequences are `make soak`'s; they are
published in docs/adversaries.md.
"""

from pathlib import Path

import pytest
from benchmarks.trust import honest
from benchmarks.trust.in_process import PaperRun, paper_config
from benchmarks.trust.interval import at_least, clopper_pearson
from benchmarks.trust.models import make_models
from tournament import Tournament

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("together", [5, 48])
def test_files_made_in_batches_of_any_size_are_accepted(tournament: Tournament, together: int, tmp_path: Path) -> None:
    current = tournament.weights["current"]
    run = PaperRun(tmp_path / "run", paper_config(), tournament.arena.base, current)
    lease, planned = run.lease(together)
    completions = []
    for start in range(0, len(planned), together):
        part = planned[start : start + together]
        completions += tournament.engine.generate(current, [row.request for row in part]).completions
    data = run.write(run.rows(lease, planned, completions))
    verdict = run.judge(data, lease)
    assert (verdict.outcome, verdict.evidence) == ("accept", "")
    assert verdict.proof_rows == len(planned)
    assert run.judge(data, lease, accepted_files=100_000).proof_rows < len(planned) / 4


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [(0, 20, 0.0, 0.1391), (10, 10, 0.7411, 1.0), (3, 10, 0.0667, 0.6525), (50, 100, 0.3983, 0.6017)],
)
def test_intervals_are_those_of_the_tables(events: int, trials: int, low: float, high: float) -> None:
    """Without any event the limit is one-sided: `1 - 0.05 ** (1 / n)`."""
    assert clopper_pearson(events, trials) == pytest.approx((low, high), abs=1e-4)


def test_a_rate_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="5 events in 4 trials"):
        clopper_pearson(5, 4)
    assert at_least(0, 4, 0.5) == 1.0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_of_1000_honest_sequences_none_is_in_a_rejected_file(tmp_path: Path) -> None:
    made = make_models(paper_config(), tmp_path)
    found = honest.measure(made, tmp_path)
    assert found["sequences"] >= 1000
    assert found["rejected_files"] == 0, found["ways"]
