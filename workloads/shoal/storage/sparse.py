"""Sparse deltas of a shard: which weights changed, and by how much. Small where few did, as between two steps of RL at small learning rates.

Pure. Weights are taken as integers of their width. Of each changed one there is the gap since the one before, and the difference of the integers:
nearly always +1 or -1, since a small update moves a rounded weight to its neighbour. After PULSE (arXiv:2602.03839).
Called by `delta`, which chooses; the bytes to decode may come from anybody.

Bytes, little-endian: a header (`HEADER`); the new bytes before the first and after the last whole weight; a zstd frame of the gaps; their lowest
`shift` bits, packed; a zstd frame of the differences, zigzag, in byte planes. What is left of a gap is a run of bytes 255 and one smaller byte,
which are added up. So indices ascend whatever the bytes are, and only the last one can be too large.
"""

import struct

import numpy as np
import zstandard
from numpy.typing import NDArray

HEADER = struct.Struct("<BBIIII")
"""Phase, shift, changed weights, bytes of the frame of gaps, of the packed bits, of the frame of differences."""
MOST_CHANGED = 8
"""One weight in eight may have changed, no more. It also bounds what a reader allocates."""
MOST_WEIGHTS = 0xFFFFFFFF
"""Of a shard. With `MOST_CHANGED` and `LARGEST_SHIFT` it bounds what the packed bits of all gaps add up to: less than 2 ** 61."""
LEVEL = 1
ESCAPE = 255
MEAN_LEFT = 32
"""Of a gap without its packed bits: those are as good as random, so packing them costs nothing, and what is left fits a byte."""
LARGEST_SHIFT = 32
AT_ONCE = 1 << 14
"""Weights whose bits are spread out at a time, eight at least: 32 bytes each."""
ITEMS = {1: (np.uint8, np.int8), 2: (np.uint16, np.int16), 4: (np.uint32, np.int32)}

Bytes = bytes | bytearray | memoryview


class BadSparse(ValueError):
    """Bytes that are no sparse delta of this shard."""


def encode(new: NDArray[np.uint8], base: NDArray[np.uint8], item_size: int) -> bytes | None:
    """The delta that turns `base` into `new` (uint8, equally long), or None when too many weights changed.

    Allocates three times the shard's size at most, and five and a half where a weight is one byte.
    """
    phase = _phase(new, base, item_size)
    after, before = _items(new, phase, item_size), _items(base, phase, item_size)
    differ = after != before
    if np.count_nonzero(differ) > after.size // MOST_CHANGED or after.size > MOST_WEIGHTS:
        return None
    places = np.flatnonzero(differ)
    del differ
    signed = (after[places] - before[places]).view(ITEMS[item_size][1])
    zigzag = ((signed << 1) ^ (signed >> (8 * item_size - 1))).view(ITEMS[item_size][0])
    planes = np.ascontiguousarray(zigzag.view(np.uint8).reshape(-1, item_size).T)
    gaps = np.diff(places, prepend=-1)
    gaps -= 1
    del places
    shift = _shift(gaps)
    pack = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress
    frames = pack(_escaped(gaps >> shift).tobytes()), _low_bits(gaps, shift), pack(planes.tobytes())
    header = HEADER.pack(phase, shift, gaps.size, *map(len, frames))
    return b"".join((header, *_edges(new, phase, item_size), *frames))


def decode(data: Bytes, base: NDArray[np.uint8], item_size: int) -> memoryview:
    """The shard that `encode` was given. Raises `BadSparse` for anything else.

    Allocates 2.2 times the shard's size at most, and 4.3 where a weight is one byte.
    """
    data = memoryview(data)
    if len(data) < HEADER.size:
        raise BadSparse(f"the delta has {len(data)} bytes, its header alone has {HEADER.size}")
    phase, shift, count, *sizes = HEADER.unpack_from(data)
    if phase >= item_size or shift > LARGEST_SHIFT:
        raise BadSparse(f"the delta has phase {phase} and shift {shift}: at most {item_size - 1} and {LARGEST_SHIFT}")
    items = _items(base, phase, item_size)
    if items.size > MOST_WEIGHTS:
        raise BadSparse(f"the shard has {items.size} weights: at most {MOST_WEIGHTS} can have a sparse delta")
    if count > items.size // MOST_CHANGED:
        raise BadSparse(f"the delta changes {count} of {items.size} weights: at most one in {MOST_CHANGED} may change")
    edges = sum(map(len, _edges(base, phase, item_size)))
    if len(data) != HEADER.size + edges + sum(sizes) or sizes[1] != -(-count * shift // 8):
        raise BadSparse(f"the delta has {len(data)} bytes, its header says otherwise")
    at = HEADER.size + edges
    gaps = _frame(data[at : at + sizes[0]], 0, count + items.size // ESCAPE + 1)
    low = np.frombuffer(data[at + sizes[0] : at + sizes[0] + sizes[1]], np.uint8)
    planes = _frame(data[at + sizes[0] + sizes[1] :], count * item_size, count * item_size)
    places = _places(gaps, low, shift, count, items.size)
    unsigned, kind = ITEMS[item_size]
    zigzag = np.ascontiguousarray(planes.reshape(item_size, -1).T).view(unsigned).reshape(-1)
    signed = (zigzag >> 1).view(kind) ^ -(zigzag & 1).view(kind)
    found = base.copy()
    changed = _items(found, phase, item_size)
    changed[places] += signed.view(unsigned)
    head = data[HEADER.size : HEADER.size + min(phase, base.size)]
    found[: len(head)] = np.frombuffer(head, np.uint8)
    tail = data[HEADER.size + len(head) : at]
    found[base.size - len(tail) :] = np.frombuffer(tail, np.uint8)
    return found.data


def _phase(new: NDArray[np.uint8], base: NDArray[np.uint8], item_size: int) -> int:
    """Where in the shard the first whole weight begins: at the byte that changes most often, its lowest. A wrong guess costs bytes only."""
    if item_size == 1:
        return 0
    sample = new.size // item_size * item_size
    differ = (new[:sample] != base[:sample]).reshape(-1, item_size)
    return int(np.argmax([np.count_nonzero(differ[:, k]) for k in range(item_size)]))


def _items(data: NDArray[np.uint8], phase: int, item_size: int) -> NDArray[np.unsignedinteger]:
    """The whole weights, as a view."""
    whole = max(0, data.size - phase) // item_size * item_size
    return data[phase : phase + whole].view(ITEMS[item_size][0])


def _edges(data: NDArray[np.uint8], phase: int, item_size: int) -> tuple[bytes, bytes]:
    """The bytes before the first and after the last whole weight."""
    whole = max(0, data.size - phase) // item_size * item_size
    return data[:phase].tobytes(), data[phase + whole :].tobytes()


def _shift(gaps: NDArray[np.int64]) -> int:
    mean = int(gaps.mean()) if gaps.size else 0
    return min(LARGEST_SHIFT, max(0, (mean // MEAN_LEFT).bit_length()))


def _escaped(left: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Each number as its count of 255s and then the rest."""
    ends = left // ESCAPE
    ends += 1
    np.cumsum(ends, out=ends)
    found = np.full(int(ends[-1]) if ends.size else 0, ESCAPE, np.uint8)
    found[ends - 1] = left % ESCAPE
    return found


def _low_bits(gaps: NDArray[np.int64], shift: int) -> bytes:
    """The lowest `shift` bits of each, highest first, without room between."""
    if not shift:
        return b""
    low = (gaps & ((1 << shift) - 1)).astype(">u4")
    return b"".join(
        np.packbits(np.unpackbits(part.view(np.uint8).reshape(-1, 4), axis=1)[:, 32 - shift :]).tobytes()
        for part in (low[at : at + AT_ONCE] for at in range(0, low.size, AT_ONCE))
    )


def _places(
    escaped: NDArray[np.uint8], low: NDArray[np.uint8], shift: int, count: int, weights: int
) -> NDArray[np.int64]:
    """The indices of the `count` changed weights, ascending, each less than `weights`."""
    ends = np.flatnonzero(escaped != ESCAPE)
    if ends.size != count or (escaped.size and escaped[-1] == ESCAPE):
        raise BadSparse(f"the delta has gaps of {ends.size} weights and says that {count} changed")
    # Before they are shifted, and not in 64 bits: sums that wrap around would look like places of this shard.
    least = (int(escaped.sum(dtype=np.int64)) << shift) + count - 1
    if least >= weights:
        raise BadSparse(f"the delta changes weight {least}, the shard has {weights}")
    gaps = np.diff(np.cumsum(escaped, dtype=np.int64)[ends], prepend=0) << shift
    for at in range(0, count if shift else 0, AT_ONCE):
        part = gaps[at : at + AT_ONCE]
        wide = np.zeros((part.size, 32), np.uint8)
        bits = np.unpackbits(low[at * shift // 8 :][: -(-part.size * shift // 8)], count=part.size * shift)
        wide[:, 32 - shift :] = bits.reshape(-1, shift)
        part += np.packbits(wide, axis=1).view(">u4").reshape(-1)
    places = np.cumsum(gaps + 1) - 1
    if count and places[-1] >= weights:
        raise BadSparse(f"the delta changes weight {places[-1]}, the shard has {weights}")
    return places


def _frame(data: memoryview, least: int, most: int) -> NDArray[np.uint8]:
    """What a zstd frame unpacks to, which it must say beforehand."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if not least <= size <= most:
            raise BadSparse(
                f"a frame of the delta says that it unpacks to {size} bytes: {least} to {most} are possible"
            )
        found = zstandard.ZstdDecompressor().decompress(data, read_across_frames=False, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadSparse(f"the delta does not unpack: {error}") from error
    if len(found) != size:
        raise BadSparse(f"a frame of the delta unpacks to {len(found)} bytes and says {size}")
    return np.frombuffer(found, np.uint8)
