"""Routes: the experts that a file says its tokens were given to are those that the model's routers choose (`contracts.routes`).

A router may choose otherwise where two experts are nearly equal, as kernels and batches round. So every row's routes must be such as some router
makes. Of the rows that are looked at none may be further behind our own choice than rounding explains, in one place or on average.

What a lie can gain is small: routes within these bounds are ties, whose experts the trainer would have used for a token that rounds otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.models.routes import BadRoutes, decode
from shoal.validation.facts import Facts, File, Finding, reject
from shoal.validation.prefill import Prefill


@dataclass(frozen=True)
class RouteBounds:
    """How far recorded experts may be behind those that our routers prefer, in standard deviations of a token's scores: anywhere, and on average over
    the pairs of sampled token and layer of a row."""

    largest: float
    mean: float


BOUNDS = {"float32": RouteBounds(0.05, 0.001), "bfloat16": RouteBounds(1.0, 0.03), "float16": RouteBounds(1.0, 0.03)}
"""By the type in which a version is served. Honest rows of tiny models in bfloat16 came to 0.21 and 0.0032, in float32 to 0. Rows with random experts
everywhere came to 2.8 and 1.1 at least; a single pair in them to 0.7 to 2. No large model was at hand."""


def check_shape(file: File, facts: Facts) -> Finding | None:
    """Every row has routes that a router of the model can make, or none has any where the run records none. Cheap, so for all rows."""
    shape = facts.routes
    for number, row in enumerate(file.rows):
        if (row.routes is None) != (shape is None):
            what = (
                "has no routes, which this run records" if shape is not None else "has routes, which nobody asked for"
            )
            return reject("format", f"row {number} {what}")
        if shape is None or row.routes is None:
            continue
        try:
            decode(row.routes, sum(row.completion_mask), shape)
        except BadRoutes as error:
            return reject("bounds", f"row {number}: {error}")
    return None


def check(prefills: Mapping[int, Prefill], dtype: str) -> Finding | None:
    """The rows' routes are those of our own routers, except for ties."""
    bounds = BOUNDS[dtype]
    for number, ours in prefills.items():
        gaps = ours.routes
        if gaps is not None and (gaps.largest > bounds.largest or gaps.mean > bounds.mean):
            return reject(
                "computation",
                f"row {number}: routes are not those of the claimed weights: {gaps.differing} of {gaps.pairs} choices of experts differ,"
                f" by {gaps.largest:.4f} deviations of the scores at most (allowed {bounds.largest}),"
                f" {gaps.mean:.5f} on average (allowed {bounds.mean})",
            )
    return None
