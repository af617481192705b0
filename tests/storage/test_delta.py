"""The delta of a shard: what comes back is what went in, bit for bit; what is no delta is refused before memory is given to it."""

import json
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.weights import DeltaEncoding
from shoal.storage import delta
from shoal.storage.delta import BadDelta, decode, encode, planes

SIZES = st.sampled_from([1, 2, 4])


def _weights(count: int, seed: int = 0) -> bytes:
    """Made-up bf16 weights: the upper halves of fp32 normal values."""
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32) * 0.02
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def _step(weights: bytes, share: float = 0.05) -> bytes:
    """A share of the values moved by one unit in the last place."""
    values = np.frombuffer(weights, np.uint16).copy()
    values[np.random.default_rng(1).random(values.size) < share] ^= 1
    return values.tobytes()


@pytest.mark.parametrize(
    ("shard", "threads"), [(0, 268435456), (16 << 20, 16), (64 << 20, 4), (1 << 30, 1), (16 << 30, 1)]
)
def test_threads_for_large_shards_are_few_but_never_none(shard: int, threads: int) -> None:
    assert delta.side_by_side(shard) == threads


@pytest.mark.parametrize("item_size", [1, 2, 4])
@pytest.mark.parametrize("share", [0.12, 1.0])
def test_a_thread_holds_no_more_than_is_counted_for_it(share: float, item_size: int) -> None:
    """The shard and its base included; few changes and many."""
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[item_size]
    chance = np.random.default_rng(0)
    base = np.frombuffer(chance.bytes(1 << 20), kind)
    new = (base + (chance.random(base.size) < share)).astype(kind).tobytes()
    old = base.tobytes()
    tracemalloc.start()
    made = encode(new, old, item_size)
    assert made is not None
    encoding = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    decode(*made, old, item_size)
    decoding = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 2 * len(old) + encoding < delta.SHARDS_IN_HAND * len(old)
    assert len(old) + decoding < delta.SHARDS_IN_HAND * len(old)


@given(st.binary(max_size=200), st.integers(0, 200), SIZES)
def test_any_shard_of_compressible_change_comes_back(base: bytes, changed_at: int, item_size: int) -> None:
    new = bytearray(base * 20)
    if new:
        new[changed_at % len(new)] ^= 0x5A
    made = encode(bytes(new), base * 20, item_size)
    if made is not None:
        assert len(made[1]) < len(new)
        assert bytes(decode(*made, base * 20, item_size)) == bytes(new)
    in_planes = planes(bytes(new), base * 20, item_size)
    assert bytes(decode("delta", in_planes, base * 20, item_size)) == bytes(new)


@pytest.mark.parametrize("item_size", [1, 2, 4])
@pytest.mark.parametrize("odd", [0, 1, 3])
def test_bytes_after_the_last_whole_item_are_kept(item_size: int, odd: int) -> None:
    base = _weights(500) + b"x" * odd
    new = _step(base[:1000]) + b"y" * odd
    made = encode(new, base, item_size)
    assert made is not None
    assert bytes(decode(*made, base, item_size)) == new


def test_a_twentieth_of_bf16_values_changed_makes_it_ten_times_smaller_in_planes_and_twenty_sparse() -> None:
    base = _weights(1 << 18)
    new = _step(base)
    assert len(planes(new, base, 2)) < min(len(new) / 10, len(planes(new, base, 1)))
    made = encode(new, base, 2)
    assert made is not None
    assert made[0] == "sparse"
    assert len(made[1]) < len(new) / 20


def test_many_changes_make_planes() -> None:
    base = _weights(1 << 12)
    new = _step(base, share=0.5)
    made = encode(new, base, 2)
    assert made is not None
    assert made == ("delta", planes(new, base, 2))
    assert bytes(decode(*made, base, 2)) == new


def test_what_does_not_get_smaller_is_no_delta() -> None:
    assert encode(np.random.default_rng(1).bytes(5000), np.random.default_rng(2).bytes(5000), 2) is None
    assert encode(b"", b"", 2) is None


def test_sizes_that_differ_are_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="the shard has 3 bytes, the base's has 2: a delta needs equal sizes"):
        encode(b"abc", b"ab", 1)


def test_a_bomb_is_refused_with_little_memory() -> None:
    """A megabyte that would unpack to a gigabyte, honest about it or not."""
    base = bytes(1 << 16)
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 30)
    honest = b"".join(compressor.compress(bytes(1 << 24)) for _ in range(64)) + compressor.flush()
    silent = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 24))
    tracemalloc.start()
    with pytest.raises(BadDelta, match="says that it unpacks to 1073741824 bytes, the shard has 65536"):
        decode("delta", honest, base, 2)
    with pytest.raises(BadDelta, match="the delta says that it unpacks to"):
        decode("delta", silent, base, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_frame_that_says_less_than_it_holds_is_refused() -> None:
    base = bytes(1000)
    larger = bytearray(zstandard.ZstdCompressor().compress(bytes(2000)))
    at = bytes(larger).index((2000 - 256).to_bytes(2, "little"))  # two-byte sizes are written less 256
    larger[at : at + 2] = (1000 - 256).to_bytes(2, "little")
    with pytest.raises(BadDelta):
        decode("delta", bytes(larger), base, 2)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"rubbish, not a frame at all",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"more",
        lambda data: data + data,
        lambda data: data[:6] + bytes(20) + data[26:],
    ],
    ids=["empty", "rubbish", "half", "short", "longer", "twice", "zeroed"],
)
def test_what_is_no_frame_of_this_shard_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    base = _weights(1000)
    with pytest.raises(BadDelta):
        decode("delta", spoil(planes(_step(base), base, 2)), base, 2)


def test_a_delta_of_another_size_is_refused() -> None:
    made = planes(_step(_weights(1000)), _weights(1000), 2)
    with pytest.raises(BadDelta, match="the delta says that it unpacks to 2000 bytes, the shard has 1998"):
        decode("delta", made, _weights(999), 2)


@given(st.sampled_from(["delta", "sparse"]), st.binary(max_size=300), SIZES)
def test_no_bytes_crash_the_reader(encoding: DeltaEncoding, data: bytes, item_size: int) -> None:
    try:
        assert len(decode(encoding, data, bytes(64), item_size)) == 64
    except BadDelta:
        pass


def _header(**tensors: tuple[str, int]) -> bytes:
    return json.dumps(
        {
            "__metadata__": {"format": "pt"},
            **{
                name: {"dtype": dtype, "shape": [size], "data_offsets": [0, size]}
                for name, (dtype, size) in tensors.items()
            },
        }
    ).encode()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([_header(a=("BF16", 1000), b=("F32", 10))], 2),
        ([_header(a=("BF16", 100)), _header(b=("F32", 1000))], 4),
        ([_header(a=("F8_E4M3", 1000))], 1),
        ([], 1),
        ([b"no json"], 1),
        ([b"[]"], 1),
        ([b'{"a": {"dtype": "F32"}}'], 1),
    ],
)
def test_the_width_of_most_weights_counts(headers: list[bytes], expected: int) -> None:
    assert delta.item_size(headers) == expected
