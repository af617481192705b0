"""When a lease under generation is finished and when it is handed back."""

import pytest
import tiny_policy

from shoal.contracts.protocol import StepInfo
from shoal.inference.commitment import comes_too_late, is_sealed, longest_left
from shoal.inference.lengths import KnownLengths, RowKind


def info(step: int, first_unsealed: int | None, latest: int = 4) -> StepInfo:
    return tiny_policy.STEP.model_copy(
        update={"step": step, "first_unsealed_step": first_unsealed, "latest_version": latest}
    )


@pytest.mark.parametrize(
    ("shown", "sealed"),
    [
        (None, False),  # nobody answers, or all steps wait for the trainer
        (info(4, 4), False),
        (info(5, 4), False),  # others work ahead, and this step still takes files
        (info(5, 5), True),
        (
            info(4, None, latest=4),
            False,
        ),  # an orchestrator that does not say: a version was made of every step before it
        (info(6, None, latest=5), True),
    ],
)
def test_a_lease_is_lost_when_its_step_is_sealed_and_not_before(shown: StepInfo | None, sealed: bool) -> None:
    assert is_sealed(tiny_policy.WORK, shown) is sealed


def test_the_steps_left_are_bounded_by_waves_of_the_longest() -> None:
    assert longest_left([10, 40, 20], 3) == 40
    assert longest_left([10, 40, 20], 2) == 80
    assert longest_left([10], 8) == 10
    assert longest_left([], 8) == 0


SUMS: RowKind = ("sums", None)
LONG: RowKind = ("sums", 4000)


def seen(*lengths: int, kind: RowKind = SUMS) -> KnownLengths:
    found = KnownLengths()
    for length in lengths:
        found.add(kind, length)
    return found


MIXED = [100] * 30 + [1000] * 10


def test_the_chance_of_rows_to_fit_is_that_of_lengths_seen_and_unknown_before_there_are_some() -> None:
    lengths = seen(*MIXED)
    assert lengths.chance([SUMS], 500) == 0.75
    assert lengths.chance([SUMS] * 2, 500) == 0.5625
    assert lengths.chance([SUMS] * 9, 1000) == 1.0
    assert seen(*MIXED[:31]).chance([SUMS] * 9, 1) == 1.0


def test_rows_are_as_long_as_others_of_their_kind_and_as_all_until_enough_of_these_are_seen() -> None:
    lengths = seen(*MIXED)
    for _ in range(31):
        lengths.add(LONG, 3000)
    assert lengths.known(LONG) == sorted([*MIXED, *[3000] * 31])
    assert lengths.expected(LONG) == 4000, "what it was asked for"
    lengths.add(LONG, 3500)
    assert lengths.known(LONG) == [3000] * 31 + [3500]
    assert lengths.known(SUMS) == MIXED
    assert lengths.expected(LONG) == (31 * 3000 + 3500) / 32
    assert lengths.chance([SUMS, LONG], 1000) == 0.0


def test_kinds_without_end_take_no_memory_without_end() -> None:
    lengths = KnownLengths()
    for number in range(10_000):
        lengths.add(("sums", number), number)
    assert len(lengths.known(("sums", 9_999))) == 512


@pytest.mark.parametrize(
    ("rows", "left", "whole", "late"),
    [
        (1, 300.0, 600.0, False),  # three of four are short enough
        (3, 300.0, 600.0, True),  # 0.42
        (3, 300.0, 400.0, False),  # a fresh lease would have no better prospects
        (9, 600.0, 600.0, False),
    ],
)
def test_a_lease_comes_too_late_where_a_fresh_one_would_not(rows: int, left: float, whole: float, late: bool) -> None:
    assert comes_too_late([SUMS] * rows, seen(*MIXED), 0.5, left, whole) is late


def test_before_the_first_step_nothing_is_too_late() -> None:
    assert not comes_too_late([SUMS], seen(*[1000] * 40), 0.0, -1.0, 600.0)
