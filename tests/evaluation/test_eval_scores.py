"""Scores: pass@k is unbiased, intervals hold what they say, and what could not be scored is in no figure."""

from itertools import combinations, product

import numpy as np
import pytest

from shoal.evaluation.scores import Answer, AnsweredTask, interval, ks, pass_at_k, scores


def problem(name: str, *rewards: float | None, tokens: int = 10, cut: bool = False) -> AnsweredTask:
    return AnsweredTask(name, [Answer(reward, tokens, cut) for reward in rewards])


@pytest.mark.parametrize(("samples", "correct"), [(5, 0), (5, 1), (5, 3), (5, 5), (6, 2)])
def test_pass_at_k_is_the_share_of_k_answers_drawn_that_hold_a_right_one(samples: int, correct: int) -> None:
    answers = [1] * correct + [0] * (samples - correct)
    for k in range(1, samples + 1):
        drawn = [any(some) for some in combinations(answers, k)]
        assert pass_at_k(samples, correct, k) == pytest.approx(sum(drawn) / len(drawn), abs=1e-12)


def test_pass_at_k_is_unbiased_where_the_naive_formula_is_not() -> None:
    chance, samples, k = 0.3, 4, 2
    found = naive = 0.0
    for answers in product([0, 1], repeat=samples):
        weight = float(np.prod([chance if answer else 1 - chance for answer in answers]))
        found += weight * pass_at_k(samples, sum(answers), k)
        naive += weight * (1 - (1 - sum(answers) / samples) ** k)
    assert found == pytest.approx(1 - (1 - chance) ** k, abs=1e-12)
    assert naive < found - 0.02


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 2, 0), (4, 2, 5), (4, 5, 1), (4, -1, 1)])
def test_a_pass_at_k_that_means_nothing_is_refused(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"allowed: k from 1 to the samples"):
        pass_at_k(samples, correct, k)


def test_figures_are_means_over_problems() -> None:
    found = scores([problem("a", 1, 1, 0, 0), problem("b", 0, 0, 0, 1), problem("c", 0, 0, 0, 0)], 4)
    assert found.avg_at_k is not None
    assert found.avg_at_k.value == pytest.approx((0.5 + 0.25 + 0) / 3)
    assert [one.k for one in found.pass_at_k] == [1, 2, 4]
    assert found.pass_at_k[0].value == pytest.approx(found.avg_at_k.value)
    assert found.pass_at_k[1].value == pytest.approx((5 / 6 + 1 / 2 + 0) / 3)
    assert found.pass_at_k[2].value == pytest.approx(2 / 3)
    assert [one.right for one in found.problems] == [2, 1, 0]


def test_an_answer_with_part_of_the_reward_counts_in_the_mean_and_is_not_right() -> None:
    found = scores([problem("a", 0.5, 1.0)], 2)
    assert found.avg_at_k is not None
    assert found.avg_at_k.value == 0.75
    assert found.pass_at_k[0].value == 0.5


def test_what_could_not_be_scored_is_counted_and_in_no_figure() -> None:
    found = scores([problem("a", None, 1.0), problem("b", None, None)], 2)
    assert found.unscored == 3
    assert found.avg_at_k is not None
    assert (found.avg_at_k.value, found.avg_at_k.problems) == (1.0, 1)
    assert [one.k for one in found.pass_at_k] == [1]  # no problem has two scored answers
    nothing = scores([problem("a", None)], 1)
    assert nothing.avg_at_k is None
    assert nothing.pass_at_k == []


def test_lengths_and_the_share_that_was_cut_are_over_all_answers() -> None:
    found = scores([problem("a", 1, tokens=4), problem("b", 0, None, tokens=9, cut=True)], 2).lengths
    assert (found.mean, found.median, found.most) == (pytest.approx(22 / 3), 9, 9)
    assert found.cut_share == pytest.approx(2 / 3)
    assert scores([problem("a", 1, tokens=4), problem("b", 0, tokens=9)], 1).lengths.median == 6.5


@pytest.mark.parametrize(("samples", "wanted"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_pass_at_k_is_told_for_powers_of_two_and_for_all_answers(samples: int, wanted: list[int]) -> None:
    assert ks(samples) == wanted


def test_intervals_hold_the_truth_as_often_as_they_say_though_answers_to_a_problem_are_alike() -> None:
    chance, held = np.random.default_rng(5), 0
    for _ in range(600):  # problems are hard or easy: answers to one are far from independent
        rates = chance.beta(0.5, 0.5, 60)
        right = chance.binomial(8, rates) / 8
        low, high = interval(right.tolist(), 60 * 8)
        held += low <= 0.5 <= high
    assert 0.92 <= held / 600 <= 0.98


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_interval_of_equal_values_still_has_a_width_and_stays_within_its_range(value: float) -> None:
    low, high = interval([value] * 20, 80)
    assert 0.0 <= low <= value <= high <= 1.0
    assert high - low > 0.1
    assert interval([value], 1)[1] - interval([value], 1)[0] > 0.7


def test_more_problems_make_an_interval_narrower_and_more_answers_alone_do_not() -> None:
    values = [0.0, 1.0] * 10
    few, many = interval(values, 20), interval(values * 10, 200)
    assert many[1] - many[0] < 0.5 * (few[1] - few[0])
    assert interval(values, 2000) == few


def test_no_answers_and_rewards_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no answers; allowed: one or more"):
        scores([AnsweredTask("a", [])], 1)
    with pytest.raises(ValueError, match=r"a reward of problem a is 1\.5; allowed: 0 to 1"):
        scores([problem("a", 1.5)], 1)
    with pytest.raises(ValueError, match="an interval needs one or more values"):
        interval([], 0)
