"""Lossless deltas of a shard: what changed against the same bytes of the base version, small because little changed.

Pure. Two codings, and `encode` takes the smaller one of each shard. `sparse`: which weights changed and by how much, where few did. `delta`, for any
change: XOR with the base's bytes; then byte planes (byte k of every item lies together; so the sign and exponent bytes, which hardly ever change,
make long runs of zero); then one zstd frame. `decode` is the inverse, bit for bit. Called by the publisher (encode) and by whoever assembles a
version (decode).

The bytes to decode may come from anybody: a frame must say a possible size before anything is allocated for it.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from shoal.contracts.weights import DeltaEncoding
from shoal.storage import sparse

LEVEL = 1
"""zstd's level: on simulated bf16 weights level 3 saved 0.01 % more, and level -1 took 30 % more bytes."""
SURELY_SPARSE = 32
"""Where a sparse delta is 32 times smaller than the shard, planes are not tried. They take twice the time, and were larger on every shard of
benchmarks/broadcast/updates.py."""
SHARDS_IN_HAND = 8
"""More than a thread holds that encodes or decodes one shard, measured: 5.1 and 4 of 2-byte weights, 7.4 and 5.3 of 1-byte weights."""
MOST_BYTES = 2 << 30
"""Of all such threads of a process together: 16 threads at shards of 16 MiB."""
MAX_HEADER_BYTES = 100 << 20  # what the safetensors format allows
WIDTHS = {"BF16": 2, "F16": 2, "I16": 2, "U16": 2, "F32": 4, "I32": 4, "U32": 4}

Bytes = bytes | bytearray | memoryview


class BadDelta(ValueError):
    """Bytes that are no delta of this shard."""


def encode(new: Bytes, base: Bytes, item_size: int) -> tuple[DeltaEncoding, bytes] | None:
    """The delta that turns `base` into `new` (equally long), and its coding; None when it would not be smaller than `new` itself."""
    if len(new) != len(base):
        raise ValueError(f"the shard has {len(new)} bytes, the base's has {len(base)}: a delta needs equal sizes")
    few = sparse.encode(np.frombuffer(new, np.uint8), np.frombuffer(base, np.uint8), item_size)
    if few is not None and len(few) * SURELY_SPARSE <= len(new):
        return "sparse", few
    any_change = planes(new, base, item_size)
    found: tuple[DeltaEncoding, bytes] = ("delta", any_change)
    if few is not None and len(few) < len(any_change):
        found = ("sparse", few)
    return found if len(found[1]) < len(new) else None


def decode(encoding: DeltaEncoding, data: Bytes, base: Bytes, item_size: int) -> memoryview:
    """The shard that `encode` was given. Raises `BadDelta` for anything else. Allocates what `sparse.decode` does, or twice the base's size."""
    if encoding == "delta":
        return _from_planes(data, base, item_size)
    try:
        return sparse.decode(data, np.frombuffer(base, np.uint8), item_size)
    except sparse.BadSparse as error:
        raise BadDelta(str(error)) from error


def side_by_side(shard_bytes: int) -> int:
    """How many threads may each encode or decode a shard of this size within `MOST_BYTES`; one at least, however large shards are."""
    return max(1, MOST_BYTES // (SHARDS_IN_HAND * max(1, shard_bytes)))


def planes(new: Bytes, base: Bytes, item_size: int) -> bytes:
    """The delta in byte planes, however large it is."""
    changed = np.bitwise_xor(np.frombuffer(new, np.uint8), np.frombuffer(base, np.uint8))
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(_to_planes(changed, item_size).data)


def _from_planes(data: Bytes, base: Bytes, item_size: int) -> memoryview:
    try:
        claimed = zstandard.get_frame_parameters(data).content_size
        if claimed != len(base):
            raise BadDelta(f"the delta says that it unpacks to {claimed} bytes, the shard has {len(base)}")
        unpacked = zstandard.ZstdDecompressor().decompress(data, read_across_frames=False, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadDelta(f"the delta does not unpack: {error}") from error
    changed = np.frombuffer(unpacked, np.uint8)
    if changed.size != len(base):
        raise BadDelta(f"the delta unpacks to {changed.size} bytes, the shard has {len(base)}")
    return _apply(changed, np.frombuffer(base, np.uint8), item_size)


def item_size(headers: Iterable[bytes]) -> int:
    """Bytes of most weights in the safetensors files of which `headers` are the JSON headers; 1 where that is not known."""
    total: dict[int, int] = {}
    for header in headers:
        try:
            tensors = json.loads(header)
            for name, tensor in tensors.items():
                if name != "__metadata__":
                    start, end = tensor["data_offsets"]
                    width = WIDTHS.get(tensor["dtype"], 1)
                    total[width] = total.get(width, 0) + int(end) - int(start)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return max(total, key=lambda width: total[width], default=1)


def safetensors_headers(folder: Path) -> list[bytes]:
    """The JSON headers of the safetensors files in `folder`; what is not such a file has none."""
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size <= MAX_HEADER_BYTES:
                found.append(file.read(size))
    return found


def _to_planes(data: NDArray[np.uint8], item_size: int) -> NDArray[np.uint8]:
    """Byte k of every item into plane k; bytes after the last whole item stay at the end. Where an item starts does not matter."""
    if item_size == 1:
        return data
    planes, (count, end) = np.empty_like(data), _whole(data.size, item_size)
    for k in range(item_size):
        planes[k * count : (k + 1) * count] = data[k:end:item_size]
    planes[end:] = data[end:]
    return planes


def _apply(planes: NDArray[np.uint8], base: NDArray[np.uint8], item_size: int) -> memoryview:
    """The inverse of `_to_planes`, XORed with the base in the same pass."""
    found, (count, end) = np.empty_like(base), _whole(base.size, item_size)
    for k in range(item_size):
        np.bitwise_xor(planes[k * count : (k + 1) * count], base[k:end:item_size], out=found[k:end:item_size])
    np.bitwise_xor(planes[end:], base[end:], out=found[end:])
    return found.data


def _whole(size: int, item_size: int) -> tuple[int, int]:
    """Number of whole items, and their bytes."""
    count = size // item_size
    return count, count * item_size
