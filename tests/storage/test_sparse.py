"""Sparse deltas: what comes back is what went in, bit for bit; bytes of strangers neither crash the reader nor take its memory."""

import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.storage import sparse
from shoal.storage.sparse import HEADER, BadSparse, decode, encode

SIZES = st.sampled_from([1, 2, 4])
BASE = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8)


def _changed(base: NDArray[np.uint8], places: list[int], item_size: int, seed: int) -> NDArray[np.uint8]:
    """Other bytes in these weights."""
    new, chance = base.copy(), np.random.default_rng(seed)
    for place in places:
        at = place * item_size % max(1, base.size)
        new[at : at + item_size] ^= chance.integers(0, 256, new[at : at + item_size].size, dtype=np.uint8)
    return new


def _few(share: float, count: int = 1 << 16, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Made-up bfloat16 weights, and the same with a share of them moved to a neighbour."""
    chance = np.random.default_rng(seed)
    base = ((chance.standard_normal(count, dtype=np.float32) * 0.02).view(np.uint32) >> 16).astype(np.uint16)
    moved = np.where(chance.random(count) < 0.5, 1, 0xFFFF).astype(np.uint16) * (chance.random(count) < share)
    return (base + moved).astype(np.uint16).view(np.uint8), base.view(np.uint8)


def _made() -> tuple[bytes, NDArray[np.uint8]]:
    new, base = _few(0.01, 4096)
    made = encode(new, base, 2)
    assert made is not None
    return made, base


@settings(max_examples=300)
@given(st.integers(0, 2000), st.lists(st.integers(0, 5000), max_size=60), SIZES, st.integers(0, 9))
def test_any_few_changes_come_back(size: int, places: list[int], item_size: int, seed: int) -> None:
    base = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    new = _changed(base, places, item_size, seed)
    made = encode(new, base, item_size)
    if made is None:
        assert np.count_nonzero(new != base) > size // item_size // sparse.MOST_CHANGED - item_size
    else:
        assert bytes(decode(made, base, item_size)) == new.tobytes()


@pytest.mark.parametrize("share", [0.0, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.12])
def test_every_density_comes_back_near_what_it_must_take(share: float) -> None:
    """At most a fifth more than the entropy of where the changes are and of one bit each, and a hundred bytes."""
    new, base = _few(share, 1 << 20)
    made = encode(new, base, 2)
    assert made is not None
    assert bytes(decode(made, base, 2)) == new.tobytes()
    each = 0.0 if not share else -share * np.log2(share) - (1 - share) * np.log2(1 - share) + share
    assert len(made) < 1.2 * (1 << 20) * each / 8 + 100


def test_weights_that_begin_at_an_odd_byte_take_no_more_room() -> None:
    new, base = _few(0.01)
    even = encode(new, base, 2)
    odd = [np.concatenate([np.array([7], np.uint8), each, np.array([1, 2], np.uint8)]) for each in (new, base)]
    made = encode(odd[0], odd[1], 2)
    assert even is not None
    assert made is not None
    assert len(made) < 1.01 * len(even) + 4
    assert bytes(decode(made, odd[1], 2)) == odd[0].tobytes()


def test_too_many_changes_make_none() -> None:
    new, base = _few(0.2)
    assert encode(new, base, 2) is None


def test_the_last_weight_and_the_bytes_around_come_back() -> None:
    new = BASE.copy()
    new[[0, -1, -2, -3]] ^= 0xFF
    made = encode(new, BASE, 4)
    assert made is not None
    assert bytes(decode(made, BASE, 4)) == new.tobytes()


def _forged(
    gaps: bytes, values: bytes, *, count: int, phase: int = 0, shift: int = 0, low: bytes = b"", more: bytes = b""
) -> bytes:
    frames = [zstandard.compress(gaps), low, zstandard.compress(values)]
    return HEADER.pack(phase, shift, count, *map(len, frames)) + b"".join(frames) + more


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "its header alone has 18"),
        (_forged(b"", b"", count=0, phase=2), "phase 2 and shift 0"),
        (_forged(b"", b"", count=0, shift=33), "phase 0 and shift 33"),
        (_forged(b"", b"", count=257), "changes 257 of 2048 weights: at most one in 8"),
        (_forged(b"", b"", count=0, more=b"x"), "its header says otherwise"),
        (_forged(b"\0", bytes(2), count=1, shift=9, low=b"x"), "its header says otherwise"),
        (_forged(b"\0\0", bytes(2), count=1), "gaps of 2 weights and says that 1 changed"),
        (_forged(b"\0\xff", bytes(2), count=1), "gaps of 1 weights and says that 1 changed"),
        (_forged(b"\xff" * 8 + b"\x08", bytes(2), count=1), "changes weight 2048, the shard has 2048"),
        (_forged(b"\xff", bytes(2), count=1, shift=32, low=bytes(4)), "gaps of 0 weights and says that 1 changed"),
        (_forged(b"\x01", bytes(2), count=1, shift=32, low=bytes(4)), "changes weight 4294967296, the shard has 2048"),
        (_forged(bytes(300), bytes(2), count=1), "says that it unpacks to 300 bytes: 0 to 10 are possible"),
        (_forged(b"\0", bytes(3), count=1), "says that it unpacks to 3 bytes: 2 to 2 are possible"),
    ],
)
def test_what_is_no_delta_of_this_shard_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadSparse, match=why):
        decode(data, BASE, 2)


def test_the_largest_place_that_fits_is_taken() -> None:
    found = bytes(decode(_forged(b"\xff" * 8 + b"\x07", bytes([2, 0]), count=1), BASE, 2))
    assert found[:-2] == BASE.tobytes()[:-2]
    assert int.from_bytes(found[-2:], "little") == (int(BASE[-2:].view(np.uint16)[0]) + 1) % (1 << 16)


@pytest.mark.parametrize("cut", [1, 17, 18, 30, -1])
def test_a_delta_that_was_cut_is_refused(cut: int) -> None:
    made, base = _made()
    with pytest.raises(BadSparse):
        decode(made[:cut], base, 2)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=6))
def test_spoiled_bytes_give_another_shard_or_a_refusal(spoiled: list[tuple[int, int]]) -> None:
    """The digest of the whole is checked later: here only that nothing else happens."""
    made, base = _made()
    data = bytearray(made)
    for at, bits in spoiled:
        data[at % len(data)] ^= bits
    try:
        assert len(decode(bytes(data), base, 2)) == base.size
    except BadSparse:
        pass


def test_bombs_are_refused_with_little_memory() -> None:
    """Frames that unpack to a gigabyte, whether they say so or not, and the largest shift for the most weights."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 30)
    bomb = b"".join(compressor.compress(bytes(1 << 24)) for _ in range(64)) + compressor.flush()
    silent = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 24))
    base = np.zeros(1 << 16, np.uint8)
    count = base.size // 2 // sparse.MOST_CHANGED
    shifted = _forged(bytes(count), bytes(2 * count), count=count, shift=32, low=b"\xff" * (4 * count))
    tracemalloc.start()
    for frame in (bomb, silent):
        with pytest.raises(BadSparse, match="bytes: 0 to "):
            decode(HEADER.pack(0, 0, 1, len(frame), 0, 0) + frame, base, 2)
        gaps = zstandard.compress(b"\0")
        with pytest.raises(BadSparse, match="bytes: 2 to 2 are possible"):
            decode(HEADER.pack(0, 0, 1, len(gaps), 0, len(frame)) + gaps + frame, base, 2)
    with pytest.raises(BadSparse, match="the delta changes weight"):
        decode(shifted, base, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_gaps_whose_sum_is_no_64_bit_number_are_refused() -> None:
    """Of a shard of 64 MiB: with the largest shift they add up to 2 ** 63 and more, which would wrap around to places that look possible."""
    base = np.zeros(1 << 26, np.uint8)
    count = base.size // sparse.MOST_CHANGED
    gaps = b"\xff" * (base.size // sparse.ESCAPE) + b"\xfe" * count
    data = _forged(gaps, bytes(count), count=count, shift=32, low=bytes(4 * count))
    with pytest.raises(BadSparse, match=r"changes weight \d{19}, the shard has 67108864"):
        decode(data, base, 1)


def test_a_shard_in_which_all_changed_is_given_up_before_places_are_listed() -> None:
    base = np.zeros(1 << 20, np.uint8)
    tracemalloc.start()
    assert encode(base + 1, base, 2) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (
        peak < 2.1 * base.size
    )  # `base + 1`, and which bytes differ; the places of all would take four times the shard
