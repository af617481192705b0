"""Packing: several samples in one row of tokens, so that no computing is spent on padding (paper section 3.1.1).

In: lengths of samples in tokens. Out: which samples share a bin. First-fit decreasing: longest first, each into the first bin
that still has room; at 32k bins it fills 99 % where arrival order fills 82-89 %. Samples stay whole: one that does
not fit a bin is an error, never a truncation. Pure; called by `batches`.
"""

from collections.abc import Sequence


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of the samples in each bin of `capacity` tokens; each list ascending, bins in order of their first sample.

    Raises ValueError naming the sample that is empty or does not fit.
    """
    for index, length in enumerate(lengths):
        if not 1 <= length <= capacity:
            raise ValueError(f"sample {index} has {length} tokens; allowed: 1 to {capacity}, the length of a pack")
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        place = next((number for number, left in enumerate(room) if left >= lengths[index]), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(capacity)
        bins[place].append(index)
        room[place] -= lengths[index]
    return sorted(sorted(members) for members in bins)


def density(lengths: Sequence[int], bins: Sequence[Sequence[int]], capacity: int) -> float:
    """Share of the bins' capacity that holds tokens, 0 to 1."""
    return sum(lengths) / (len(bins) * capacity)
