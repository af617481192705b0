"""The prompts of a mixture: every file of every step has the shares that the weights say, nobody can choose, and everybody can repeat the draw."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.mixture import SourceTerms, rows_of_sources
from shoal.contracts.work import FileShape, WorkCodec, draw
from shoal.sampling.draw import DrawnGroup, draw_mixture
from shoal.sampling.mixture import SourceRows, most_of_a_file, turns, turns_of_file

BEACON, NODE, OTHER = b"b" * 32, "a" * 64, "c" * 64


def sources(*weights: int, rows: int = 200, targets: tuple[int, ...] | None = None) -> list[SourceRows]:
    return [
        SourceRows(f"source-{number}", range(number * rows, (number + 1) * rows), weight, targets)
        for number, weight in enumerate(weights)
    ]


def file(step: int, submission: int, of: list[SourceRows], groups: int, node: str = NODE) -> list[DrawnGroup]:
    beacon = step.to_bytes(32, "big")
    return draw_mixture(
        beacon=beacon, run="r", step=step, node=node, submission=submission, groups=groups, group_size=2, sources=of
    )


def counts(drawn: list[DrawnGroup], of: list[SourceRows]) -> list[int]:
    return [sum(group.prompt_index in source.rows for group in drawn) for source in of]


@given(weights=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_every_beginning_of_a_cycle_has_each_share_rounded_up_or_down(weights: list[int]) -> None:
    cycle, whole = turns(tuple(weights)), sum(weights)
    given_: Counter[int] = Counter()
    for place, number in enumerate(cycle, 1):
        given_[number] += 1
        for each, weight in enumerate(weights):
            assert place * weight // whole <= given_[each] <= -(-place * weight // whole)
    scale = whole // len(cycle)
    assert [given_[number] * scale for number in range(len(weights))] == weights


def test_whole_shares_hold_exactly_in_every_file_of_a_thousand_steps() -> None:
    three_to_one = sources(3, 1)
    for step in range(1000):
        for node in (NODE, OTHER):
            assert counts(file(step, step % 3, three_to_one, 4, node), three_to_one) == [3, 1]


def test_other_shares_hold_within_two_prompts_for_a_node_in_each_of_a_thousand_steps() -> None:
    weights = (60, 25, 10, 5)
    of, total = sources(*weights), Counter[int]()
    for step in range(1000):
        in_step: Counter[int] = Counter()
        for submission in range(8):
            in_step.update(dict(enumerate(counts(file(step, submission, of, 4), of))))
        for number, weight in enumerate(weights):
            assert abs(in_step[number] - 32 * weight / 100) < 2
        total.update(in_step)
    assert [round(total[number] / 320, 0) for number in range(4)] == list(weights)


def test_a_node_s_next_file_goes_on_where_the_last_one_ended() -> None:
    order = [turns_of_file((2, 1), 1, submission, 4) for submission in range(3)]
    assert [turn for each in order for turn in each] == [turns((2, 1))[(1 + place) % 3] for place in range(12)]


def test_where_a_node_begins_in_the_cycle_is_drawn_from_the_beacon_and_its_key() -> None:
    of = sources(1, 1, 1, 1)
    first = {
        (step, node): file(step, 0, of, 1, node)[0].prompt_index // 200 for step in range(40) for node in (NODE, OTHER)
    }
    assert set(first.values()) == {0, 1, 2, 3}
    assert any(first[step, NODE] != first[step, OTHER] for step in range(40))
    assert any(first[one, NODE] != first[two, NODE] for one, two in pairwise(range(40)))


def test_a_draw_is_the_same_for_everybody_and_for_ever() -> None:
    of = sources(2, 1, targets=(16, 32))
    assert file(5, 1, of, 3) == file(5, 1, of, 3)
    found = [(group.prompt_index, group.target_length, group.seeds[0]) for group in file(5, 1, of, 3)]
    assert found == [(123, 16, 2509521203565860727), (320, 32, 2606128580182170205), (117, 32, 124171926609245016)]


def test_prompts_of_a_file_are_different_ones_and_ask_for_lengths_of_their_own_source() -> None:
    of = [SourceRows("short", range(4), 1, (16,)), SourceRows("plain", range(4, 8), 1, None)]
    for step in range(50):
        drawn = file(step, 0, of, 8)
        assert sorted(group.prompt_index for group in drawn) == list(range(8))
        assert all(group.target_length == (16 if group.prompt_index < 4 else None) for group in drawn)


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=5), groups=st.integers(1, 30))
def test_the_most_of_a_source_in_a_file_is_known_before(weights: list[int], groups: int) -> None:
    cycle = turns(tuple(weights))
    files = [Counter(turns_of_file(tuple(weights), start, 0, groups)) for start in range(len(cycle))]
    assert most_of_a_file(tuple(weights), groups) == [
        max(each[number] for each in files) for number in range(len(weights))
    ]


def test_a_source_with_too_few_rows_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="cannot draw 2 different numbers below 1"):
        file(0, 0, [SourceRows("one", range(1), 1), SourceRows("two", range(1, 9), 1)], 4)


def test_the_run_s_terms_are_enough_to_draw_again() -> None:
    terms = [
        SourceTerms(name="math", environment="math", task_count=30, weight=3, targets=[64]),
        SourceTerms(name="code", environment="code", task_count=10, weight=1),
    ]
    lengths = LengthReward(targets=[100, 200])
    rows = rows_of_sources(terms, lengths)
    assert [(each.rows, each.targets) for each in rows] == [(range(30), [64]), (range(30, 40), [100, 200])]
    shape = FileShape.of(Sampling(groups_per_submission=4), 2, lengths)
    train = WorkCodec("Train", shape, 40, 2, sources=rows).step(7)
    drawn = draw(train, beacon=BEACON, run="r", node=NODE, submission=0)
    assert counts(drawn, list(rows)) == [3, 1]
    # Each row of a slice once, whosever it is.
    table = WorkCodec("Generate", shape, 40, 0, sources=rows).step(7)
    whole = draw(table, beacon=BEACON, run="r", node=NODE, submission=0)
    assert sorted(group.prompt_index for group in whole) == [28, 29, 30, 31]
    assert {group.target_length == 64 for group in whole if group.prompt_index < 30} == {True}
    assert not any(group.target_length == 64 for group in whole if group.prompt_index >= 30)


def test_without_a_length_reward_no_prompt_asks_for_a_length() -> None:
    [only] = rows_of_sources([SourceTerms(name="a", environment="math", task_count=2, weight=1, targets=[64])], None)
    assert only.targets is None
