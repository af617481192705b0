"""A liar with the right weights, who asks the public judge first, changes next to nothing of a float32 file of which every row is checked."""

import math
from pathlib import Path

import pytest
from benchmarks.trust import adaptive, standing, weight_sets
from benchmarks.trust.adaptive import Liar
from benchmarks.trust.in_process import PaperRun, paper_config
from tournament import Tournament

from shoal.validation.models import load_model

pytestmark = pytest.mark.timeout(1200)
MOST_CHEAP, MOST_MOVED = 0.02, 0.02


@pytest.fixture(scope="module")
def liar(tournament: Tournament, tmp_path_factory: pytest.TempPathFactory) -> Liar:
    home, current = tmp_path_factory.mktemp("liar"), tournament.weights["current"]
    return Liar(PaperRun(home / "run", paper_config(), tournament.arena.base, current), current)


def test_its_honest_file_is_accepted(liar: Liar) -> None:
    lease, planned = liar.run.lease(1)
    rows = liar.rows(lease, planned, liar.write(planned))
    verdict = liar.ask(lease, rows)
    assert (verdict.outcome, verdict.evidence) == ("accept", "")
    assert liar.not_drawn(rows)[0] <= 1


def test_tokens_of_cheap_weights_are_accepted_only_where_they_are_those_that_the_seeds_draw(
    liar: Liar, tmp_path: Path
) -> None:
    cheap = load_model(weight_sets.derive(liar.folder, tmp_path / "int4", weight_sets.int4))
    lease, planned = liar.run.lease(2)
    as_it_is = liar.rows(lease, planned, liar.write(planned, cheap, most_behind=1e9))
    assert liar.not_drawn(as_it_is)[0] > 0
    verdict = liar.ask(lease, as_it_is)
    assert (verdict.outcome, verdict.reason) == ("reject", "redraw")
    found = adaptive.cheap_tokens(liar, cheap, 2)
    assert found["other"] / found["tokens"] <= MOST_CHEAP


@pytest.mark.parametrize("up", [True, False])
def test_rewards_are_not_moved_by_picking_among_completions(liar: Liar, up: bool) -> None:
    assert abs(adaptive.moved_reward(liar, 3 + up, up=up)) <= MOST_MOVED


def test_a_row_that_is_made_an_outlier_is_dropped_once_and_not_each_time(
    liar: Liar, tournament: Tournament, tmp_path: Path
) -> None:
    assert adaptive.dropped_row(liar, 5, up=True) == (0.0, 0), "without a rate the file is rejected"
    gaps = liar.budget.model_copy(update={"outliers": 1e-5})
    validation = liar.run.config.validation
    assert validation.thresholds is not None
    thresholds = validation.thresholds.model_copy(update={"drawn_gaps": gaps})
    config = paper_config({"validation": validation.model_copy(update={"thresholds": thresholds})})
    lenient = Liar(PaperRun(tmp_path / "paper", config, tournament.arena.base, liar.folder), liar.folder)
    up, tokens = adaptive.dropped_row(lenient, 5, up=True)
    assert 0.0 < up <= MOST_MOVED
    assert adaptive.drops(tokens, 1e-5, 10) <= 2
    assert adaptive.drops(tokens, 1e-5, 100) <= 6


def test_in_good_standing_a_file_of_false_rows_is_rejected_and_one_false_row_is_seen_when_it_is_drawn(
    liar: Liar, tmp_path: Path
) -> None:
    cheap = load_model(weight_sets.derive(liar.folder, tmp_path / "int4", weight_sets.int4))
    lease, planned = liar.run.lease(6)
    honest = liar.rows(lease, planned, liar.write(planned))
    written = liar.rows(lease, planned, liar.write(planned, cheap, math.inf))
    found = standing.mixed(liar, lease, honest, list(enumerate(written)), looks=10)
    one, every = found[0], found[-1]
    assert (one["false_rows"], every["false_rows"]) == (1, len(honest))
    assert one["rows_checked"] < len(honest), "a node in good standing has all rows checked"
    assert every["rejected"] > 0, "most looks at a file of false rows find one"
    assert every["accepted"] < 10
    assert one["rejected"] < 10, "one false row is found in each look, although most looks miss it"
    assert every["tokens_not_drawn"] > 0.0


def test_rows_that_are_not_drawn_are_missed_as_the_page_says() -> None:
    assert standing.missed(64, 1, 7) == pytest.approx(0.89, abs=0.005)
    assert 1 / standing.missed(64, 32, 7) == pytest.approx(184, abs=5)
    assert list(standing.false_rows(48)) == [1, 4, 16, 48]


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_of_3000_honest_files_fewer_than_one_in_a_thousand_is_rejected(liar: Liar) -> None:
    found = adaptive.honest_files(liar.run, liar.folder, 3000, 10_000)
    assert found["false_reject_rate_upper_95"] < 1e-3, found["evidence"]
