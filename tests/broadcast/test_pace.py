"""When a shard is taken from a slow relay, and when the tail is asked for twice."""

import pytest

from shoal.broadcast.pace import FlightPace, rates, to_hedge, to_steal

MB = 1_000_000
SOURCES = ["fast", "slow"]


def flight(index: int, source: str, share: float, age: float, size: int = 10 * MB) -> FlightPace:
    return FlightPace(index, source, size, int(size * share), age)


def test_a_source_gives_what_it_gives_now_else_its_average_shared_by_all_flights() -> None:
    flights = [flight(0, "a", 0.5, 5.0), flight(1, "a", 0.2, 5.0), flight(2, "young", 0.9, 0.5)]
    assert rates(flights, {"a": 100.0 * MB, "b": 8.0 * MB, "young": 4.0 * MB}, 4) == {
        "a": MB,
        "b": 2.0 * MB,
        "young": MB,
    }
    assert rates([flight(2, "new", 0.9, 0.5)], {}, 4) == {"new": 0.0}


def test_a_shard_that_would_last_long_is_moved_to_a_relay_that_nothing_is_known_of() -> None:
    one, two = flight(0, "slow", 0.1, 1.5), flight(1, "slow", 0.2, 1.5)
    assert to_steal([one, two], {}, SOURCES, rates([one, two], {}, 2)) == one
    exploring = flight(0, "fast", 0.0, 0.1)
    assert to_steal([exploring, two], {0: {"slow", "fast"}}, SOURCES, rates([exploring, two], {}, 2)) is None


def test_a_shard_is_taken_from_a_relay_that_others_beat_by_far() -> None:
    slow, fast = flight(0, "slow", 0.1, 10.0), flight(1, "fast", 0.5, 1.0)
    expected = rates([slow, fast], {}, 4)
    assert to_steal([slow, fast], {0: {"slow"}, 1: {"fast"}}, SOURCES, expected) == slow


@pytest.mark.parametrize(
    ("slow", "fast", "tried"),
    [
        (flight(0, "slow", 0.2, 2.0), flight(1, "fast", 0.5, 2.0), {"slow"}),
        (flight(0, "slow", 0.1, 0.9), flight(1, "fast", 0.9, 0.9), {"slow"}),
        (flight(0, "slow", 0.95, 10.0), flight(1, "fast", 0.5, 1.0), {"slow"}),
        (flight(0, "slow", 0.1, 10.0), flight(1, "fast", 0.5, 1.0), {"slow", "fast"}),
        (flight(0, "slow", 0.0, 2.5), flight(1, "fast", 0.0, 2.5), {"slow"}),
    ],
    ids=[
        "not so much slower",
        "too young to judge",
        "nearly done",
        "nobody left to ask",
        "nobody is known to be faster",
    ],
)
def test_a_shard_stays_where_it_is(slow: FlightPace, fast: FlightPace, tried: set[str]) -> None:
    expected = rates([slow, fast], {}, 2)
    assert to_steal([slow, fast], {0: tried, 1: set(SOURCES)}, SOURCES, expected) is None


def test_a_relay_that_sends_nothing_loses_its_shard_even_to_an_unknown_one() -> None:
    silent = flight(0, "slow", 0.0, 3.5)
    assert to_steal([silent], {0: {"slow"}}, SOURCES, {}) == silent
    assert to_steal([silent], {0: {"slow"}}, ["slow"], {}) is None


def test_the_slowest_goes_first() -> None:
    one, two = flight(0, "slow", 0.1, 10.0), flight(1, "slow", 0.01, 10.0)
    assert to_steal([one, two], {}, SOURCES, {"fast": 50.0 * MB}) == two


def test_the_tail_is_asked_for_again_where_that_is_sooner() -> None:
    tail = flight(9, "slow", 0.5, 10.0)
    assert to_hedge([tail], {9: 10 * MB}, {"fast": 5.0 * MB, "slow": MB}) == tail


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (flight(9, "slow", 0.5, 10.0), {"fast": 0.9 * MB}),
        (flight(9, "slow", 0.95, 10.0), {"fast": 50.0 * MB}),
        (flight(9, "slow", 0.1, 0.5), {"fast": 50.0 * MB}),
        (flight(9, "slow", 0.7, 2.0), {"slow": 50.0 * MB}),
    ],
    ids=[
        "the whole would take longer there",
        "nearly done",
        "too young to judge",
        "no other is known, and it is quick",
    ],
)
def test_the_tail_is_left_alone(tail: FlightPace, expected: dict[str, float]) -> None:
    assert to_hedge([tail], {9: 10 * MB}, expected) is None


def test_a_tail_that_does_not_move_is_asked_for_again_whatever_is_known() -> None:
    silent = flight(9, "slow", 0.0, 1.5)
    assert to_hedge([silent], {9: 10 * MB}, {}) == silent


def test_without_flights_there_is_nothing_to_do() -> None:
    assert to_steal([], {}, SOURCES, {}) is None
    assert to_hedge([], {}, {}) is None
