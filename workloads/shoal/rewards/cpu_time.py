"""How much CPU time another process has had: the clock by which a busy machine decides nothing.

In: a process id. Out: seconds, counted in the kernel's ticks (10 ms). Linux only. Called by `sandbox.process` and `judging` when a wall clock
has run out, to tell a process that computes from one that waits.
"""

import os


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
