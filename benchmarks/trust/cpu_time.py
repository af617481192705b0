"""CPU seconds of this process and of everything that it started, living or ended. Linux only.

The validators' parser runs in children of children, which `resource.getrusage` does not see until they are waited for.
"""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system time so far, of this process, its living descendants and those that these have waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        # Fields from the third on (proc(5)): state, parent; utime, stime, cutime, cstime are 14 to 17.
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(int(field) for field in fields[11:15])
    return sum(used for process, used in ticks.items() if _descends(process, os.getpid(), parents)) / TICKS


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process in parents:
        if process == ancestor:
            return True
        process = parents[process]
    return False
