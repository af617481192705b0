"""What islands compute, without a network: encodings, what each contribution counts, the outer step, the shared state, the head."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from island_crowd import KEYS, KNOWN, RUN

from shoal.contracts.islands import IslandContribution
from shoal.contracts.signed import sign
from shoal.islands.contributions import (
    HEADER_BYTES,
    Claim,
    Received,
    inner_products,
    mean_of,
    padded,
    payload_of,
    receive,
    sha256,
    unpadded,
)
from shoal.islands.encoding import BLOCK, BadPayload, ExchangeType, decode, encode, encoded_size
from shoal.islands.judgement import LONGEST, coarse, judge
from shoal.islands.outer import OuterSettings, outer_step, weighted_sum
from shoal.islands.shared import Meta, Parameters, SharedState

every_type = pytest.mark.parametrize("kind", get_args(ExchangeType))
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


# ---- encodings


@every_type
@settings(max_examples=60, deadline=None)
@given(values=st.lists(finite, min_size=1, max_size=600))
def test_what_was_encoded_decodes_to_finite_values_within_the_error_of_its_type(
    kind: ExchangeType, values: list[float]
) -> None:
    vector = torch.tensor(values, dtype=torch.float32)
    payload = encode(vector, kind)
    assert len(payload) == encoded_size(len(vector), kind)
    found = decode(payload, len(vector), kind)
    for start in range(0, len(vector), BLOCK):
        block, again = vector[start : start + BLOCK].double(), found[start : start + BLOCK].double()
        largest = float(block.abs().max())
        error = float((block - again).abs().max())
        allowed = {"float32": 0.0, "float16": 2.0**-11, "int8": 0.5 / 127 * 1.001}[kind] * largest
        assert error <= allowed + 1e-43  # a scale below the normal numbers has few digits of its own


@every_type
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_there_are_decode_to_finite_values(kind: ExchangeType, sign: int) -> None:
    largest = torch.full((3,), sign * torch.finfo(torch.float32).max)
    found = decode(encode(largest, kind), 3, kind)
    assert torch.allclose(found, largest, rtol=2.0**-11)


@every_type
def test_a_part_of_a_payload_decodes_to_that_part_of_the_whole(kind: ExchangeType) -> None:
    vector = torch.randn(5 * BLOCK + 17, generator=torch.Generator().manual_seed(1))
    payload = encode(vector, kind)
    whole = decode(payload, len(vector), kind)
    parts = [decode(payload, len(vector), kind, at, at + 2 * BLOCK) for at in range(0, len(vector), 2 * BLOCK)]
    assert torch.equal(torch.cat(parts), whole)


@every_type
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_decode_to_finite_values_or_are_refused(kind: ExchangeType, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 300))
    length = data.draw(st.sampled_from([encoded_size(count, kind), encoded_size(count, kind) + 1, 0]))
    payload = torch.frombuffer(
        bytearray(data.draw(st.binary(min_size=length, max_size=length)) + b"\0"), dtype=torch.uint8
    )
    try:
        found = decode(payload[:length], count, kind)
    except BadPayload:
        return
    assert length == encoded_size(count, kind)
    assert found.shape == (count,)
    assert bool(torch.isfinite(found).all())


def test_a_vector_that_is_not_finite_is_not_encoded_and_counts_as_nothing() -> None:
    vector = torch.tensor([1.0, math.nan])
    with pytest.raises(ValueError, match="not finite; there is nothing to exchange"):
        encode(vector, "float16")
    payload, counts = payload_of(vector, 2, "float16")
    assert not counts
    assert not payload.any()


def test_int8_takes_a_quarter_of_the_bytes_of_float32() -> None:
    assert encoded_size(1 << 20, "float32") / encoded_size(1 << 20, "int8") > 3.9


# ---- what counts


def gram_of(vectors: list[torch.Tensor]) -> list[list[float]]:
    rows = torch.stack(vectors).double()
    return (rows @ rows.T).tolist()


def honest(count: int, size: int = 4000, noise: float = 1.0) -> list[torch.Tensor]:
    """Vectors that share a direction, each with noise of its own; cosines are 1 / (1 + noise^2)."""
    random = torch.Generator().manual_seed(7)
    common = torch.randn(size, generator=random)
    return [common + noise * torch.randn(size, generator=random) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
def test_honest_islands_all_count_in_full(count: int, noise: float) -> None:
    judged = judge(gram_of(honest(count, noise=noise)))
    assert [one.factor for one in judged.each] == [1.0] * count
    assert judged.coefficients == pytest.approx([1 / count] * count)


POISON = {
    "turned round": lambda g: -g,
    "turned round and a thousand times as long": lambda g: -1000 * g,
    "noise": lambda g: (
        torch.randn(len(g), generator=torch.Generator().manual_seed(9)) * float(g.norm()) / len(g) ** 0.5
    ),
    "long noise": lambda g: 1e6 * torch.randn(len(g), generator=torch.Generator().manual_seed(9)),
    "one huge value": lambda g: torch.cat([torch.full((1,), 1e9), g[1:]]),
    "a thousand times too long": lambda g: 1000 * g,
    "nothing": lambda g: torch.zeros_like(g),
}


@pytest.mark.parametrize("how", POISON)
@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("place", [0, -1])
def test_one_poisoned_island_among_three_or_more_moves_the_mean_by_little(how: str, count: int, place: int) -> None:
    vectors = honest(count)
    kept = [vector for index, vector in enumerate(vectors) if index != place % count]
    vectors[place] = POISON[how](vectors[place])
    coefficients = judge(gram_of(vectors)).coefficients
    mean = sum(c * vector for c, vector in zip(coefficients, vectors, strict=True))
    without = sum(kept) / len(kept)
    assert float((mean - without).norm() / without.norm()) < (1.0 if "too long" in how else 0.35)
    assert float(torch.nn.functional.cosine_similarity(mean, without, dim=0)) > 0.8


def test_two_of_five_that_lie_together_do_not_turn_the_mean() -> None:
    vectors = honest(5)
    vectors[1], vectors[3] = -50 * vectors[0], -50 * vectors[0]
    assert judge(gram_of(vectors)).coefficients[1] == judge(gram_of(vectors)).coefficients[3] == 0


def test_of_two_islands_the_long_one_is_held_to_the_others_length() -> None:
    first, second = honest(2)
    judged = judge(gram_of([first, 1000 * second]))
    assert judged.each[1].factor * 1000 * float(second.norm()) <= 1.01 * LONGEST * float(first.norm())


def test_of_two_islands_one_with_next_to_nothing_does_not_stop_the_other_that_is_as_long_as_last_round() -> None:
    first, second = honest(2)
    judged = judge(gram_of([first, 1e-9 * second]), previous=coarse(float(first.norm())))
    assert judged.each[0].factor == 1.0


def test_where_no_direction_is_shared_all_count_alike() -> None:
    axes = [torch.eye(3)[index] for index in range(3)]
    assert judge(gram_of(axes)).coefficients == pytest.approx([1 / 3] * 3)


def test_where_nobody_learnt_anything_nothing_counts_and_the_reference_stays() -> None:
    judged = judge([[0.0, 0.0], [0.0, 0.0]], previous=2.0)
    assert judged.coefficients == [0.0, 0.0]
    assert judged.reference == 2.0


@pytest.mark.parametrize("gram", [[[1.0, 2.0]], [[math.nan]], [[math.inf]]])
def test_inner_products_that_are_no_matrix_are_refused(gram: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="not square, or not finite"):
        judge(gram)


def test_sums_that_differ_in_their_last_bits_are_judged_alike() -> None:
    gram = gram_of(honest(4))
    other = [[value * (1 + 1e-13) for value in row] for row in gram]
    assert judge(gram) == judge(other)


# ---- the outer step


def test_golden_outer_step() -> None:
    start, first, second = torch.ones(4), torch.full((4,), 0.9), torch.full((4,), 0.8)
    mean = weighted_sum([(0.5, start - first), (0.5, start - second)], 4)
    outer_step(start, torch.zeros(4), mean, OuterSettings())
    assert start.tolist() == pytest.approx([0.8005] * 4, abs=1e-6)


def test_outer_steps_are_those_of_torchs_nesterov_momentum() -> None:
    random = torch.Generator().manual_seed(3)
    weights, momentum = torch.randn(50, generator=random), torch.zeros(50)
    theirs = torch.nn.Parameter(weights.clone())
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(5):
        gradient = torch.randn(50, generator=random)
        theirs.grad = gradient.clone()
        sgd.step()
        outer_step(weights, momentum, gradient, OuterSettings())
    assert torch.allclose(weights, theirs.detach(), atol=1e-5)


# ---- contributions


def contribution(island: str, payload: torch.Tensor, **changes: object) -> tuple[torch.Tensor, torch.Tensor]:
    fields = {
        "run": RUN, "island": island, "meeting": "1-2-3", "round": 4, "rank": 0, "contributes": True,
        "sha256": sha256(payload), "inner_seconds": 1.0, "position": 7,
    } | changes  # fmt: skip
    signer = KEYS[str(changes.get("signer", island))]
    fields.pop("signer", None)
    return padded(sign(IslandContribution.model_validate(fields), signer).to_json(), HEADER_BYTES), payload


def received_of(*pairs: tuple[torch.Tensor, torch.Tensor]) -> list[Received]:
    names = [f"island-{index}" for index in range(len(pairs))]
    claim = Claim(RUN, "1-2-3", 4, 0)
    return receive(names, [header for header, _ in pairs], [payload for _, payload in pairs], claim, KNOWN)


def test_signed_contributions_are_summed_in_the_order_of_the_islands() -> None:
    vectors = honest(3, size=700)
    found = received_of(*(contribution(f"island-{i}", encode(v, "float32")) for i, v in enumerate(vectors)))
    assert all(one.counts for one in found)
    gram, bad = inner_products(found, 700, "float32")
    assert not bad
    assert torch.allclose(gram, torch.tensor(gram_of(vectors), dtype=torch.float64))
    mean = mean_of(found, {"island-0": 0.25, "island-2": 0.75}, 700, "float32")
    assert torch.equal(mean, 0.25 * vectors[0] + 0.75 * vectors[2])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"signer": "island-2"}, "BadSignature"),
        ({"run": "another"}, "not for this round"),
        ({"meeting": "1-2-4"}, "not for this round"),
        ({"round": 3}, "not for this round"),
        ({"rank": 1}, "not for this round"),
        ({"sha256": "0" * 64}, "differ from those that it signed"),
    ],
)
def test_a_contribution_that_is_not_what_it_must_be_does_not_count_and_says_why(
    changes: dict[str, object], why: str
) -> None:
    good = contribution("island-0", encode(torch.ones(5), "int8"))
    found = received_of(good, contribution("island-1", encode(torch.ones(5), "int8"), **changes))
    assert found[0].counts
    assert not found[1].counts
    assert why in str(found[1].problem)


@settings(max_examples=100, deadline=None)
@given(noise=st.binary(max_size=HEADER_BYTES))
def test_any_bytes_for_a_header_are_left_out(noise: bytes) -> None:
    good = contribution("island-0", encode(torch.ones(5), "int8"))
    found = received_of(good, (padded(noise, HEADER_BYTES), good[1]))
    assert found[0].counts
    assert found[1].problem is not None


def test_signed_bytes_that_do_not_decode_are_left_out_and_the_others_go_on() -> None:
    broken = encode(torch.ones(300), "float16")
    broken[0:4] = torch.tensor([0, 0, 128, 255], dtype=torch.uint8)  # a scale of minus infinity
    found = received_of(contribution("island-0", encode(torch.ones(300), "float16")), contribution("island-1", broken))
    gram, bad = inner_products(found, 300, "float16")
    assert bad == {"island-1": "a scale is negative or not finite"}
    assert float(gram[0, 0]) == 300
    assert float(gram[1, 1]) == 0


def test_a_header_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="there is room for 10"):
        padded(b"x" * 11, 10)
    assert unpadded(padded(b"{}", 10)) == b"{}"


# ---- the shared state


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_description_that_is_written_like_this_or_refused(data: bytes) -> None:
    try:
        meta = Meta.from_bytes(data)
    except ValueError:
        return
    assert meta.to_bytes() == data


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        '{"round": true}',
        '{"inner_seconds": null, "position": 0, "reference": "x", "round": 0}',
        "null",
        "{}",
    ],
)
def test_a_description_with_other_fields_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no description of a shared state"):
        Meta.from_bytes(text.encode())


def test_a_description_comes_back() -> None:
    meta = Meta(round=3, reference=0.5, inner_seconds=1.25, position=40)
    assert Meta.from_bytes(meta.to_bytes()) == meta


def test_the_digest_changes_with_every_bit_of_the_state() -> None:
    state = SharedState(Meta(), torch.zeros(4), torch.zeros(4))
    digests = {state.digest()}
    state.weights[2] = -0.0
    digests.add(state.digest())
    state.momentum[0] = 1e-45
    digests.add(state.digest())
    state.meta = Meta(round=1)
    digests.add(state.digest())
    assert len(digests) == 4


def test_parameters_come_back_from_their_vector_in_their_own_types() -> None:
    named = {"b": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "a": torch.tensor([7.0, 8.0])}
    parameters = Parameters(named)
    vector = parameters.read()
    assert vector.tolist() == [7, 8, 0, 1, 2, 3, 4, 5]
    parameters.write(vector + 1)
    assert named["b"].tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ValueError, match="no parameters to exchange"):
        Parameters({})
