"""Packing density at 32k on the paper's lengths. In: nothing. Out: shares. Pure; called by `__main__`.

The paper gives no histogram. Its long run asks for 2,000 to 10,000 thinking tokens with a limit of 32,768 (sections 3.1.2 and 4.1), and its
model hardly followed the targets: a long-tailed distribution around 8,500 tokens of prompt, thinking and answer, cut at the limit. The short
run asks for 1,000 to 4,000. One optimizer batch has 512 rows.
"""

import numpy as np

from benchmarks.trainer.our_side import packing_density

CAPACITY = 32_768
MEDIANS = {"long run": 8_500, "short run": 4_500}
SPREAD = 0.5
"""Of the logarithm of the length: the longest of 512 rows comes near the limit, the shortest has a fifth of the median."""
ROWS, BATCHES = 512, 16


def densities() -> dict[str, dict[str, float]]:
    """By run: the mean and the worst of some batches, and the mean of packs filled in order of arrival."""
    found = {}
    for name, median in MEDIANS.items():
        batches = [_lengths(median, seed) for seed in range(BATCHES)]
        ours = [packing_density(lengths, CAPACITY) for lengths in batches]
        arrival = [arrival_density(lengths, CAPACITY) for lengths in batches]
        found[name] = {"mean": float(np.mean(ours)), "worst": min(ours), "in_order_of_arrival": float(np.mean(arrival))}
    return found


def arrival_density(lengths: list[int], capacity: int) -> float:
    """What is reached when a pack is closed as soon as the next row does not fit."""
    packs, room = 1, capacity
    for length in lengths:
        if length > room:
            packs, room = packs + 1, capacity
        room -= length
    return sum(lengths) / (packs * capacity)


def _lengths(median: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(median), SPREAD, ROWS)
    return [int(length) for length in drawn.clip(16, CAPACITY)]
