"""Routes of tokens as a model's configuration has them and as files hold them; what no router makes is refused by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import METADATA, rollout
from shoal.contracts.file_size import largest_bytes
from shoal.contracts.rollouts import (
    ROLLOUT_SCHEMA,
    ROUTES_FIELD,
    BadRollouts,
    FileLimits,
    read_batches,
    read_rollouts,
    write_rollouts,
)
from shoal.contracts.routes import NoRoutes, RouteShape, route_shape
from shoal.models.routes import BadRoutes, decode, encode

QWEN = {"model_type": "qwen3_moe", "num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}
GLM = {
    "model_type": "glm4_moe", "num_hidden_layers": 46, "n_routed_experts": 160, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
    "n_group": 8, "topk_group": 4,
}  # fmt: skip
SHAPE = RouteShape(layers=2, choices=2, experts=8)
GROUPED = RouteShape(layers=1, choices=3, experts=8, groups=4, groups_chosen=2)
WIDE = RouteShape(layers=1, choices=2, experts=300)


def test_the_shape_is_read_from_the_configuration() -> None:
    assert route_shape(QWEN) == RouteShape(layers=48, choices=8, experts=128)
    assert route_shape(QWEN).bytes_a_token == 384
    assert route_shape(QWEN | {"mlp_only_layers": [0, 1], "decoder_sparse_step": 2}).layers == 23
    assert route_shape(GLM) == RouteShape(layers=45, choices=8, experts=160, groups=8, groups_chosen=4)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"model_type": "llama"},
            "model type 'llama' has no router that is known here; known: qwen3_moe, deepseek_v3, glm4_moe",
        ),
        (QWEN | {"num_experts_per_tok": 129}, "has 129 of 128 experts a token"),
        (QWEN | {"num_experts": None}, "num_experts is None; allowed: 1 to 65536"),
        (QWEN | {"mlp_only_layers": list(range(48))}, "has experts in no layer"),
        (GLM | {"topk_group": 9}, "in 9 of 8 groups; no router chooses so"),
        (GLM | {"first_k_dense_replace": 46}, "has experts in no layer"),
    ],
)
def test_a_model_without_such_routes_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoRoutes, match=reason):
        route_shape(config)


@given(
    st.integers(0, 2**32), st.sampled_from([SHAPE, GROUPED.model_copy(update={"groups": 1}), WIDE]), st.integers(0, 5)
)
def test_routes_survive_the_round_trip_whatever_their_order(seed: int, shape: RouteShape, tokens: int) -> None:
    chance = np.random.default_rng(seed)
    chosen = chance.random((tokens, shape.layers, shape.experts)).argsort(axis=-1)[..., : shape.choices]
    data = encode(chosen, shape)
    assert len(data) == tokens * shape.bytes_a_token
    assert np.array_equal(decode(data, tokens, shape), np.sort(chosen, axis=-1))
    assert encode(chosen[:1], shape) + encode(chosen[1:], shape) == data


def test_equal_experts_and_others_than_the_model_has_cannot_be_written() -> None:
    for wrong in ([3, 3], [0, 8], [-1, 2]):
        with pytest.raises(BadRoutes, match="are not 2 different ones of 8"):
            encode(np.array([[wrong, [0, 1]]]), SHAPE)
    with pytest.raises(BadRoutes, match=r"routes are \[1, 1, 2\], must be tokens x 2 layers x 2 choices"):
        encode(np.zeros((1, 1, 2), dtype=np.int64), SHAPE)


@given(st.binary(min_size=8, max_size=8))
def test_whatever_bytes_are_read_are_different_experts_of_the_model_or_refused(data: bytes) -> None:
    try:
        found = decode(data, 2, SHAPE)
    except BadRoutes:
        return
    assert (np.diff(found.astype(int), axis=-1) > 0).all()
    assert found.max() < 8


@pytest.mark.parametrize(
    ("data", "tokens", "shape", "reason"),
    [
        (bytes(7), 2, SHAPE, "routes have 7 bytes for 2 sampled tokens, must be 8: 2 layers x 2 experts x 1"),
        (
            bytes([0, 0, 0, 0, 0, 0, 7, 0]),
            2,
            SHAPE,
            "sampled token 1, layer 1 of those with experts: expert 8; the model has 8",
        ),
        (bytes([255] * 4), 1, SHAPE, "expert 511; the model has 8"),
        (bytes([0, 1, 1]), 1, GROUPED, "experts of 3 groups; the model's router chooses 2 of 4"),
    ],
)
def test_bytes_that_no_router_makes_are_refused(data: bytes, tokens: int, shape: RouteShape, reason: str) -> None:
    with pytest.raises(BadRoutes, match=reason):
        decode(data, tokens, shape)


ROW = rollout(routes=None)
ROUTES = bytes(2 * len(ROW.completion_tokens))
LIMITS = FileLimits(1000, 100, 10, route_bytes=2)


def test_a_file_has_the_column_only_where_routes_are_recorded() -> None:
    plain, routed = (write_rollouts([replace(ROW, routes=routes)], METADATA) for routes in (None, ROUTES))
    names = [pq.read_schema(pa.BufferReader(data)).names for data in (plain, routed)]
    assert names == [ROLLOUT_SCHEMA.names, [*ROLLOUT_SCHEMA.names, "routes"]]
    assert [read_rollouts(data)[0][0].routes for data in (plain, routed)] == [None, ROUTES]


def test_rows_with_and_without_routes_do_not_make_a_file() -> None:
    with pytest.raises(BadRollouts, match="row 1: routes are in some rows only; a file has them in all or in none"):
        write_rollouts([replace(ROW, routes=ROUTES), ROW], METADATA)


def test_rows_with_segments_and_routes_do_not_make_a_file() -> None:
    """Nor is one read that somebody else made."""
    both = replace(rollout(), routes=b"\0\1", segment_versions=[rollout().policy_version], segment_starts=[0])
    with pytest.raises(BadRollouts, match="row 0: it has segments and routes; a file has one of them at most"):
        write_rollouts([both], METADATA)
    table = pq.read_table(pa.BufferReader(write_rollouts([replace(both, routes=None)], METADATA)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.append_column(ROUTES_FIELD, pa.array([b"\0\1"])), sink)
    with pytest.raises(BadRollouts, match="columns do not match"):
        read_rollouts(sink.getvalue().to_pybytes())


def test_a_flood_of_routes_is_refused_before_a_row_is_made() -> None:
    flood = write_rollouts([replace(ROW, routes=bytes(201))], METADATA)
    with pytest.raises(BadRollouts, match="a row has 201 bytes of routes; at most 2 a token are allowed"):
        read_batches(flood, LIMITS)
    with pytest.raises(BadRollouts, match="a row has 201 bytes of routes; this run records none"):
        read_batches(flood, replace(LIMITS, route_bytes=0))


def test_the_largest_file_grows_by_the_routes_of_its_completions() -> None:
    assert largest_bytes(3, 100, 50, 384) - largest_bytes(3, 100, 50) == 3 * 50 * 384
