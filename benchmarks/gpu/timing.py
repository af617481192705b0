"""How long something takes on a device."""

import time
from collections.abc import Callable
from statistics import median

import torch


def seconds_of(work: Callable[[], object], device: str, repeats: int) -> float:
    """The median of `repeats`, after two that are not counted; each waits for the device."""
    taken = []
    for number in range(repeats + 2):
        begun = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if number > 1:
            taken.append(time.perf_counter() - begun)
    return median(taken)
