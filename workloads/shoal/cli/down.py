"""`shoal down`: stops the `shoal up` of a run, from another terminal, and waits until it has stopped every part."""

import os
import signal
import time
from pathlib import Path

from shoal.errors import RunFailed
from shoal.report.run_folders import holder_of

DEADLINE_SECONDS = 120.0
"""More than the longest grace periods of the parts together; a `shoal up` that takes longer hangs."""
ASK_SECONDS = 0.2


def down(run_dir: Path, deadline_seconds: float = DEADLINE_SECONDS) -> bool:
    """Ask the `shoal up` of `run_dir` to stop and wait; False when there is none. Raises `RunFailed` after the deadline."""
    holder = holder_of(run_dir)
    if holder is None:
        return False
    os.kill(holder.pid, signal.SIGTERM)
    end = time.monotonic() + deadline_seconds
    while holder_of(run_dir) == holder:
        if time.monotonic() > end:
            raise RunFailed(
                f"`shoal up` (process {holder.pid}) did not stop within {deadline_seconds:.0f} s; "
                f"`shoal down` again kills its processes at once"
            )
        time.sleep(ASK_SECONDS)
    return True
