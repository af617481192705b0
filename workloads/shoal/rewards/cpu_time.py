"""How much CPU time another process has had: the clock by which a busy machine decides nothing.

In: a process id. Out: seconds, counted in the kernel's ticks (10 ms). Linux only. Called by `sandbox.process` and `judging` when a wall clock
has run out, to tell a process that computes from one that waits. `judging` and `sandbox.service` say by it what a question took (`Took`).
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Took:
    """CPU seconds that a process had while it answered, summed up over questions."""

    seconds: float = 0.0

    @contextmanager
    def counting(self, pid: int) -> Iterator[None]:
        """Count what the process has until the end of the block, also where the block raises. Of one that has ended the wall clock counts."""
        began, had = time.monotonic(), cpu_seconds(pid)
        try:
            yield
        finally:
            has = cpu_seconds(pid)
            self.seconds += has - had if has >= had > 0.0 else time.monotonic() - began


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children, as bwrap has one, so far; 0 for one that has ended (proc(5), `stat`)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(child) for child in file.read().split()]
    except OSError:
        return 0.0
    ticks = int(fields[11]) + int(fields[12])  # utime and stime
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))
