"""A rank's part of a training state in the store: its tensors one after the other in `rank-00007.tensors`, and in `rank-00007.json` what lies where.

The index has a SHA-256 for each block of 2 MiB. So whoever reads some rows checks them by the blocks that they lie in, and reads no other byte. The
seal has the digest of the index. A part is hashed while it is uploaded, once, straight from the host copy: nothing passes a disk.

At 393 GB on 16 ranks each writes and reads 24.6 GB, in 5,860 requests of 4 MiB. It reads 16 indexes of 1.1 MB. On another number of ranks a part
of a tensor begins and ends within blocks: of parts of 10 MB that costs a fifth more. Readers hold 16 pieces of 4 MiB. Called by `state`.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from shoal.contracts.base import Contract, RunName, Sha256Hex
from shoal.contracts.weights import VersionNumber
from shoal.storage import NotFound, Store
from shoal.storage.parallel import in_parallel
from shoal.training.host_copy import local, own_rows

BLOCK_BYTES = 2 << 20
MAX_BLOCK_BYTES = 64 << 20
"""Of a file that another release wrote: readers hold 16 requests of `REQUEST_BLOCKS`."""
REQUEST_BLOCKS = 2
"""At most this many blocks are asked for at once."""
READ_AGAIN = 1
"""Bytes whose digest is wrong are fetched once more: the transfer may have been at fault. The second time it is the object."""
INDEX, TENSORS = ".json", ".tensors"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64)
}

Bytes = npt.NDArray[np.uint8]


class DamagedPart(ValueError):
    """A part of a state is not what the seal says; the message says which object and where."""


Size = Annotated[int, Field(ge=0, le=1 << 62)]
"""As torch counts elements and bytes."""


class StateRows(Contract):
    """Rows [first, first + rows) of a tensor, in the file of tensors from byte `start` on. One without dimensions is one row."""

    key: str
    dtype: str
    shape: list[Size] = Field(max_length=8, description="of the whole tensor")
    first: Size
    rows: Size = Field(ge=1)
    start: Size

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * int(DTYPES[self.dtype].itemsize)

    @property
    def size(self) -> int:
        return self.rows * self.row_bytes


class StateIndex(Contract):
    """`rank-00007.json`: what the file of tensors beside it holds, with a digest for each of its blocks."""

    run: RunName
    version: VersionNumber
    rank: int = Field(ge=0)
    size: Size = Field(description="bytes of the file of tensors")
    block_bytes: int = Field(ge=1, le=MAX_BLOCK_BYTES)
    blocks: list[Sha256Hex]
    tensors: list[StateRows]

    @model_validator(mode="after")
    def _fits(self) -> "StateIndex":
        if len(self.blocks) != -(-self.size // self.block_bytes):
            raise ValueError(f"{len(self.blocks)} digests for {self.size} bytes in blocks of {self.block_bytes}")
        end = 0
        for one in sorted(self.tensors, key=lambda each: each.start):
            if one.dtype not in DTYPES:
                raise ValueError(f"{one.key} is of type {one.dtype}; allowed: {', '.join(DTYPES)}")
            if one.first + one.rows > (one.shape[0] if one.shape else 1):
                raise ValueError(f"{one.key} of shape {one.shape} has no {one.rows} rows from row {one.first} on")
            if one.start < end:
                raise ValueError(f"{one.key} begins at byte {one.start}, within another tensor that ends at {end}")
            end = one.start + one.size
            if end > self.size:
                raise ValueError(f"{one.key} ends behind the file's {self.size} bytes")
        return self


class _Wanted(NamedTuple):
    """Bytes [start, start + len(place)) of a file, and where they go."""

    start: int
    place: Bytes


class _BlocksAsked(NamedTuple):
    """Blocks [first, end) of a rank's file, and what is wanted of them."""

    part: StateIndex
    first: int
    end: int
    wanted: Sequence[_Wanted]


def part_name(rank: int) -> str:
    return f"rank-{rank:05d}"


def write_part(
    store: Store, prefix: str, tensors: Mapping[str, Tensor], run: str, version: int, rank: int
) -> dict[str, str]:
    """Upload this rank's rows of all tensors, then their index; returns the digest of the index by its name, for the seal."""
    described, places, size = [], [], 0
    for key, tensor in sorted(tensors.items()):
        first, rows = own_rows(tensor)
        place = _bytes(tensor)
        if not len(place):
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        described.append(StateRows(key=key, dtype=dtype, shape=list(tensor.shape), first=first, rows=rows, start=size))
        places.append(place)
        size += len(place)
    digests: list[str] = []
    name = part_name(rank)
    store.put_chunks(prefix + name + TENSORS, lambda: _blocks(places, digests), size)
    index = StateIndex(
        run=run, version=version, rank=rank, size=size, block_bytes=BLOCK_BYTES, blocks=digests, tensors=described
    ).to_json()
    store.put(prefix + name + INDEX, index)
    return {name + INDEX: hashlib.sha256(index).hexdigest()}


def _blocks(places: Sequence[Bytes], digests: list[str]) -> Iterator[bytearray]:
    """The bytes of all places in blocks; their digests are put into the list as they leave."""
    digests.clear()
    block = bytearray()
    for place in places:
        left = memoryview(place.data)
        while left:
            taken = left[: BLOCK_BYTES - len(block)]
            block += taken
            left = left[len(taken) :]
            if len(block) == BLOCK_BYTES:
                digests.append(hashlib.sha256(block).hexdigest())
                yield block
                block = bytearray()
    if block:
        digests.append(hashlib.sha256(block).hexdigest())
        yield block


class StateParts:
    """The parts of one state, of which some rows are read. Its indexes are read and checked when it is made: raises DamagedPart."""

    def __init__(self, store: Store, prefix: str, files: Mapping[str, str], run: str, version: int) -> None:
        self._store = store
        self._prefix = prefix
        there = {info.key.removeprefix(prefix): info.size for info in store.list(prefix)}
        self._indexes = in_parallel(lambda name: self._index(name, files[name], run, version, there), sorted(files))
        self._rows: dict[str, list[tuple[StateIndex, StateRows]]] = {}
        for index in self._indexes:
            for rows in index.tensors:
                self._rows.setdefault(rows.key, []).append((index, rows))

    def shapes(self) -> dict[str, torch.Size]:
        """The shape of every tensor, as a whole."""
        return {key: torch.Size(found[0][1].shape) for key, found in self._rows.items()}

    def read(self, tensors: Mapping[str, Tensor], rank: int, beat: Callable[[], None]) -> None:
        """Fill this rank's rows of `tensors`, on the host. Those of a tensor that every rank kept whole come from `rank`, if it was there.

        `beat` is called for each request. Raises DamagedPart.
        """
        wanted: dict[int, list[_Wanted]] = {}
        for key, tensor in tensors.items():
            for index, start, place in self._found(key, tensor, rank):
                wanted.setdefault(index.rank, []).append(_Wanted(start, place))
        by_rank = {index.rank: index for index in self._indexes}

        def fill(request: _BlocksAsked) -> None:
            self._fill(request)
            beat()

        in_parallel(fill, [each for rank, list_ in wanted.items() for each in _requests(by_rank[rank], list_)])

    def _found(self, key: str, tensor: Tensor, rank: int) -> Iterator[tuple[StateIndex, int, Bytes]]:
        """Where the rows of a tensor lie that this rank has: file, first byte, and their place here."""
        first, count = own_rows(tensor)
        place, at = _bytes(tensor), first
        sources = sorted(self._rows.get(key, []), key=lambda each: each[0].rank != rank)
        while at < first + count:
            found = next((each for each in sources if 0 <= at - each[1].first < each[1].rows), None)
            if found is None:
                raise DamagedPart(f"{self._prefix}: no file has row {at} of {key}")
            index, rows = found
            if DTYPES[rows.dtype] != tensor.dtype or tensor.shape != torch.Size(rows.shape):
                raise DamagedPart(
                    f"{self._prefix}{part_name(index.rank)}{INDEX}: {key} is {rows.dtype} of shape {rows.shape},"
                    f" expected {tensor.dtype} of {list(tensor.shape)}"
                )
            end, width = min(first + count, rows.first + rows.rows), rows.row_bytes
            yield index, rows.start + (at - rows.first) * width, place[(at - first) * width : (end - first) * width]
            at = end

    def _fill(self, request: _BlocksAsked) -> None:
        data = self._read(request.part, request.first, request.end)
        begin = request.first * request.part.block_bytes
        for start, place in request.wanted:
            low, high = max(start, begin), min(start + len(place), begin + len(data))
            if low < high:
                place[low - start : high - start] = data[low - begin : high - begin]

    def _read(self, index: StateIndex, first: int, end: int) -> Bytes:
        """Blocks [first, end), checked."""
        key = f"{self._prefix}{part_name(index.rank)}{TENSORS}"
        block = index.block_bytes
        start, stop = first * block, min(end * block, index.size)
        for attempt in range(1 + READ_AGAIN):
            try:
                data = self._store.get_range(key, start, stop)
            except (NotFound, ValueError) as error:
                raise DamagedPart(
                    f"{self._prefix}{part_name(index.rank)}{INDEX} describes bytes that are gone: {error}"
                ) from None
            wrong = next(
                (
                    number
                    for number in range(first, end)
                    if hashlib.sha256(
                        memoryview(data)[number * block - start : (number + 1) * block - start]
                    ).hexdigest()
                    != index.blocks[number]
                ),
                None,
            )
            if wrong is None:
                return np.frombuffer(data, dtype=np.uint8)
            if attempt == READ_AGAIN:
                raise DamagedPart(
                    f"{key}: bytes {wrong * block} to {min((wrong + 1) * block, index.size)} do not have the SHA-256"
                    f" that {part_name(index.rank)}{INDEX} has for them"
                )
        raise AssertionError("unreachable")

    def _index(self, name: str, digest: str, run: str, version: int, there: Mapping[str, int]) -> StateIndex:
        """One index, checked against the seal, and its file of tensors, whose size must be right."""
        for attempt in range(1 + READ_AGAIN):
            try:
                data = self._store.get(self._prefix + name)
            except NotFound:
                raise DamagedPart(f"the seal of {self._prefix} has {name}, but there is no such object") from None
            if (found := hashlib.sha256(data).hexdigest()) == digest:
                break
            if attempt == READ_AGAIN:
                raise DamagedPart(f"{self._prefix}{name} has SHA-256 {found}, but the seal has {digest}")
        try:
            index = StateIndex.from_json(data)
        except ValidationError as error:
            raise DamagedPart(f"{self._prefix}{name}: {error}") from error
        if (index.run, index.version, part_name(index.rank) + INDEX) != (run, version, name):
            raise DamagedPart(
                f"{self._prefix}{name} is of rank {index.rank}, run {index.run!r}, version {index.version}"
            )
        tensors = part_name(index.rank) + TENSORS
        if tensors not in there:
            raise DamagedPart(f"{self._prefix}{name} describes {tensors}, but there is no such object")
        if there[tensors] != index.size:
            raise DamagedPart(f"{self._prefix}{tensors} has {there[tensors]} bytes, but {name} says {index.size}")
        return index


def _requests(index: StateIndex, wanted: Sequence[_Wanted]) -> Iterator[_BlocksAsked]:
    """What is wanted of one file, in requests of blocks in a row, each block once."""
    ordered = sorted(wanted, key=lambda each: each.start)
    needed = sorted(
        {
            number
            for start, place in ordered
            for number in range(start // index.block_bytes, -(-(start + len(place)) // index.block_bytes))
        }
    )
    starts = [each.start for each in ordered]
    at = 0
    while at < len(needed):
        end = at + 1
        while end < len(needed) and end - at < REQUEST_BLOCKS and needed[end] == needed[end - 1] + 1:
            end += 1
        first, last = needed[at], needed[end - 1] + 1
        # Ranges do not overlap: the one before the first that begins in these blocks may reach into them.
        low = max(0, bisect_right(starts, first * index.block_bytes) - 1)
        high = bisect_right(starts, last * index.block_bytes - 1)
        yield _BlocksAsked(index, first, last, ordered[low:high])
        at = end


def _bytes(tensor: Tensor) -> Bytes:
    """This rank's part of a tensor of the host as bytes, in place."""
    part = local(tensor)
    if not part.is_contiguous():
        raise ValueError("a host copy must be contiguous")
    found: Bytes = part.reshape(-1).view(torch.uint8).numpy()
    return found
