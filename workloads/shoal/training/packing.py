"""Packing: several samples in one row of tokens, so that no computing is spent on padding, and packs dealt out evenly (paper section 3.1.1).

In: lengths of samples in tokens. Out: which samples share a bin, and which rank computes which bin when. First-fit decreasing: longest
first, each into the first bin that still has room; at 32k bins it fills 99 % where arrival order fills 82-89 %. Samples
stay whole: one that does not fit a bin is an error, never a truncation. Pure; called by `batches`.
"""

from collections.abc import Sequence

ATTENTION_AS_DEAR_AS_THE_REST = 12 * 4096
"""Tokens at which a sample's causal attention (2 h L^2 operations for a layer of width h) costs the matrix products' work
(24 h^2 L); for a width of 4096. Used to balance ranks only: an error moves work, never a result."""


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


def cost(lengths: Sequence[int]) -> float:
    """The cost of computing a pack of samples of these lengths, in tokens of a short sample."""
    return sum(length * (1 + length / ATTENTION_AS_DEAR_AS_THE_REST) for length in lengths)


def deal(costs: Sequence[float], ranks: int) -> list[list[int | None]]:
    """Which bin each rank computes in each round: `ranks` lists of equal length, None where a rank has only a filler.

    Ranks meet in every round (each layer's weights are gathered by all), so a round lasts as long as its dearest bin: bins of like cost
    share a round. Within a round the rank that has done least so far takes the dearest.
    """
    order = sorted(range(len(costs)), key=lambda index: (-costs[index], index))
    dealt: list[list[int | None]] = [[] for _ in range(ranks)]
    done = [0.0] * ranks
    for start in range(0, len(order), ranks):
        round_bins: list[int | None] = [*order[start : start + ranks]]
        round_bins += [None] * (ranks - len(round_bins))
        for index, rank in zip(round_bins, sorted(range(ranks), key=lambda rank: (done[rank], rank)), strict=True):
            dealt[rank].append(index)
            done[rank] += 0.0 if index is None else costs[index]
    return dealt


def density(lengths: Sequence[int], bins: Sequence[Sequence[int]], capacity: int) -> float:
    """Share of the bins' capacity that holds tokens, 0 to 1."""
    return sum(lengths) / (len(bins) * capacity)
