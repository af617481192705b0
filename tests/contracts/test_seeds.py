"""Fixed data sampling: the stream is the written-down one for ever, it is uniform, and nothing but its public values moves it.

`tests/golden/seeds.json` was written by the slow generator in this file, which shares no code with the product and follows the description only.
`python tests/contracts/test_seeds.py` writes it anew.
"""

import hashlib
import hmac
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.sampling import draw

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "seeds.json"

CASES: list[dict[str, Any]] = [
    {"beacon": "00" * 32, "run": "a", "step": 0, "node": "00" * 32, "submission": 0, "task_count": 1, "groups": 1,
     "group_size": 1, "targets": None},
    {"beacon": "ab" * 32, "run": "arithmetic", "step": 7, "node": "0f" * 32, "submission": 2, "task_count": 4096,
     "groups": 4, "group_size": 3, "targets": [16, 24, 32]},
    {"beacon": "ff" * 32, "run": "intellect-2", "step": 999_999, "node": "ff" * 32, "submission": 65_535,
     "task_count": 285_000, "groups": 3, "group_size": 2, "targets": [2000, 4000, 6000, 8000, 10000]},
    {"beacon": "01" * 32, "run": "all", "step": 1, "node": "10" * 32, "submission": 1, "task_count": 6, "groups": 6,
     "group_size": 1, "targets": [7]},
]  # fmt: skip


def slow_draw(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The specification, read aloud: one long list of words, a plain shuffle over the whole table."""
    parts = [
        bytes.fromhex(case["beacon"]),
        case["run"].encode("utf-8"),
        case["step"].to_bytes(8, "big"),
        bytes.fromhex(case["node"]),
        case["submission"].to_bytes(8, "big"),
    ]
    material = b"shoal/draw/v1\x00"
    for part in parts:
        material += len(part).to_bytes(8, "big") + part
    key = hashlib.sha256(material).digest()
    words: list[int] = []
    counter = 0

    def uniform(bound: int) -> int:
        nonlocal counter
        while True:
            if not words:
                block = hashlib.sha256(key + counter.to_bytes(8, "big")).hexdigest()
                words.extend(int(block[i : i + 16], 16) for i in range(0, 64, 16))
                counter += 1
            word = words.pop(0)
            if word // bound < 2**64 // bound:  # the last, incomplete multiple is left out
                return word % bound

    deck = list(range(case["task_count"]))
    for place in range(case["groups"]):
        other = place + uniform(case["task_count"] - place)
        deck[place], deck[other] = deck[other], deck[place]
    drawn = []
    for prompt in deck[: case["groups"]]:
        target = case["targets"][uniform(len(case["targets"]))] if case["targets"] else None
        drawn.append(
            {
                "prompt_index": prompt,
                "target_length": target,
                "seeds": [uniform(2**63) for _ in range(case["group_size"])],
            }
        )
    return drawn


def drawn_groups(**changes: Any) -> list[draw.DrawnGroup]:
    case = CASES[1] | changes
    beacon = case.pop("beacon")
    return draw.draw_submission(beacon=bytes.fromhex(beacon), **case)


def as_json(groups: list[draw.DrawnGroup]) -> list[dict[str, Any]]:
    return [{"prompt_index": g.prompt_index, "target_length": g.target_length, "seeds": list(g.seeds)} for g in groups]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_stream_is_the_golden_one(number: int) -> None:
    golden = json.loads(GOLDEN.read_text())[number]
    assert golden["case"] == CASES[number]
    assert as_json(drawn_groups(**CASES[number])) == golden["groups"]
    assert slow_draw(CASES[number]) == golden["groups"]


@given(
    st.binary(min_size=32, max_size=32), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 60), st.data()
)  # fmt: skip
def test_the_stream_is_that_of_the_description(
    beacon: bytes, step: int, submission: int, task_count: int, data: st.DataObject
) -> None:
    case = {
        "beacon": beacon.hex(), "run": "r", "step": step, "node": "3c" * 32, "submission": submission,
        "task_count": task_count, "groups": data.draw(st.integers(0, task_count)), "group_size": 2,
        "targets": data.draw(st.none() | st.lists(st.integers(1, 99), min_size=1, max_size=5)),
    }  # fmt: skip
    assert as_json(drawn_groups(**case)) == slow_draw(case)


def test_every_public_value_changes_the_draw_and_nothing_is_shared_between_neighbours() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"beacon": "ac" + "ab" * 31}, {"run": "arithmetid"}, {"step": 8}, {"node": "0e" + "0f" * 31}, {"submission": 3}
    ]  # fmt: skip
    found = [{seed for group in drawn_groups(**change) for seed in group.seeds} for change in changes]
    assert len(set.union(*found)) == sum(map(len, found))


def test_the_length_prefix_keeps_neighbouring_values_apart() -> None:
    # Without it run "a", step 1 and run "a\0...\1" could hash the same bytes.
    assert drawn_groups(run="a") != drawn_groups(run="a\0")
    assert draw.beacon(b"s", "a", 1) != draw.beacon(b"s", "a\0", 1)


@given(st.integers(1, 1 << 64), st.binary(min_size=32, max_size=32))
def test_a_number_is_below_its_bound(bound: int, key: bytes) -> None:
    generator = draw.CounterGenerator(key)
    assert all(0 <= generator.below(bound) < bound for _ in range(5))


@pytest.mark.parametrize("bound", [0, -1, (1 << 64) + 1])
def test_a_bound_outside_64_bits_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match=f"bound must be 1 to 2\\*\\*64, got {bound}"):
        draw.CounterGenerator(b"k" * 32).below(bound)


def test_words_past_the_last_whole_multiple_are_dropped() -> None:
    # With this bound nearly half of all words must be dropped; keeping them would double the weight of the low numbers.
    bound = (1 << 63) + 1
    generator = draw.CounterGenerator(b"k" * 32)
    words = draw.CounterGenerator(b"k" * 32)
    expected = [word for word in (words.below(1 << 64) for _ in range(400)) if word < bound]
    assert 120 < len(expected) < 280
    assert [generator.below(bound) for _ in expected] == expected


@pytest.mark.parametrize("bound", [2, 3, 7, 10])
def test_draws_are_uniform(bound: int) -> None:
    generator = draw.CounterGenerator(b"uniform".ljust(32))
    draws = 20_000
    counts = Counter(generator.below(bound) for _ in range(draws))
    chi_square = sum((counts[value] - draws / bound) ** 2 / (draws / bound) for value in range(bound))
    assert chi_square < 35, "the 1e-4 quantile of chi-square with 9 degrees of freedom is 33.7; the key is fixed"


@given(st.integers(0, 300), st.integers(0, 300), st.binary(min_size=4, max_size=4))
def test_distinct_draws_are_distinct_and_in_range(count: int, more: int, key: bytes) -> None:
    found = draw.CounterGenerator(key).distinct(count, count + more)
    assert len(found) == len(set(found)) == count
    assert all(0 <= number < count + more for number in found)


def test_impossible_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw 5 different numbers below 4"):
        drawn_groups(groups=5, task_count=4)
    with pytest.raises(ValueError, match="a beacon has 32 bytes, got 31"):
        drawn_groups(beacon="ab" * 31)


def test_seeds_fit_a_signed_64_bit_integer() -> None:
    assert all(0 <= seed < 1 << 63 for group in drawn_groups(groups=50, group_size=20) for seed in group.seeds)


def test_the_beacon_is_the_hmac_of_the_run_secret_and_its_commitment_hides_it() -> None:
    secret = b"run secret"
    message = (3).to_bytes(8, "big") + b"run" + (8).to_bytes(8, "big") + (7).to_bytes(8, "big")
    value = draw.beacon(secret, "run", 7)
    assert value == hmac.new(secret, message, hashlib.sha256).digest()
    assert len({draw.beacon(secret, "run", step) for step in range(100)}) == 100
    commitment = draw.beacon_commitment(value)
    assert commitment == hashlib.sha256(b"shoal/beacon/v1\0" + value).hexdigest()
    assert commitment != value.hex()


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps([{"case": case, "groups": slow_draw(case)} for case in CASES], indent=1) + "\n")
