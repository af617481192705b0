"""Routes as bytes: how a rollout file holds which experts each token was given to.

In: experts by token, layer and choice, in any order. Out: bytes, and back. The experts of a token in a layer are a set. They are sorted, and each
is written as the number of experts that are skipped before it. So equal experts cannot be written at all, and small numbers pack well. Stretches
of tokens are laid end to end, and so are their bytes. Written by workers; read by validators, who refuse what no router makes, and by the trainer.
"""

import numpy as np
import numpy.typing as npt

from shoal.contracts.routes import RouteShape

Experts = npt.NDArray[np.integer]


class BadRoutes(ValueError):
    """Bytes that are no routes of this model; the message says what is wrong, and never who wrote them."""


def stored_type(shape: RouteShape) -> np.dtype:
    """The least type that holds the number of an expert."""
    return np.dtype(np.uint8 if shape.width == 1 else "<u2")


def encode(experts: Experts, shape: RouteShape) -> bytes:
    """Bytes of experts [tokens, layers, choices]. Raises BadRoutes for equal ones, others than the model has, and another shape."""
    if experts.shape[1:] != (shape.layers, shape.choices):
        raise BadRoutes(
            f"routes are {list(experts.shape)}, must be tokens x {shape.layers} layers x {shape.choices} choices"
        )
    ordered = np.sort(experts.astype(np.int32), axis=-1)
    skipped = np.diff(ordered, axis=-1, prepend=-1) - 1
    if skipped.size and (int(skipped.min()) < 0 or int(ordered.max()) >= shape.experts):
        raise BadRoutes(f"a token's experts are not {shape.choices} different ones of {shape.experts}")
    return skipped.astype(stored_type(shape)).tobytes()


def decode(data: bytes, tokens: int, shape: RouteShape) -> Experts:
    """Experts [tokens, layers, choices], ascending, in `stored_type`. Raises BadRoutes for bytes that no router of this shape makes."""
    wanted = tokens * shape.bytes_a_token
    if len(data) != wanted:
        raise BadRoutes(
            f"routes have {len(data)} bytes for {tokens} sampled tokens, must be {wanted}:"
            f" {shape.layers} layers x {shape.choices} experts x {shape.width}"
        )
    skipped = np.frombuffer(data, dtype=stored_type(shape)).reshape(tokens, shape.layers, shape.choices)
    experts = np.cumsum(skipped, axis=-1, dtype=np.int32)
    experts += np.arange(shape.choices, dtype=np.int32)
    outside = np.argwhere(experts[..., -1] >= shape.experts)
    if outside.size:
        token, layer = outside[0]
        raise BadRoutes(
            f"sampled token {token}, layer {layer} of those with experts: expert {experts[token, layer, -1]}; the model has {shape.experts}"
        )
    if shape.groups > 1:
        _check_groups(experts, shape)
    return experts.astype(stored_type(shape))


def _check_groups(experts: Experts, shape: RouteShape) -> None:
    group = experts // (shape.experts // shape.groups)  # ascending, as the experts are
    used = 1 + (np.diff(group, axis=-1) > 0).sum(axis=-1)
    wrong = np.argwhere(used > shape.groups_chosen)
    if wrong.size:
        token, layer = wrong[0]
        raise BadRoutes(
            f"sampled token {token}, layer {layer} of those with experts: experts of {used[token, layer]} groups;"
            f" the model's router chooses {shape.groups_chosen} of {shape.groups}"
        )
