"""Weights in safetensors files, by rows: a rank reads the bytes of its own rows, from a folder or from the store, and no others.

In: files of a checkpoint, as a way to read bytes of each. Out: its tensors by name, not read yet. What is read at once is a piece of some megabytes,
whatever size the model has. Called by `model`, `base_model` and `published`.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.storage import Store

HEADER_BYTES = 1 << 20
"""What is read first of a file: most headers, with one request."""
MAX_HEADER_BYTES = 100_000_000
"""As the library of the format allows."""
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

ReadBytes = Callable[[int, int], bytes | bytearray]
"""Bytes [start, end) of a file, fewer where it ends before."""


class BadModel(ValueError):
    """A checkpoint cannot be used; the message says which file and why."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that lies in a file, from byte `start` on."""

    name: str
    file: str
    dtype: torch.dtype
    shape: torch.Size
    start: int
    read: ReadBytes

    @property
    def row_bytes(self) -> int:
        return int(math.prod(self.shape[1:]) * self.dtype.itemsize)

    def rows(self, first: int, count: int) -> Tensor:
        """Rows [first, first + count), on the host, as they are stored; a tensor without dimensions is one row. Raises BadModel."""
        shape = (count, *self.shape[1:]) if self.shape else ()
        if not math.prod(shape):
            return torch.empty(shape, dtype=self.dtype)
        start = self.start + first * self.row_bytes
        found = self.read(start, start + count * self.row_bytes)
        if len(found) != count * self.row_bytes:
            raise BadModel(
                f"{self.file} ends within {self.name}: {len(found)} of {count * self.row_bytes} bytes at {start}"
            )
        data = found if isinstance(found, bytearray) else bytearray(found)
        return torch.frombuffer(data, dtype=self.dtype).reshape(shape)


StoredWeights = Mapping[str, StoredTensor]
"""The tensors of a checkpoint by name."""


def weights_in_folder(folder: Path) -> StoredWeights:
    """The tensors of the safetensors files of a folder. Raises BadModel, OSError."""

    def reader(path: Path) -> ReadBytes:
        def read(start: int, end: int) -> bytearray:
            data = bytearray(end - start)
            view, got = memoryview(data), 0
            with path.open("rb", buffering=0) as file:
                while got < len(data) and (count := os.preadv(file.fileno(), [view[got:]], start + got)):
                    got += count
            view.release()
            return data[:got] if got < len(data) else data

        return read

    return _together((str(path), path.stat().st_size, reader(path)) for path in sorted(folder.glob("*.safetensors")))


def weights_in_store(store: Store, prefix: str) -> StoredWeights:
    """The tensors of the safetensors objects below `prefix`: a listing, and a request or two a file. Raises BadModel."""

    def reader(key: str) -> ReadBytes:
        return lambda start, end: store.get_range(key, start, end)

    return _together(
        (info.key, info.size, reader(info.key)) for info in store.list(prefix) if info.key.endswith(".safetensors")
    )


def _together(files: Iterable[tuple[str, int, ReadBytes]]) -> StoredWeights:
    found: dict[str, StoredTensor] = {}
    for file, size, read in files:
        try:
            found |= _tensors_of(file, size, read)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, BadModel):
                raise
            raise BadModel(f"{file} is no safetensors file: {error}") from error
    return found


def _tensors_of(file: str, size: int, read: ReadBytes) -> dict[str, StoredTensor]:
    """What the header of a file describes; the whole file must be there."""
    begin = bytes(read(0, min(size, HEADER_BYTES)))
    length = int.from_bytes(begin[:8], "little")
    if len(begin) < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise BadModel(f"{file} is no safetensors file: of its {size} bytes a header would take {length}")
    if 8 + length > len(begin):
        begin += bytes(read(len(begin), 8 + length))
    described = json.loads(begin[8 : 8 + length])
    found = {}
    for name, entry in described.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise BadModel(f"{file}: {name} is of type {entry['dtype']}; allowed: {', '.join(DTYPES)}")
        dtype, shape = DTYPES[entry["dtype"]], torch.Size(entry["shape"])
        start, end = (int(offset) for offset in entry["data_offsets"])
        if end - start != math.prod(shape) * dtype.itemsize or start < 0:
            raise BadModel(f"{file}: {name} of shape {list(shape)} cannot lie in bytes {start} to {end}")
        if 8 + length + end > size:
            raise BadModel(f"{file} is cut short: it has {size} bytes, and {name} would end at {8 + length + end}")
        found[name] = StoredTensor(name, file, dtype, shape, 8 + length + start, read)
    return found
