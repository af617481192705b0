"""How many programs, or other processes with one core each, this container has cores and memory for. Reads its control group (v2)."""

import math
import os
from pathlib import Path

from shoal.rewards.sandbox.program import Limits

OWN_BYTES = 256 << 20
"""Of the process itself."""
PROGRAM_BYTES = Limits().memory_bytes + (32 << 20)
"""A program's limit, and the sandboxes that wait."""
GROUP = Path("/sys/fs/cgroup")


def slots_here(group: Path = GROUP) -> int:
    """Programs at once in this container, at least one."""
    cores = len(os.sched_getaffinity(0))
    quota = _numbers(group / "cpu.max")  # microseconds of CPU time, and in which time
    if len(quota) == 2:
        cores = min(cores, math.ceil(quota[0] / quota[1]))
    memory = _numbers(group / "memory.max")
    if memory:
        cores = min(cores, (memory[0] - OWN_BYTES) // PROGRAM_BYTES)
    return max(1, cores)


def _numbers(path: Path) -> list[int]:
    """The numbers of a file of the control group; none where there is no limit (`max`) or no such file."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) for word in words] if all(word.isdigit() for word in words) else []
