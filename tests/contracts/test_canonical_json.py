"""Canonical bytes by two encoders: whatever a document says, the fast one and `rfc8785` write the same, or neither writes it."""

import math
import struct

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.crypto.canonical import canonical_json

TEXT = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates too
FLOATS = st.one_of(
    st.floats(),
    st.floats(1e-8, 1e-3),
    st.floats(1e15, 1e23),
    st.integers(-(1 << 60), 1 << 60).map(float),
    st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack(">d", data)[0]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 54), 1 << 54) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def either(encode: object, value: object) -> bytes | None:
    try:
        return encode(value)
    except ValueError:
        return None


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_both_encoders_write_the_same_bytes(value: object) -> None:
    assert either(canonical_json, value) == either(rfc8785.dumps, value)


@settings(max_examples=1000, deadline=None)
@given(FLOATS)
def test_every_number_has_the_form_of_rfc_8785(value: float) -> None:
    assert either(canonical_json, [value]) == either(rfc8785.dumps, [value])


@pytest.mark.parametrize(
    "value",
    [
        0.0, -0.0, 1e-4, math.nextafter(1e-4, 0), 1e-7, 2.0**53, 2.0**53 + 2, 1e16, math.nextafter(1e16, 0), 1e21, 5e-324, 9.43599e15,
        1_800_000_000.25, -3.5, "\x7f\x00\x1f\u2028\U0001f600\"\\/", {"\U0001f600": 1, "\ufffd": 2}, {"b": 1, "a": [{}, []]}, True, [None],
    ],
)  # fmt: skip
def test_known_edges_have_the_form_of_rfc_8785(value: object) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [1 << 53, math.nan, math.inf, "\ud800", {"\ud800": 1}, {1: 2}, {1, 2}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(
        ValueError, match=r"safe integer|not representable|non-UTF-8|must be strings|unsupported|surrogates"
    ):
        canonical_json(value)
