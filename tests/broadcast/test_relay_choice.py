"""The choice of a relay: proportional to success rate x bandwidth, a failure never raises a weight, time heals, nobody is forgotten."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shoal.broadcast import relay_choice
from shoal.broadcast.relay_choice import FLOOR, RelayRecord

RELAYS = ["a", "b", "c"]
RECORDS = st.fixed_dictionaries(
    {
        relay: st.builds(
            RelayRecord,
            success=st.floats(0, 1),
            bandwidth=st.none() | st.floats(1, 1e10),
            updated=st.floats(0, 1000),
        )
        for relay in RELAYS
    }
)
NOW = st.floats(1000, 2000)


def _shares(records: dict[str, RelayRecord], now: float) -> dict[str, float]:
    weights = relay_choice.weights(records, now)
    return {relay: weight / sum(weights.values()) for relay, weight in weights.items()}


@given(RECORDS, st.sampled_from(RELAYS), NOW)
def test_a_failure_never_raises_the_weight_or_the_share_of_the_relay_that_failed(
    records: dict[str, RelayRecord], relay: str, now: float
) -> None:
    after = relay_choice.failed(records, relay, now)
    assert relay_choice.weights(after, now)[relay] <= relay_choice.weights(records, now)[relay]
    assert _shares(after, now)[relay] <= _shares(records, now)[relay] * (1 + 1e-9)


@given(RECORDS, st.sampled_from(RELAYS), NOW)
def test_a_failure_never_raises_any_weight(records: dict[str, RelayRecord], relay: str, now: float) -> None:
    before, after = (
        relay_choice.weights(records, now),
        relay_choice.weights(relay_choice.failed(records, relay, now), now),
    )
    assert all(after[other] <= before[other] for other in RELAYS)


@given(RECORDS, NOW)
def test_no_relay_has_less_than_the_floor(records: dict[str, RelayRecord], now: float) -> None:
    weights = relay_choice.weights(records, now)
    assert min(weights.values()) > 0
    assert min(weights.values()) >= FLOOR * max(weights.values()) * (1 - 1e-9)


@given(RECORDS, st.sampled_from(RELAYS), NOW, st.floats(0, 1000))
def test_time_heals_a_relay_of_which_nothing_is_heard(
    records: dict[str, RelayRecord], relay: str, now: float, later: float
) -> None:
    failed = relay_choice.failed(records, relay, now)
    assert relay_choice.weights(failed, now + later)[relay] >= relay_choice.weights(failed, now)[relay] * (1 - 1e-9)
    healed = relay_choice.failed(records, relay, now)
    assert relay_choice.weights({relay: healed[relay]}, now + 3600)[relay] > 0.99 * (healed[relay].bandwidth or 1.0)


def test_draws_follow_success_rate_times_bandwidth() -> None:
    records = {
        "fast": RelayRecord(1.0, 3e6, 0.0),
        "slow": RelayRecord(1.0, 1e6, 0.0),
        "flaky": RelayRecord(0.5, 2e6, 0.0),
    }
    rng = random.Random(1)
    drawn = Counter(relay_choice.pick(records, 0.0, rng) for _ in range(5000))
    assert abs(drawn["fast"] / 5000 - 0.6) < 0.03
    assert abs(drawn["slow"] / 5000 - 0.2) < 0.03
    assert abs(drawn["flaky"] / 5000 - 0.2) < 0.03


def test_the_same_seed_draws_the_same_relays() -> None:
    records = relay_choice.follow({}, RELAYS, 0.0)
    first, second = random.Random(5), random.Random(5)
    assert [relay_choice.pick(records, 0.0, first) for _ in range(50)] == [
        relay_choice.pick(records, 0.0, second) for _ in range(50)
    ]


def test_a_relay_that_fails_again_and_again_is_hardly_drawn_but_still_looked_at() -> None:
    records = relay_choice.follow({}, RELAYS, 0.0)
    for relay in RELAYS:
        records = relay_choice.succeeded(records, relay, 1e6, 0.0)
    for _ in range(50):
        records = relay_choice.failed(records, "a", 0.0)
    rng = random.Random(1)
    drawn = Counter(relay_choice.pick(records, 0.0, rng) for _ in range(5000))
    assert 10 < drawn["a"] < 200


def test_a_new_relay_counts_as_fast_as_the_fastest_so_that_it_is_measured() -> None:
    records = relay_choice.succeeded(relay_choice.follow({}, ["a"], 0.0), "a", 5e6, 0.0)
    records = relay_choice.follow(records, ["a", "new"], 0.0)
    weights = relay_choice.weights(records, 0.0)
    assert weights["new"] == weights["a"]


def test_relays_that_left_the_list_are_forgotten_and_others_keep_their_record() -> None:
    records = relay_choice.failed(relay_choice.follow({}, ["a", "b"], 0.0), "a", 0.0)
    assert relay_choice.follow(records, ["a"], 9.0) == {"a": records["a"]}


def test_with_every_relay_excluded_or_none_known_there_is_no_choice() -> None:
    assert relay_choice.pick(relay_choice.follow({}, ["a"], 0.0), 0.0, random.Random(1), {"a"}) is None
    assert relay_choice.pick({}, 0.0, random.Random(1)) is None
