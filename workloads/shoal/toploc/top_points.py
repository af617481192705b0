"""Which values of a chunk a proof is made of: the 128 largest by size, with their bfloat16 bits.

In: last hidden states of chunks, and the dimensions that the model's proof profile masks. Out: flat indices and bit patterns. Prover and verifier
must choose the same values, so ties go to the lowest index. Masked dimensions, whose values hardly vary and could be written down without a
forward pass, come last: they are taken only where a chunk has fewer than 128 others. Called by `toploc`; `proofs.reduction` does the same on an
accelerator.

Sizes are compared as integers: the bits of |x| order as |x| does. The lowest number of all in front of them puts a masked value below all
others, in the same order.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

TOP_K = 128  # values of a proof (TOPLOC, section 5)
MASKED = np.int32(-(1 << 31))  # the sign bit of a size
FEW_VALUES = (
    1 << 14
)  # up to here chunks are searched whole and together, larger ones first by the largest values of columns
TOGETHER = 64  # large chunks that are ranked together: their number has six bits
CHUNK_SHIFT, SIZE_SHIFT = 57, 26  # a size has 31 bits, an index 26: two million dimensions
LARGEST = (1 << 31) - 1
COLUMN = 32  # values of a column where no mask says how wide the model is: the tokens of a full chunk

Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt16 = npt.NDArray[np.uint16]
States = Float32 | UInt16
"""Hidden states: float32 numbers, or the bit patterns of bfloat16 ones, which numpy does not know."""


def top_points(chunks: States, masked: Bool | None = None) -> tuple[Int64, UInt16]:
    """The 128 largest values of each chunk: flat indices int64 [chunks, 128], ascending, and bfloat16 bits uint16 [chunks, 128].

    `chunks`: float32, or uint16 with the bits of bfloat16, [chunks, tokens * hidden size], at least 128 values each; `masked`: bool [hidden size],
    true for dimensions that come last. Raises ValueError for fewer values, and when one that is chosen is not finite.
    """
    values = chunks.shape[1]
    if values < TOP_K:
        raise ValueError(f"a chunk of {values} values has no proof: the hidden size must be at least {TOP_K}")
    if masked is not None and not masked.any():
        masked = None
    if values <= FEW_VALUES:
        indices = _largest(_sizes(chunks, masked))
    else:
        parts = [
            _largest_of_wide(chunks[start : start + TOGETHER], masked) for start in range(0, len(chunks), TOGETHER)
        ]
        indices = np.concatenate(parts)
    chosen: Any = chunks[np.arange(len(chunks))[:, None], indices]
    bits: UInt16 = chosen if chosen.dtype == np.uint16 else _finite_bits(chosen)
    if ((bits & 0x7FFF) >= 0x7F80).any():
        raise ValueError("last hidden states are not finite")
    return indices, bits


def bfloat16_bits(values: Float32) -> UInt16:
    """Bit patterns of finite float32 values rounded to bfloat16, to nearest and ties to even, as torch rounds."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _finite_bits(values: Float32) -> UInt16:
    """`bfloat16_bits`, and infinity for all that is not finite: rounding the bits of a NaN may make a number of it."""
    return np.where(np.isfinite(values), bfloat16_bits(values), np.uint16(0x7F80))


def _magnitudes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bits of |x|, int32 of float32 and int16 of bfloat16."""
    if values.dtype.itemsize == 2:
        return values.view(np.int16) & np.int16(0x7FFF)
    return values.view(np.int32) & np.int32(0x7FFFFFFF)


def _sizes(chunks: States, masked: Bool | None) -> Int32:
    """int32 of the shape of `chunks` that orders its values: by size, masked ones below all others."""
    sizes: Int32 = _magnitudes(np.ascontiguousarray(chunks)).astype(np.int32, copy=False)
    if masked is not None:
        by_dimension = sizes.reshape(len(sizes), -1, len(masked))
        by_dimension |= np.where(masked, MASKED, np.int32(0))
    return sizes


def _largest(sizes: Int32) -> Int64:
    """Indices int64 [chunks, 128], ascending, of the largest of `sizes` [chunks, values]; of equal ones the first."""
    count, values = sizes.shape
    border = np.partition(sizes, values - TOP_K, axis=1)[:, values - TOP_K]
    flat = np.flatnonzero(sizes >= border[:, None])
    if len(flat) > count * TOP_K:  # some chunk has more values at its border than it has room for
        chunk = flat // values
        at_border = sizes.reshape(-1)[flat] == border[chunk]
        room = TOP_K - np.bincount(chunk[~at_border], minlength=count)
        seen = np.cumsum(at_border)
        before = np.concatenate([[0], seen])[np.searchsorted(chunk, np.arange(count))]  # at borders of earlier chunks
        flat = flat[~at_border | (seen - before[chunk] <= room[chunk])]
    return np.asarray(flat.reshape(count, TOP_K) - np.arange(count)[:, None] * values)


def _largest_of_wide(chunks: States, masked: Bool | None) -> Int64:
    """The same of large chunks [at most 64, values]: the few that can be among the largest are found in each, and ranked together."""
    found = [_candidates(chunk, masked) for chunk in chunks]
    counts = np.array([len(indices) for indices, _ in found])
    # One number that orders by chunk, then by size, largest first, then by index.
    order = np.repeat(np.arange(len(found)), counts) << CHUNK_SHIFT
    order |= (LARGEST - np.concatenate([sizes for _, sizes in found]).astype(np.int64)) << SIZE_SHIFT
    order |= np.concatenate([indices for indices, _ in found])
    order.sort()
    best = order[(np.cumsum(counts) - counts)[:, None] + np.arange(TOP_K)]
    return np.sort(best & ((1 << SIZE_SHIFT) - 1), axis=1)


def _candidates(chunk: States, masked: Bool | None) -> tuple[Int64, npt.NDArray[Any]]:
    """Indices and sizes of values of one chunk [values] among which its 128 largest are; hardly more than these.

    Written as rows, one below the other, a chunk has columns; the 128th largest of the columns' largest values is a lower bound of the border, so
    that only columns that reach it are searched. With a mask a column is a dimension, and masked ones are left out.
    """
    width = len(chunk) // COLUMN if masked is None else len(masked)
    rows = len(chunk) // width
    if masked is not None and width - int(masked.sum()) < TOP_K:
        indices = _largest(_sizes(chunk[None], masked))[0]
        return indices, _magnitudes(chunk[indices])
    table = chunk[: rows * width].reshape(rows, width)
    largest = _largest_in_columns(table)
    if masked is not None:
        largest[masked] = -1
    bound = np.partition(largest, width - TOP_K)[width - TOP_K]
    columns = np.flatnonzero(largest >= bound)
    sizes = np.concatenate([_magnitudes(table.take(columns, axis=1)).reshape(-1), _magnitudes(chunk[rows * width :])])
    found = np.flatnonzero(sizes >= bound.astype(sizes.dtype))
    row, column = np.divmod(found, len(columns))
    # What follows the last row is numbered on from there.
    indices = np.where(row < rows, row * width + columns[column], found + rows * (width - len(columns)))
    return indices, sizes[found]


def _largest_in_columns(table: States) -> Int32:
    """Bits of the largest |x| of each column of `table` [rows, columns], without a copy of it.

    Among signed integers the largest positive number wins, and if there is none the negative one of the largest size; among unsigned ones it is the
    other way round.
    """
    short = table.dtype == np.uint16
    signed = table.view(np.int16 if short else np.int32).max(axis=0)
    unsigned = table.view(np.uint16 if short else np.uint32).max(axis=0)
    return np.asarray(np.maximum(_magnitudes(signed), _magnitudes(unsigned)), dtype=np.int32)
