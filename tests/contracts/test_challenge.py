"""The challenge of matrix products: right answers are the same everywhere and pass, wrong ones do not, and the bounds that make it exact hold."""

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.contracts.pools import Requirements
from shoal.crypto import challenge
from shoal.crypto.challenge import ANSWER_BYTES, PRIME, SIZE, BadProduct, ChallengeWork, TooSlow, check, solve

WORK = ChallengeWork(bytes(range(32)), lanes=2, depth=3)
GOLDEN = "207b8da74196ef932105cc64d1753871b61d842a56b2a9b98410b3c5055ae55c"


@pytest.fixture(scope="module")
def answer() -> bytes:
    return solve(WORK)


def test_the_largest_sum_is_exact_in_float32() -> None:
    assert (PRIME - 1) ** 2 * SIZE < 2**24
    assert PRIME < 2**8, "exact in the 8 bits of bfloat16"


def test_the_answer_is_the_product_as_whole_numbers_have_it(answer: bytes) -> None:
    bases = challenge.base_matrices(WORK.seed).astype(np.int64)
    total = np.zeros((SIZE, SIZE), np.int64)
    for lane in challenge.turns(WORK):
        running = np.eye(SIZE, dtype=np.int64)
        for g, s, t in lane:
            running = running @ np.roll(np.roll(bases[g], s, axis=0), t, axis=1) % PRIME
        total += running
    assert answer == (total % PRIME).astype(np.uint8).tobytes()


def test_the_answer_to_a_known_seed_stays_what_it_was(answer: bytes) -> None:
    assert hashlib.sha256(answer).hexdigest() == GOLDEN


def test_a_right_answer_passes_whatever_is_drawn(answer: bytes) -> None:
    for _ in range(3):
        check(WORK, answer)


def test_the_answer_has_one_size_whatever_the_work(answer: bytes) -> None:
    assert len(answer) == len(solve(ChallengeWork(bytes(32), lanes=1, depth=1))) == ANSWER_BYTES


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, ANSWER_BYTES - 1), off=st.integers(1, PRIME - 1))
def test_one_wrong_number_of_262144_is_found(answer: bytes, place: int, off: int) -> None:
    wrong = bytearray(answer)
    wrong[place] = (wrong[place] + off) % PRIME
    with pytest.raises(BadProduct, match="the product is wrong"):
        check(WORK, bytes(wrong))


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "another seed": lambda _: solve(ChallengeWork(bytes(32), WORK.lanes, WORK.depth)),
    "less depth": lambda _: solve(ChallengeWork(WORK.seed, WORK.lanes, WORK.depth - 1)),
    "fewer lanes": lambda _: solve(ChallengeWork(WORK.seed, WORK.lanes - 1, WORK.depth)),
    "nothing": lambda _: bytes(ANSWER_BYTES),
    "transposed": lambda good: np.frombuffer(good, np.uint8).reshape(SIZE, SIZE).T.tobytes(),
    "rows in another order": lambda good: good[SIZE:] + good[:SIZE],
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_not_the_product_does_not_pass(answer: bytes, kind: str) -> None:
    with pytest.raises(BadProduct, match="the product is wrong"):
        check(WORK, WRONG[kind](answer))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "a product has 262144 bytes, but this one has 0"),
        (bytes(ANSWER_BYTES + 1), "this one has 262145"),
        (bytes(ANSWER_BYTES - 1) + b"\x7f", "a product's values are below 127"),
        (b"\xff" * ANSWER_BYTES, "a product's values are below 127"),
    ],
)
def test_bytes_that_are_no_product_are_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(BadProduct, match=words):
        check(WORK, data)


def test_an_answer_survives_its_journey_and_no_other_text_is_one(answer: bytes) -> None:
    assert challenge.decode_answer(challenge.encode_answer(answer)) == answer
    for text in ("?", "A", "AAA=A"):
        with pytest.raises(BadProduct, match="not base64"):
            challenge.decode_answer(text)


def test_the_checkers_vectors_are_uniform_and_drawn_again_where_they_would_not_be() -> None:
    calls: list[int] = []

    def draw(count: int) -> bytes:
        calls.append(count)
        return b"\xff" * count if len(calls) == 1 else bytes(number % 256 for number in range(count))

    found = challenge.random_vectors(draw)
    assert len(calls) > 2, "the first bytes make values of 127, which no field element is"
    assert float(found.max()) == PRIME - 1


@pytest.mark.parametrize("gflops", [1, 20, 100, 1000, 1400])
def test_the_time_allowed_fits_the_work(gflops: int) -> None:
    lanes, depth, limit = challenge.plan(gflops)
    work = ChallengeWork(bytes(32), lanes, depth)
    seconds = work.flop / (gflops * 1e9)
    assert limit == pytest.approx(seconds + challenge.ALLOWANCE_SECONDS)
    assert seconds >= challenge.ALLOWANCE_SECONDS * 0.95, "so long that the way to the machine does not decide"
    assert lanes * (depth - 1) <= challenge.MOST_PRODUCTS


def test_the_largest_rate_that_a_pool_may_ask_for_fits_the_largest_work() -> None:
    largest = next(m.le for m in Requirements.model_fields["gflops"].metadata if hasattr(m, "le"))
    assert largest * 1e9 * challenge.WORK_SECONDS <= challenge.MOST_PRODUCTS * challenge.FLOP_PER_PRODUCT


def test_reduction_is_exact_for_every_sum_that_occurs() -> None:
    numbers = np.arange(1 << 24)
    values = numbers.astype(np.float32)
    challenge.reduce(values, np.empty_like(values))
    assert np.array_equal(values.astype(np.int64), numbers % PRIME)


@pytest.mark.parametrize("threads", [1, 3])
def test_lanes_are_shared_out_without_changing_the_answer(answer: bytes, threads: int) -> None:
    assert solve(WORK, threads=threads) == answer


def test_work_ends_when_its_time_is_over() -> None:
    asked: list[int] = []

    def go_on() -> bool:
        asked.append(1)
        return len(asked) <= 3

    with pytest.raises(TooSlow, match=r"\d+ of \d+ products were computed in time"):
        solve(ChallengeWork(bytes(32), lanes=4, depth=50), go_on, threads=2)
    assert len(asked) < 12, "every thread stops soon"


def test_torch_gives_the_same_bits(answer: bytes) -> None:
    torch = pytest.importorskip("torch")
    assert challenge.solve_with_torch(WORK, torch, "cpu") == answer
